"""The parts that all figures of the report use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import DASHES, ArmStyle, arm_styles
from continuum_analysis.plots.drawing import HEIGHT
from continuum_analysis.plots.panels import Kind, Line, Panel, thin

MOST_POINTS = 500
"""Points of a line: about one for each pixel of its drawing."""


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    """The name of the image file, without its ending."""
    title: str
    text: str
    """What the figure shows and how to read it."""
    panels: Sequence[Panel]
    table: TextTable
    """The figure's data as a table; it has no rows if nothing was recorded."""
    height: int = HEIGHT
    """Of the axes of each panel of curves, in pixels."""


Groups = Mapping[str, Sequence[Run]]
"""Runs by arm, in the order of the summary."""


def shown_run(groups: Groups, policy: str) -> Run | None:
    """Return the policy's run of the lowest seed of all policies, so that the figure has the same arrivals for each
    policy; None if the policy did not run with that seed."""
    seed = min(run.manifest.seed for group in groups.values() for run in group)
    return next((run for run in groups[policy] if run.manifest.seed == seed), None)


def seed_note(groups: Groups) -> str:
    seeds = {run.manifest.seed for group in groups.values() for run in group}
    return f" Shown: seed {min(seeds)}, of {len(seeds)} that ran." if len(seeds) > 1 else ""


def report_styles(names: Iterable[str]) -> dict[str, ArmStyle]:
    """Return the styles of a report's arms. If there are few, each has another dash, since most lines have no marks."""
    styles = arm_styles(names)
    if len(styles) <= len(DASHES) and not any(arm.dash for arm in styles.values()):
        return {name: replace(arm, dash=number) for number, (name, arm) in enumerate(styles.items())}
    return styles


def thin_line(name: str, look: ArmStyle, x: Sequence[float], y: Sequence[float], kind: Kind = "plain") -> Line:
    return Line(name, thin(x, MOST_POINTS), thin(y, MOST_POINTS), kind=kind, look=look)


def short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2g}"
