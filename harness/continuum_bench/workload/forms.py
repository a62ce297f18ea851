"""Reads options of the form NAME:NUMBER:NUMBER, such as ``gamma:2``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import MOST_S

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """One form that an option's text may have."""

    words: str
    """The name and the numbers, as messages show them: ``hang:SHARE[:SECONDS]``."""
    numbers: tuple[int, ...]
    """How many numbers the form takes."""
    make: Callable[..., T]
    """Takes the numbers."""
    holds: Callable[..., bool] = lambda *numbers: True
    """Takes the numbers, and returns whether they are in their limits."""
    limits: str = ""
    """The limits in words."""

    @property
    def name(self) -> str:
        return self.words.partition(":")[0].removesuffix("[")


def read_form(option: str, spec: str, forms: Sequence[Form[Any]]) -> Any:
    """Return what the form of the text makes of its numbers, which are at least 0 and at most ``MOST_S``.

    Raises:
        BenchError: the form is unknown, or a number is missing or out of range.
    """
    name, *texts = spec.split(":")
    form = next((each for each in forms if each.name == name), None)
    if form is None:
        raise BenchError(f"{option} {spec}: there are {', '.join(each.words for each in forms)}")
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = [math.nan]
    in_range = len(texts) in form.numbers and all(0 <= number <= MOST_S for number in numbers)
    if not in_range or not form.holds(*numbers):
        raise BenchError(f"{option} {spec}: expected {form.words}{form.limits and ', '}{form.limits}")
    return form.make(*numbers)
