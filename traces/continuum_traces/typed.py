"""Build dataclass instances from JSON. Every error message names the field. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
LARGEST = 2.0**63
"""No number in a file may be as large."""
MORE = "more"
"""The field of a dataclass that takes the entries of its object which no other field names."""
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {tuple: "a list of strings"}


class FieldError(ValueError):
    """A field is missing, unknown or of a wrong type."""


def from_json(row_type: type[T], data: Any) -> T:
    """Build an instance of the dataclass ``row_type`` from a decoded JSON object.

    Lists contain strings. An object inside the object becomes a dataclass where the field's type is one; others are
    checked for their type only. Entries that no field names go to the field ``more``, if there is one.

    Raises:
        FieldError: a field is missing, unknown or of a wrong type, or ``data`` is not an object.
    """
    if not isinstance(data, dict):
        raise FieldError("expected an object")
    types, required = field_types(cast(Any, row_type))
    values: dict[str, Any] = {}
    unnamed: dict[str, Any] = {}
    for name, value in data.items():
        if name in types and name != MORE:
            values[name] = _checked(name, value, *types[name])
        elif MORE in types:
            unnamed[name] = value
        else:
            raise FieldError(f"unknown field {name!r}; written by a newer version?")
    for name in required:
        if name not in data:
            raise FieldError(f"the field {name!r} is missing")
    return row_type(**values, **({MORE: unnamed} if unnamed else {}))


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
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _checked(name: str, value: Any, types: tuple[type, ...], choices: tuple[Any, ...]) -> Any:
    if type(value) is int and float in types and int not in types and abs(value) < LARGEST:
        return value
    if tuple in types and isinstance(value, list) and all(isinstance(part, str) for part in value):
        return tuple(value)
    if isinstance(value, dict) and (nested := next(filter(is_dataclass, types), None)):
        try:
            return from_json(nested, value)
        except FieldError as error:
            raise FieldError(f"{name}.{error}") from error
    if type(value) not in types or (isinstance(value, int | float) and not abs(value) < LARGEST):
        _wrong(name, value, types)
    if choices and value is not None and value not in choices:
        raise FieldError(f"{name}: {value!r}; there are {', '.join(map(str, choices))}")
    return value


def _wrong(name: str, value: Any, types: tuple[type, ...]) -> None:
    wanted = " or ".join(_WORDS.get(wanted, "an object") for wanted in types if wanted is not NoneType)
    raise FieldError(f"{name}: {str(value)[:60]!r} is not {wanted}")


@cache
def field_types(row_type: Any) -> tuple[dict[str, tuple[tuple[type, ...], tuple[Any, ...]]], tuple[str, ...]]:
    """Return the types of each field of a dataclass, and the values of its ``Literal`` if it has one; and the names of
    the fields without a default."""
    hints = get_type_hints(row_type)
    required = (
        field.name for field in fields(row_type) if field.default is MISSING and field.default_factory is MISSING
    )
    return {field.name: _types(hints[field.name]) for field in fields(row_type)}, tuple(required)


def _types(hint: Any) -> tuple[tuple[type, ...], tuple[Any, ...]]:
    parts = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    choices = tuple(choice for part in parts if get_origin(part) is Literal for choice in get_args(part))
    return tuple(dict.fromkeys(_plain(part) for part in parts)), choices


def _plain(part: Any) -> type:
    """Return the class of a JSON value with this type hint, without the type's parameters."""
    origin = get_origin(part)
    if origin is Literal:
        return str
    if origin is Mapping:
        return dict
    return cast(type, origin or part)
