"""Dataclasses read from JSON. Every fault names its field. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_WORDS |= {tuple: "a list", dict: "an object"}


class FieldError(ValueError):
    """A field that is missing, unknown or of another type."""


def from_json(kind: type[T], data: Any) -> T:
    """The object as that dataclass. Of lists and objects inside it only the kind is checked.

    Raises:
        FieldError: the object is not of that form.
    """
    if not isinstance(data, dict):
        raise FieldError("expected an object")
    rules, required = _rules(cast(Any, kind))
    values = {}
    for name, value in data.items():
        if name not in rules:
            raise FieldError(f"unknown field {name!r}; written by a newer version?")
        values[name] = _checked(name, value, *rules[name])
    for name in required:
        if name not in data:
            raise FieldError(f"the field {name!r} is missing")
    return kind(**values)


def read_line(text: str) -> Any:
    """JSON without NaN and infinities.

    Raises:
        ValueError: anything else.
    """
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _checked(name: str, value: Any, kinds: tuple[type, ...], names: tuple[Any, ...]) -> Any:
    if type(value) is int and float in kinds and int not in kinds:
        return value if abs(value) < 1e308 else _wrong(name, value, kinds)
    if tuple in kinds and isinstance(value, list):
        return tuple(value)
    if type(value) not in kinds or (isinstance(value, float) and not math.isfinite(value)):
        _wrong(name, value, kinds)
    if names and value is not None and value not in names:
        raise FieldError(f"{name}: {value!r}; there are {', '.join(map(str, names))}")
    return value


def _wrong(name: str, value: Any, kinds: tuple[type, ...]) -> None:
    wanted = " or ".join(_WORDS[kind] for kind in kinds if kind is not NoneType)
    raise FieldError(f"{name}: {str(value)[:60]!r} is not {wanted}")


@cache
def _rules(kind: Any) -> tuple[dict[str, tuple[tuple[type, ...], tuple[Any, ...]]], tuple[str, ...]]:
    """The types that each field may have, and the names if it has one of some; and the fields that must be there."""
    hints = get_type_hints(kind)
    required = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    return {each.name: _kinds(hints[each.name]) for each in fields(kind)}, tuple(required)


def _kinds(hint: Any) -> tuple[tuple[type, ...], tuple[Any, ...]]:
    parts = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    names = tuple(name for part in parts if get_origin(part) is Literal for name in get_args(part))
    return tuple(dict.fromkeys(_plain(part) for part in parts)), names


def _plain(part: Any) -> type:
    origin = get_origin(part)
    if origin is Literal:
        return str
    if origin is Mapping:
        return dict
    return cast(type, origin or part)
