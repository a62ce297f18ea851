"""A scale with its ticks, and the words beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

TICKS = 5
LETTER = 6.4
"""Pixels of a letter, about."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Converts values to pixels."""

    low: float
    high: float
    first_px: float
    last_px: float
    log: bool = False
    only: float | None = None
    """The single value that is shown, and the only tick; None: round values are ticks."""

    def px(self, value: float) -> float:
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        share = ((log10(max(value, self.low)) if self.log else value) - low) / (high - low)
        return self.first_px + share * (self.last_px - self.first_px)

    def ticks(self, most: int = TICKS) -> list[float]:
        """Return round values: on a long logarithmic scale powers of ten, else also some of their multiples."""
        if self.only is not None:
            return [self.only]
        decades = log10(self.high / self.low) if self.log else 0.0
        if decades > 1:
            powers = range(floor(log10(self.low)), floor(log10(self.high) + 1e-9) + 1)
            factors = (1, 2, 5) if decades < 2 else (1, 3) if decades < 3 else (1,)
            values = [factor * 10.0**power for power in powers for factor in factors]
            kept = [value for value in values if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]
            return kept[:: max(1, ceil(len(kept) / 8))]
        step = round_step((self.high - self.low) / most)
        return [n * step for n in range(ceil(self.low / step - 1e-9), floor(self.high / step + 1e-9) + 1)]


def round_step(at_least: float) -> float:
    """Return the next larger of 1, 2, 5 times a power of ten; also 2.5 times a power of ten below 1."""
    power = 10.0 ** floor(log10(at_least))
    factors = (1, 2, 2.5, 5, 10) if power < 1 else (1, 2, 5, 10)
    return next(factor * power for factor in factors if factor * power >= at_least * (1 - 1e-9))


def ends(values: Sequence[float], from_zero: bool, log: bool) -> tuple[float, float]:
    """Return the ends of the scale that shows these values."""
    drawable = [v for v in values if v > 0] if log else list(values)
    low, high = min(drawable, default=1.0 if log else 0.0), max(drawable, default=1.0)
    low = min(low, 0.0) if from_zero and not log else low
    if high - low > 1e-6 * abs(high):
        return low, high
    return (low / 2, high * 2) if log else (low, low + 1.0)


def tick_text(value: float, percent: bool) -> str:
    return f"{100 * value:.4g}%" if percent else f"{value:,.6g}"


def words(x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> str:
    return f"<text class='{kind}' x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"


def heading(x: float, y: float, title: str, unit: str) -> str:
    """Write a panel's title and what its axis shows above the axis."""
    name = f"<tspan class='name'>{escape(title)}</tspan>  " if title else ""
    return f"<text x='{x:.1f}' y='{y:.1f}' xml:space='preserve'>{name}{escape(unit)}</text>"


def x_marks(axis: Axis, at: float, title: str, percent: bool = False) -> str:
    """Draw the ticks and the title of an x axis below ``at``; a label that would touch the one before is left out."""
    labels, free = [], 0.0
    for tick in axis.ticks(6):
        x, text = axis.px(tick), tick_text(tick, percent)
        if x - LETTER * len(text) / 2 >= free:
            labels.append(words(x, at + 17, text, "middle"))
            free = x + LETTER * (len(text) / 2 + 1)
    return "".join(labels) + words((axis.first_px + axis.last_px) / 2, at + 33, title, "middle")
