"""Checks of settings against the types of their fields: ``int``, or with a range ``Annotated[int, Range(1, 64)]``.

msgspec makes the checks, strictly: True is not a number, 2.9 is not a whole number, and text is neither.
"""

from __future__ import annotations

from dataclasses import fields
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec


class LimitError(ValueError):
    """A setting has a value that is not allowed. The message has its name, its value and the allowed values."""

    def __init__(self, name: str, given: Any, allowed: str) -> None:
        super().__init__(name, given, allowed)
        self.name, self.given, self.allowed = name, given, allowed

    def __str__(self) -> str:
        return f"{self.name} = {_shown(self.given)}: must be {self.allowed}"


def _shown(value: Any) -> str:
    """Return the value as a short line. ``repr`` fails for a number with thousands of digits."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the object may be of any class
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}..."


def Range(least: float = 0, most: float = 10**12, above: bool = False, below: bool = False) -> msgspec.Meta:
    """Return the range of a number. ``Range()`` is the range of numbers whose type has none.

    Every range is finite, so that values computed from the number are finite too.

    Args:
        above: ``least`` itself is not allowed.
        below: ``most`` itself is not allowed.
    """
    bounds: dict[str, Any] = {"gt" if above else "ge": least, "lt" if below else "le": most}
    return msgspec.Meta(**bounds)


Seconds = Annotated[float, Range(0.0, 1e9)]
"""At most about thirty years."""
Factor = Annotated[float, Range(0.0, 1e9)]
Window = Annotated[int, Range(1, 10_000_000)]
"""A number of values that are kept in memory."""
Count = Annotated[int, Range(0, 1_000_000_000)]


def hints_of(settings: type) -> dict[str, Any]:
    """Map each field of a dataclass to its type with its range."""
    hints = get_type_hints(settings, include_extras=True)
    return {field.name: reduce(or_, map(_with_range, members(hints[field.name]))) for field in fields(settings)}


def _with_range(member: Any) -> Any:
    return Annotated[member, Range()] if member in (int, float) else member


def members(hint: Any) -> tuple[Any, ...]:
    """Return the types in a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def check_fields(settings: Any) -> None:
    """Check the value of each field of a dataclass.

    Raises:
        LimitError: a value is not allowed. The error is about the first such field.
    """
    for name, hint in hints_of(type(settings)).items():
        check(name, getattr(settings, name), hint)


def check(name: str, value: Any, hint: Any, as_text: bool = False) -> Any:
    """Return the value as the type has it: 3 for a ``float`` is 3.0.

    Args:
        as_text: numbers and booleans may be given as text.

    Raises:
        LimitError: the value has another type or is out of range.
    """
    try:
        plain = float(value) if isinstance(value, float) else value  # numpy's floats too
        return msgspec.convert(plain, hint, strict=not as_text)
    except msgspec.ValidationError:
        raise LimitError(name, value, described(hint)) from None


def described(hint: Any) -> str:
    """Return the values that a type allows, in words."""
    return ", or ".join(map(_word, members(hint)))


def is_optional(hint: Any) -> bool:
    return NoneType in members(hint)


def is_plain(hint: Any) -> bool:
    """Whether the type consists of numbers, booleans, text, literals, and None."""
    return all(_plain(member) in (int, float, bool, str, NoneType, Literal) for member in members(hint))


def _plain(member: Any) -> Any:
    if get_origin(member) is Annotated:
        return get_args(member)[0]
    return Literal if get_origin(member) is Literal else member


def _word(member: Any) -> str:
    if get_origin(member) is Annotated:
        kind, bounds = get_args(member)
        return f"a{' whole' if kind is int else ''} number{_range(bounds)}"
    if get_origin(member) is Literal:
        return f"one of {', '.join(get_args(member))}"
    return {str: "text", bool: "true or false", NoneType: "none"}.get(member, "an object")


def _range(bounds: msgspec.Meta) -> str:
    if bounds.gt is None and bounds.lt is None:
        return f" from {bounds.ge:.15g} to {bounds.le:.15g}"
    low = f"from {bounds.ge:.15g}" if bounds.gt is None else f"above {bounds.gt:.15g}"
    return f" {low}, {f'at most {bounds.le:.15g}' if bounds.lt is None else f'below {bounds.lt:.15g}'}"
