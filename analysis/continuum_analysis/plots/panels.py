"""What a figure shows, said once: panels of lines, bars and areas. ``on_screen`` and ``on_paper`` draw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from continuum_analysis.plots.arm_styles import ArmStyle

Kind = Literal["marked", "plain", "stepped", "points"]
"""marked: a mark at each point, joined. plain: no marks. stepped: horizontal to the next point. points: marks alone."""
LEVEL_COLOUR = "#808080"


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one series; ``low`` and ``high`` bound each point, or are empty."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    kind: Kind = "marked"
    look: ArmStyle | None = None
    """None: that of the arm of its name, among the arms of its figure."""

    @property
    def errors(self) -> tuple[list[float], list[float]] | None:
        """Lengths of the error bars below and above each point."""
        if not self.low:
            return None
        below = [max(0.0, y - low) for y, low in zip(self.y, self.low, strict=True)]
        return below, [max(0.0, high - y) for y, high in zip(self.y, self.high, strict=True)]


@dataclass(frozen=True, slots=True)
class Bar:
    """One arm's bar in a group of bars; ``low`` and ``high`` are the range over seeds."""

    group: str
    name: str
    y: float
    low: float
    high: float
    look: ArmStyle | None = None
    """As of a line; on screen only."""
    said: str = ""
    """The number in words; on screen only."""


@dataclass(frozen=True, slots=True)
class Stack:
    """One layer of stacked bars, a bar a group."""

    name: str
    groups: Sequence[str]
    heights: Sequence[float]
    colour: str
    pattern: str
    """One of ``/ \\ x . - + |``, or empty."""
    hover: str | None = None
    """What it means; on screen only."""


@dataclass(frozen=True, slots=True)
class Area:
    """One layer of stacked areas over the same ``x``."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True)
class Spans:
    """Stretches of time in rows; on paper only, for the page's timeline draws itself."""

    name: str
    rows: Sequence[float]
    starts: Sequence[float]
    lengths: Sequence[float]
    height: float
    colour: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    title: str
    x_title: str
    y_title: str
    lines: Sequence[Line] = ()
    log: bool = False
    """Logarithmic y."""
    log_x: bool = False
    x_from_zero: bool = False
    percent: bool = False
    """y is a share."""
    top: float | None = None
    """Where y ends; None: where the data end."""
    level: float | None = None
    """y of a horizontal line."""
    bars: Sequence[Bar] = ()
    dots: bool = False
    """The bars' values as marks, a row a group, on a logarithmic scale around 1: ratios of many groups."""
    stacks: Sequence[Stack] = ()
    areas: Sequence[Area] = ()
    spans: Sequence[Spans] = ()
    """Rows are counted downwards from 1."""

    @property
    def arms(self) -> list[str]:
        """Names that take their look from the arm they name."""
        return [*(line.name for line in self.lines if line.look is None), *(bar.name for bar in self.bars)]


def thin(values: Sequence[float], most: int) -> list[float]:
    """About ``most`` of the values, evenly spaced, the last one kept."""
    step = max(1, -(-len(values) // most))
    kept = list(values[::step])
    return kept if (len(values) - 1) % step == 0 else [*kept, values[-1]]
