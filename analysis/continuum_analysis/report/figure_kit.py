"""What every figure of the report is made with: its colours, its axes, and the table that says the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from continuum_analysis.arm_styles import ArmStyle, arm_styles
from continuum_analysis.compare.runs import Run

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
OPEN = "-open"
"""Behind a symbol's name: its edge alone."""
MOST_POINTS = 1500


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    """Its file, without an ending, where it is written as an image."""
    title: str
    text: str
    """What it shows and how to read it."""
    plot: go.Figure
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The same as a table; empty where nothing was recorded."""


Groups = Mapping[str, Sequence[Run]]
"""Runs by policy, in the order of the summary."""


def shown_run(groups: Groups, policy: str) -> Run | None:
    """The policy's run of the lowest seed of all: figures of single runs show the same arrivals for each policy."""
    seed = min(run.manifest.seed for group in groups.values() for run in group)
    return next((run for run in groups[policy] if run.manifest.seed == seed), None)


def seed_note(groups: Groups) -> str:
    seeds = {run.manifest.seed for group in groups.values() for run in group}
    return f" Shown: seed {min(seeds)}, of {len(seeds)} that ran." if len(seeds) > 1 else ""


def axes(x_title: str, y_title: str) -> go.Figure:
    """An empty figure that shows on light and dark pages alike."""
    plot = go.Figure()
    style(plot)
    grid = {"gridcolor": "rgba(128,128,128,0.25)", "zeroline": False, "fixedrange": True, "automargin": True}
    plot.update_xaxes(title=x_title, **grid)
    plot.update_yaxes(title=y_title, rangemode="tozero", **grid)
    return plot


def style(plot: go.Figure) -> None:
    plot.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        margin={"l": 60, "r": 15, "t": 10, "b": 50},
        height=360,
        showlegend=True,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
        hovermode="closest",
        hoverlabel={"bgcolor": "#24292f", "bordercolor": "#24292f", "font": {"color": "#ffffff"}},
        dragmode=False,
    )


def report_styles(names: Iterable[str]) -> dict[str, ArmStyle]:
    """Styles of a report's arms; a few plain policies, whose lines carry no marks, also get a dash each."""
    found = arm_styles(names)
    if len(found) <= len(DASHES) and not any(arm.dash for arm in found.values()):
        return {name: replace(arm, dash=number) for number, (name, arm) in enumerate(found.items())}
    return found


def line_look(arm: ArmStyle) -> dict[str, Any]:
    return {"color": arm.colour, "dash": DASHES[arm.dash]}


def marker_look(arm: ArmStyle) -> dict[str, Any]:
    return {"color": arm.colour, "symbol": SYMBOLS[arm.mark] + (OPEN if arm.is_open else "")}


def add_line(
    plot: go.Figure, arm: ArmStyle, name: str, x: Sequence[float], y: Sequence[float], shape: str = "linear"
) -> None:
    plot.add_scatter(
        x=[round(float(value), 3) for value in x],
        y=[round(float(value), 5) for value in y],
        name=name,
        mode="lines+markers" if len(x) == 1 else "lines",
        line={**line_look(arm), "shape": shape},
    )


def thin(values: Sequence[float]) -> list[float]:
    """At most about 1,500 of the values, evenly spaced, the last one kept."""
    step = max(1, -(-len(values) // MOST_POINTS))
    kept = list(values[::step])
    return kept if (len(values) - 1) % step == 0 else [*kept, values[-1]]


def short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2g}"
