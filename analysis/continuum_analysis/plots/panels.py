"""The content of figures: panels of lines, bars and areas, which ``drawing`` draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from continuum_analysis.plots.arm_styles import ArmStyle

Kind = Literal["marked", "plain", "stepped"]
"""marked: a line with a mark at each point. plain: a line without marks. stepped: horizontal to the next point, then
vertical."""


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one series; ``low`` and ``high`` bound each point, or are empty."""

    name: str
    look: ArmStyle
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    kind: Kind = "marked"


@dataclass(frozen=True, slots=True)
class Stem:
    """A vertical line in one arm's look at a value of the x axis."""

    x: float
    look: ArmStyle
    hover: str
    """Its meaning, in its tooltip."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One arm's bar in a group of bars; ``low`` and ``high`` are the interval, or the range over seeds."""

    group: str
    name: str
    look: ArmStyle
    y: float
    low: float
    high: float
    text: str = ""
    """The number as text, written beside the bar."""
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """One layer of stacked bars."""

    name: str
    heights: Mapping[str, float]
    """The height of the layer in the bar of each group."""
    colour: str
    pattern: str
    """One of ``/ \\ x . - + |``, or empty."""
    hover: str | None = None
    """The meaning of the layer, in its tooltip."""


@dataclass(frozen=True, slots=True)
class Area:
    """One layer of stacked areas over the same ``x``."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x_title: str
    y_title: str
    """Written above the panel, beside the title."""
    lines: Sequence[Line] = ()
    log: bool = False
    """Whether the y axis is logarithmic."""
    log_x: bool = False
    x_from_zero: bool = False
    percent: bool = False
    """Whether y is a share that is written in percent."""
    top: float | None = None
    """The upper end of the y axis; None: the largest value."""
    level: float | None = None
    """Where a dashed line marks a value: 100% of the pool, or a ratio of 1."""
    stems: Sequence[Stem] = ()
    bars: Sequence[Bar] = ()
    dots: bool = False
    """Draw the values of ``bars`` as marks in a row for each group, on a logarithmic scale."""
    stacks: Sequence[Stack] = ()
    areas: Sequence[Area] = ()

    @property
    def in_rows(self) -> bool:
        """Whether the panel has a row for each group instead of two axes."""
        return bool(self.bars or self.stacks)

    @property
    def groups(self) -> list[str]:
        """Names of the rows of bars or stacks."""
        of_stacks = [group for stack in self.stacks for group in stack.heights]
        return list(dict.fromkeys([*of_stacks, *(bar.group for bar in self.bars)]))


def thin(values: Sequence[float], most: int) -> list[float]:
    """Return about ``most`` of the values, evenly spaced, including the last."""
    step = max(1, -(-len(values) // most))
    kept = list(values[::step])
    return kept if (len(values) - 1) % step == 0 else [*kept, values[-1]]
