"""Panels drawn by plotly, for a page that a browser shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from continuum_analysis.plots.arm_styles import ArmStyle
from continuum_analysis.plots.panels import LEVEL_COLOUR, Area, Line, Panel, Stack

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")
LAYOUT: dict[str, Any] = {
    "template": "none",
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "font": {"family": "system-ui, sans-serif", "size": 13},
    "margin": {"l": 60, "r": 15, "t": 10, "b": 50},
    "showlegend": True,
    "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "traceorder": "normal"},
    "hovermode": "closest",
    "hoverlabel": {"bgcolor": "#24292f", "bordercolor": "#24292f", "font": {"color": "#ffffff"}},
    "dragmode": False,
    "barmode": "stack",
    "bargap": 0.5,
}
"""Shows on light and dark pages alike."""
GRID = {"gridcolor": "rgba(128,128,128,0.25)", "zeroline": False, "fixedrange": True, "automargin": True}


def plotly_figure(panels: Sequence[Panel], height: int) -> go.Figure:
    """The panels one under the other; their lines must have a look."""
    number = max(1, len(panels))
    titles = [panel.title for panel in panels] if any(panel.title for panel in panels) else None
    plot = make_subplots(number, 1, shared_xaxes=True, vertical_spacing=0.3 / number, subplot_titles=titles)
    plot.update_annotations(x=0, xanchor="left", font={"size": 13})
    plot.update_layout(height=height, **LAYOUT)
    for row, panel in enumerate(panels, 1):
        place = {"row": row, "col": 1}
        plot.add_traces([*_traces(panel, row)], rows=row, cols=1)
        if panel.level is not None:
            plot.add_hline(y=panel.level, line={"color": LEVEL_COLOUR, "width": 1, "dash": "dash"}, **place)
        plot.update_xaxes(title=panel.x_title, **_axis(panel.log_x, panel.x_from_zero), **place)
        ticks = ("~%" if panel.log else ".0%") if panel.percent else None
        limits = None if panel.top is None else [0, panel.top]
        few = 4 if number > 1 else None
        y_axis = _axis(panel.log, not panel.log)
        plot.update_yaxes(title=panel.y_title, tickformat=ticks, range=limits, nticks=few, **y_axis, **place)
    return plot


def _axis(log: bool, from_zero: bool) -> dict[str, Any]:
    return {**GRID, "rangemode": "tozero" if from_zero else "normal"} | ({"type": "log", "dtick": 1} if log else {})


def _traces(panel: Panel, row: int) -> Iterable[Any]:
    for line in panel.lines:
        if line.look is not None:
            yield _line(line, line.look)
    for area in panel.areas:
        yield _area(area, row)
    for stack in panel.stacks:
        yield _stack(stack)


def _line(line: Line, look: ArmStyle) -> go.Scatter:
    joined, marked = line.kind != "points", line.kind in ("marked", "points") or len(line.x) == 1
    trace = go.Scatter(x=_short(line.x), y=_short(line.y), name=line.name, hovertemplate=line.hover)
    trace.mode = "+".join(["lines"] * joined + ["markers"] * marked)
    if joined:
        trace.line = {"color": look.colour, "dash": DASHES[look.dash]}
        trace.line.shape = "hv" if line.kind == "stepped" else "linear"
    if line.kind in ("marked", "points"):
        size, opacity = (8, None) if joined else (6, 0.55)
        symbol = SYMBOLS[look.mark] + ("-open" if look.is_open else "")
        trace.marker = {"color": look.colour, "symbol": symbol, "size": size, "opacity": opacity}
    if line.errors is not None:
        below, above = map(_short, line.errors)
        trace.error_y = {"type": "data", "symmetric": False, "array": above, "arrayminus": below}
        trace.error_y.update(thickness=1, width=4)
    return trace


def _area(area: Area, row: int) -> go.Scatter:
    return go.Scatter(
        x=_short(area.x),
        y=_short(area.y),
        name=area.name,
        legendgroup=area.name,
        showlegend=row == 1,
        mode="lines",
        line={"width": 0, "color": area.colour},
        fillcolor=area.colour,
        stackgroup=f"row {row}",
        hovertemplate=area.hover,
    )


def _stack(stack: Stack) -> go.Bar:
    pattern = {"shape": stack.pattern, "size": 6, "solidity": 0.2, "fillmode": "overlay"}
    return go.Bar(
        x=list(stack.groups),
        y=_short(stack.heights),
        name=stack.name,
        marker={"color": stack.colour, "pattern": pattern},
        hovertemplate=stack.hover,
    )


def _short(values: Sequence[float]) -> list[float]:
    """Numbers of at most six digits: pages stay small."""
    return [float(f"{value:.6g}") for value in values]
