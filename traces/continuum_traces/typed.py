"""Build dataclass instances from JSON. Every fault of a line is named, with its field; unknown fields are faults.

Therefore pydantic: msgspec, which reads everything else (options, answers of servers, other people's logs), stops at
the first fault, and ignores unknown fields of dataclasses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core import from_json as decoded

T = TypeVar("T")
LARGEST = 2.0**63
"""No number in a file may be as large."""
MORE = "more"
"""The field of a dataclass that takes the entries of its object which no other field names."""
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "mapping_type": "an object",
    "dict_type": "an object",
    "dataclass_type": "an object",
}
"""What each kind of pydantic's faults misses."""


class FieldError(ValueError):
    """A field is missing, unknown or of a wrong type."""


@dataclass(frozen=True, slots=True)
class FieldFault:
    """A fault in one field; the name is empty for a fault of the whole object."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def parse(row_type: type[T], text: str) -> tuple[T | None, list[FieldFault]]:
    """Build an instance of the dataclass ``row_type`` from a JSON object, or name every fault."""
    try:
        (row,) = _adapter(cast(Any, row_type)).validate_json(f"[{text}]")
    except ValidationError as error:
        return None, [_fault(each) for each in error.errors(include_url=False)]
    faults = [FieldFault(name, "too large") for name, value in numbers(row) if not abs(value) < LARGEST]
    return (None if faults else row), faults


def from_json(row_type: type[T], data: Any) -> T:
    """Build an instance of the dataclass ``row_type`` from a decoded JSON object.

    Entries that no field names go to the field ``more``, if there is one.

    Raises:
        FieldError: a field is missing, unknown or of a wrong type, or ``data`` is not an object.
    """
    row, faults = parse(row_type, json.dumps(_gathered(row_type, data)))
    if row is None:
        raise FieldError(str(faults[0]))
    return row


def to_json(value: Any) -> Any:
    """Return what ``from_json`` reads back: dataclasses as objects, without their fields that are None."""
    if is_dataclass(value):
        named = {each.name: getattr(value, each.name) for each in fields(value)}
        unnamed = named.pop(MORE, {})
        value = {name: each for name, each in (named | dict(unnamed)).items() if each is not None}
    if isinstance(value, Mapping):
        return {name: to_json(each) for name, each in value.items()}
    return [to_json(each) for each in value] if isinstance(value, list | tuple) else value


def read_line(text: str) -> Any:
    """Parse JSON without NaN and infinities.

    Raises:
        ValueError: the text is not JSON, or contains NaN or an infinity.
    """
    return decoded(text, allow_inf_nan=False)


def numbers(row: Any, where: str = "") -> Iterator[tuple[str, int | float]]:
    """Yield the number in each field of a dataclass, and of the dataclasses in its fields, with the field's name."""
    for name in field_names(row.__class__):
        value = getattr(row, name)
        kind = type(value)
        if kind is int or kind is float:
            yield where + name, value
        elif kind is tuple:
            for number, part in enumerate(value):
                if is_dataclass(part):
                    yield from numbers(part, f"{where}{name}[{number}].")
        elif value is not None and kind is not str and is_dataclass(value):
            yield from numbers(value, f"{where}{name}.")


@cache
def field_names(row_type: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in fields(row_type))


@cache
def _adapter(row_type: Any) -> TypeAdapter[list[Any]]:
    """Return the adapter of a list, as pydantic takes no configuration for a dataclass that is not its own."""
    return TypeAdapter(Annotated[list[row_type], Field(min_length=1, max_length=1)], config=_STRICT)


def _fault(error: ErrorDetails) -> FieldFault:
    place = error["loc"][1:]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    kind, given = error["type"], f"{error['input']!r:.60}"
    if kind in ("missing", "unexpected_keyword_argument"):
        return FieldFault(field, "missing" if kind == "missing" else "unknown field; written by a newer version?")
    if kind in _WANTED:
        return FieldFault(field, f"{given} is not {_WANTED[kind]}")
    return FieldFault(field, error["msg"].removeprefix("Value error, ").replace("Invalid JSON", "not JSON"))


def _gathered(row_type: Any, data: Any) -> Any:
    """Return the object with the entries that no field names in the field ``more``, if there is one."""
    if not isinstance(data, dict):
        return data
    hints = get_type_hints(row_type)
    nested = {name: next(filter(is_dataclass, (hint, *get_args(hint))), None) for name, hint in hints.items()}
    unnamed = {name: value for name, value in data.items() if name not in hints or name == MORE}
    named = {
        name: _gathered(nested[name], value) if nested[name] else value
        for name, value in data.items()
        if name not in unnamed
    }
    return named | ({MORE: unnamed} if MORE in hints else unnamed)
