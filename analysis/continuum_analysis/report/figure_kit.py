"""What every figure of the report is made with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import DASHES, ArmStyle, arm_styles
from continuum_analysis.plots.panels import Kind, Line, Panel, thin

MOST_POINTS = 500
"""Of a line: about one for each pixel of its drawing."""


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    """Its file, without an ending, where it is written as an image."""
    title: str
    text: str
    """What it shows and how to read it."""
    panels: Sequence[Panel]
    table: TextTable
    """The same as a table; without rows where nothing was recorded."""
    height: int = 360
    """Pixels on the page."""


Groups = Mapping[str, Sequence[Run]]
"""Runs by arm, in the order of the summary."""


def shown_run(groups: Groups, policy: str) -> Run | None:
    """The policy's run of the lowest seed of all: figures of single runs show the same arrivals for each policy."""
    seed = min(run.manifest.seed for group in groups.values() for run in group)
    return next((run for run in groups[policy] if run.manifest.seed == seed), None)


def seed_note(groups: Groups) -> str:
    seeds = {run.manifest.seed for group in groups.values() for run in group}
    return f" Shown: seed {min(seeds)}, of {len(seeds)} that ran." if len(seeds) > 1 else ""


def report_styles(names: Iterable[str]) -> dict[str, ArmStyle]:
    """Styles of a report's arms. A few plain policies also get a dash each, as most of their lines carry no marks."""
    found = arm_styles(names)
    if len(found) <= DASHES and not any(arm.dash for arm in found.values()):
        return {name: replace(arm, dash=number) for number, (name, arm) in enumerate(found.items())}
    return found


def thin_line(name: str, look: ArmStyle, x: Sequence[float], y: Sequence[float], kind: Kind = "plain") -> Line:
    return Line(name, thin(x, MOST_POINTS), thin(y, MOST_POINTS), kind=kind, look=look)


def short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2g}"
