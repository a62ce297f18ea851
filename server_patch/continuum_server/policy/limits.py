"""Checks of settings against the types of their fields: ``int``, or with a range ``Annotated[int, Range(1, 64)]``.

The checks are strict: True is not a number, 2.9 is not a whole number, and text is neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints


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


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a number. ``Range()`` is the range of numbers whose type has none.

    Every range is finite, so that values computed from the number are finite too.
    """

    least: float = 0.0
    most: float = 1e12
    above: bool = False
    """``least`` itself is not allowed."""
    below: bool = False
    """``most`` itself is not allowed."""

    def holds(self, value: float) -> bool:
        high_enough = value > self.least if self.above else value >= self.least
        low_enough = value < self.most if self.below else value <= self.most
        return high_enough and low_enough

    def __str__(self) -> str:
        low, high = f"{self.least:.15g}", f"{self.most:.15g}"
        if self.above or self.below:
            return f" {'above' if self.above else 'from'} {low}, {'below' if self.below else 'at most'} {high}"
        return f" from {low} to {high}"


Seconds = Annotated[float, Range(0.0, 1e9)]
"""At most about thirty years."""
Factor = Annotated[float, Range(0.0, 1e9)]
Window = Annotated[int, Range(1, 10_000_000)]
"""A number of values that are kept in memory."""
Count = Annotated[int, Range(0, 1_000_000_000)]


def hints_of(settings: type) -> dict[str, Any]:
    """Map each field of a dataclass to its type with its range."""
    hints = get_type_hints(settings, include_extras=True)
    return {field.name: hints[field.name] for field in fields(settings)}


def check_fields(settings: Any, default: Range = Range()) -> None:
    """Check the value of each field of a dataclass.

    Raises:
        LimitError: a value is not allowed. The error is about the first such field.
    """
    for name, hint in hints_of(type(settings)).items():
        check(name, getattr(settings, name), hint, default)


def check(name: str, value: Any, hint: Any, default: Range = Range()) -> None:
    """Check a value against a type. Types that are not plain (``is_plain``) are not checked.

    Args:
        default: range of numbers whose type has none.

    Raises:
        LimitError: the value has another type or is out of range.
    """
    kinds = list(_kinds(hint, default))
    if None in kinds or any(_is(value, kind, allowed) for kind, allowed in filter(None, kinds)):
        return
    raise LimitError(name, value, described(hint, default))


def described(hint: Any, default: Range = Range()) -> str:
    """Return the values that a type allows, in words."""
    return ", or ".join(_word(*kind) for kind in _kinds(hint, default) if kind is not None)


def is_optional(hint: Any) -> bool:
    return any(kind is not None and kind[0] is NoneType for kind in _kinds(hint, Range()))


def is_plain(hint: Any) -> bool:
    """Whether values of this type can be checked: numbers, booleans, text, literals, and None."""
    return None not in _kinds(hint, Range())


def plain_type(hint: Any) -> Any:
    """Return the type without its range and without None."""
    return next((kind[0] for kind in _kinds(hint, Range()) if kind is not None and kind[0] is not NoneType), None)


Kind = tuple[Any, Any]
"""int, float, bool, str, NoneType or Literal, with the allowed range or names."""


def _kinds(hint: Any, allowed: Any) -> Iterator[Kind | None]:
    """Yield the plain types in a union, or the type itself; None stands for a type that is not plain."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *extras = get_args(hint)
        yield from _kinds(inner, next((extra for extra in extras if isinstance(extra, Range)), allowed))
    elif origin is Literal:
        yield Literal, get_args(hint)
    elif hint in (int, float, bool, str, NoneType):
        yield hint, allowed
    elif origin is None or (isinstance(origin, type) and origin.__module__ == "builtins"):
        yield None
    else:  # a union
        for member in get_args(hint):
            yield from _kinds(member, allowed)


def _is(value: Any, kind: Any, allowed: Any) -> bool:
    if kind is Literal:
        return isinstance(value, str) and value in allowed
    if kind in (int, float):
        number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return number and bool(allowed.holds(value))
    return isinstance(value, kind)


def _word(kind: Any, allowed: Any) -> str:
    if kind is Literal:
        return f"one of {', '.join(allowed)}"
    if kind in (int, float):
        return f"a{' whole' if kind is int else ''} number{allowed}"
    return {str: "text", bool: "true or false", NoneType: "none"}[kind]
