"""Checks of settings. A setting's type says what is allowed: ``int``, or with a range ``Annotated[int, Range(1, 64)]``.

The check is strict: True is not a number, 2.9 is not a whole number, and text is neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints


class LimitError(ValueError):
    """A setting has a value that is not allowed: its name, the value, and what is allowed."""

    def __init__(self, name: str, given: Any, allowed: str) -> None:
        super().__init__(name, given, allowed)
        self.name, self.given, self.allowed = name, given, allowed

    def __str__(self) -> str:
        return f"{self.name} = {_shown(self.given)}: must be {self.allowed}"


def _shown(value: Any) -> str:
    """The value in one short line. Python refuses to print a number with thousands of digits."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - anybody's object
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}..."


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the greatest value of a number. Without arguments: the range of numbers whose type names none.

    Every range is finite, so that what is computed from the number is finite too.
    """

    least: float = 0.0
    most: float = 1e12
    above: bool = False
    """The least value itself is not allowed."""
    below: bool = False
    """The greatest value itself is not allowed."""

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
"""At most some thirty years."""
Factor = Annotated[float, Range(0.0, 1e9)]
Window = Annotated[int, Range(1, 10_000_000)]
"""How many values are kept in memory."""
Count = Annotated[int, Range(0, 1_000_000_000)]


def hints_of(settings: type) -> dict[str, Any]:
    """The type of each field of a dataclass, with its range."""
    hints = get_type_hints(settings, include_extras=True)
    return {each.name: hints[each.name] for each in fields(settings)}


def check_fields(settings: Any, default: Range = Range()) -> None:
    """Check each field of a dataclass.

    Raises:
        LimitError: the first field whose value is not allowed.
    """
    for name, hint in hints_of(type(settings)).items():
        check(name, getattr(settings, name), hint, default)


def check(name: str, value: Any, hint: Any, default: Range = Range()) -> None:
    """Check one value against a type. Types that are not plain (``is_plain``) are not checked.

    Args:
        default: range of numbers whose type names none.

    Raises:
        LimitError: the value is of another type or out of range.
    """
    kinds = list(_kinds(hint, default))
    if any(each is None for each in kinds) or any(_is(value, kind, allowed) for kind, allowed in filter(None, kinds)):
        return
    raise LimitError(name, value, described(hint, default))


def described(hint: Any, default: Range = Range()) -> str:
    """What a type allows, in words."""
    return ", or ".join(_word(*each) for each in _kinds(hint, default) if each is not None)


def is_optional(hint: Any) -> bool:
    return any(each is not None and each[0] is NoneType for each in _kinds(hint, Range()))


def is_plain(hint: Any) -> bool:
    """Whether values of this type can be checked: numbers, truth values, text, named choices, and None."""
    return None not in _kinds(hint, Range())


def plain_type(hint: Any) -> Any:
    """The type without its range and without None."""
    return next((each[0] for each in _kinds(hint, Range()) if each is not None and each[0] is not NoneType), None)


Kind = tuple[Any, Any]
"""int, float, bool, str, NoneType or Literal, and what is allowed: a range, or names."""


def _kinds(hint: Any, allowed: Any) -> Iterator[Kind | None]:
    """The plain types that a type consists of; None stands for a part that is not plain."""
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
        for each in get_args(hint):
            yield from _kinds(each, allowed)


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
