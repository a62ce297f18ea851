"""Figures as PNG and SVG for papers: a plotly figure drawn again by matplotlib, which needs no browser and no network.

It knows what our figures are made of: lines (also stepped, stacked or with error bars), markers, bars (stacked, or
horizontal from a base), linear and log axes, subplots, horizontal and vertical lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import plotly.graph_objects as go
from continuum_traces.run_dir import RunDirError
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from continuum_analysis.arm_styles import mark_size
from continuum_analysis.compare.runs import load_all
from continuum_analysis.report.figure_kit import OPEN
from continuum_analysis.report.page import figures_of, page_of
from continuum_analysis.report.program_timeline import timeline_stills

DASHES = {
    "solid": "-",
    "dash": (0, (6, 3)),
    "dot": (0, (1, 2)),
    "dashdot": (0, (6, 2, 1, 2)),
    "longdash": (0, (10, 3)),
    "longdashdot": (0, (10, 3, 1, 3)),
}
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "cross": "P",
    "x": "X",
    "triangle-up": "^",
    "triangle-down": "v",
    "star": "*",
}
PIXELS_PER_INCH = 110
WIDTH_INCHES = 7.0
STYLE: Any = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.4,
    "svg.hashsalt": "continuum",
    "svg.fonttype": "none",
    "lines.linewidth": 1.4,
}


def write_images(plot: go.Figure, stem: Path) -> list[Path]:
    """Draw the figure into ``stem``.png and ``stem``.svg; equal figures give equal bytes.

    Raises:
        RunDirError: a file cannot be written.
    """
    with mpl.rc_context(STYLE):
        canvas = _draw(plot)
        written = []
        for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
            file = stem.with_name(stem.name + suffix)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                canvas.savefig(file, dpi=200, metadata=metadata, bbox_inches="tight")
            except OSError as error:
                raise RunDirError(f"{file}: cannot write: {error.strerror or error}") from error
            written.append(file)
    return written


def write_report_images(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Every figure of the directories' report as an image, the timeline as a still for each policy.

    Raises:
        AnalysisError, RunDirError: nothing to show, or nowhere to write.
    """
    page = page_of(folder.name, load_all(paths), paths[0] if len(paths) == 1 else None)
    figures = [*figures_of(page), *timeline_stills(page.groups)]
    return [file for figure in figures if figure.rows for file in write_images(figure.plot, folder / figure.name)]


def _draw(plot: go.Figure) -> Canvas:
    layout = plot.layout.to_plotly_json()
    canvas = Canvas(figsize=(WIDTH_INCHES, (layout.get("height") or 360) / PIXELS_PER_INCH))
    panels: dict[str, _Panel] = {}
    for number, trace in enumerate(plot.data):
        name = trace.yaxis or "y"
        if name not in panels:
            x_name = trace.xaxis or "x"
            panels[name] = _Panel(_axes(canvas, layout, x_name, name), x_name)
        panels[name].add(trace, number, layout.get("barmode"))
    for shape in layout.get("shapes", ()):
        _line_across(panels, shape)
    for note in layout.get("annotations", ()):
        if note.get("yref") == "paper":
            canvas.text(note["x"], note["y"], _plain(note["text"]), ha=note.get("xanchor") or "center", va="bottom")
    _settle_limits(layout, panels)
    _legend(canvas, panels, 1.03 if layout.get("annotations") else 1.0)
    return canvas


def _settle_limits(layout: Any, panels: dict[str, _Panel]) -> None:
    """Axes that start at nothing, and panels of one time axis."""
    for name, panel in panels.items():
        x, y = layout.get("xaxis" + panel.x_name[1:], {}), layout.get("yaxis" + name[1:], {})
        if x.get("rangemode") == "tozero" and x.get("type") != "log":
            panel.axes.set_xlim(left=0)
        if y.get("rangemode") == "tozero" and y.get("range") is None:
            panel.axes.set_ylim(bottom=0)
        if x.get("showticklabels") is False:
            panel.axes.tick_params(labelbottom=False)
    if layout.get("xaxis", {}).get("matches"):
        longest = max(panel.axes.get_xlim()[1] for panel in panels.values())
        for panel in panels.values():
            panel.axes.set_xlim(0, longest)


def _axes(canvas: Canvas, layout: Any, x_name: str, y_name: str) -> Axes:
    x = layout.get("xaxis" + x_name[1:], {})
    y = layout.get("yaxis" + y_name[1:], {})
    left, right = x.get("domain", (0.0, 1.0))
    low, high = y.get("domain", (0.0, 1.0))
    axes = canvas.add_axes((left, low, right - left, high - low))
    for axis, settings, set_scale, set_label, limits in (
        (axes.xaxis, x, axes.set_xscale, axes.set_xlabel, axes.set_xlim),
        (axes.yaxis, y, axes.set_yscale, axes.set_ylabel, axes.set_ylim),
    ):
        if settings.get("type") == "log":
            set_scale("log")
        set_label(_plain((settings.get("title") or {}).get("text") or ""))
        if str(settings.get("tickformat", "")).endswith("%"):
            axis.set_major_formatter(mpl.ticker.PercentFormatter(xmax=1.0))
        if settings.get("range") is not None:
            limits(*settings["range"])
    axes.spines[["top", "right"]].set_visible(False)
    return axes


@dataclass(slots=True)
class _Panel:
    """One pair of axes and what is stacked in it so far."""

    axes: Axes
    x_name: str
    """Its horizontal axis in plotly's layout."""
    stacked: dict[Any, Any] = field(default_factory=dict)

    def add(self, trace: Any, number: int, barmode: str | None) -> None:
        if trace.type == "bar":
            self._bars(trace, barmode)
        elif trace.stackgroup:
            self._layer(trace)
        else:
            self._scatter(trace, number)

    def _scatter(self, trace: Any, number: int) -> None:
        x, y = list(trace.x), list(trace.y)
        colour = _colour(trace.line.color or trace.marker.color, number)
        lines, markers = "lines" in (trace.mode or "lines"), "markers" in (trace.mode or "")
        symbol = str(trace.marker.symbol or "circle")
        mark, is_open = MARKERS.get(symbol.removesuffix(OPEN), "o"), symbol.endswith(OPEN)
        style: dict[str, Any] = {
            "label": trace.name if trace.showlegend is not False else None,
            "color": colour,
            "linestyle": DASHES.get(trace.line.dash or "solid", "-") if lines else "",
            "marker": mark if markers else "",
            "markerfacecolor": "white" if is_open else colour,
            "markersize": mark_size(mark, is_open) * (1.0 if lines else 0.625),
            "alpha": trace.opacity or trace.marker.opacity or 1.0,
            "drawstyle": "steps-post" if trace.line.shape == "hv" else "default",
        }
        bars = trace.error_y
        if bars.array is not None:
            below = bars.arrayminus if bars.arrayminus is not None else bars.array
            self.axes.errorbar(x, y, yerr=np.array([list(below), list(bars.array)], dtype=float), capsize=3, **style)
        else:
            self.axes.plot(x, y, **style)

    def _layer(self, trace: Any) -> None:
        y = np.asarray(trace.y, dtype=float)
        base = self.stacked.get(trace.stackgroup, np.zeros_like(y))
        colour = _colour(trace.fillcolor or trace.line.color, 0)
        label = trace.name if trace.showlegend is not False else None
        step: Any = "post" if trace.line.shape == "hv" else None
        self.axes.fill_between(list(trace.x), base, base + y, color=colour, linewidth=0, label=label, step=step)
        self.stacked[trace.stackgroup] = base + y

    def _bars(self, trace: Any, barmode: str | None) -> None:
        label = trace.name if trace.showlegend is not False else None
        colour = _colour(trace.marker.color, 0)
        if trace.orientation == "h":
            width = trace.width if isinstance(trace.width, float | int) else 0.8
            shift = (trace.offset + width / 2) if isinstance(trace.offset, float | int) else 0.0
            rows = np.asarray(trace.y, dtype=float) + shift
            self.axes.yaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))
            self.axes.barh(rows, list(trace.x), width, left=list(trace.base), color=colour, label=label, linewidth=0)
            return
        names, heights = list(trace.x), np.asarray(trace.y, dtype=float)
        below = np.array([self.stacked.get(name, 0.0) for name in names]) if barmode == "stack" else 0.0
        hatch = _HATCHES.get(trace.marker.pattern.shape or "")
        self.axes.bar(names, heights, 0.5, bottom=below, color=colour, hatch=hatch, edgecolor="white", label=label)
        for name, height in zip(names, heights, strict=True):
            self.stacked[name] = self.stacked.get(name, 0.0) + height


_HATCHES = {"/": "//", "\\": "\\\\", "x": "xx", ".": "..", "-": "--", "+": "++", "|": "||"}


def _line_across(panels: dict[str, _Panel], shape: Any) -> None:
    """Horizontal lines, and straight ones between two points."""
    panel = panels.get(shape.get("yref", "y").split(" ")[0])
    if panel is None or shape.get("type") != "line":
        return
    line = shape.get("line", {})
    style = {
        "color": _colour(line.get("color"), 0),
        "linewidth": 1.0,
        "linestyle": DASHES.get(line.get("dash", "solid"), "-"),
    }
    if shape["y0"] == shape["y1"]:
        panel.axes.axhline(shape["y0"], **style)
    else:
        panel.axes.plot([shape["x0"], shape["x1"]], [shape["y0"], shape["y1"]], **style)


def _legend(canvas: Canvas, panels: dict[str, _Panel], above: float) -> None:
    found: dict[str, Any] = {}
    for panel in panels.values():
        handles, labels = panel.axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if found:
        columns = min(len(found), 5)
        canvas.legend(
            found.values(), found.keys(), loc="lower left", bbox_to_anchor=(0, above), ncols=columns, frameon=False
        )


def _colour(value: object, number: int) -> Any:
    """Plotly's colour names and rgba() as matplotlib's."""
    if value is None:
        return f"C{number % 10}"
    numbers = re.fullmatch(r"rgba?\(([^)]*)\)", str(value))
    if numbers is None:
        return value
    red, green, blue, *alpha = (float(part) for part in numbers.group(1).split(","))
    return (red / 255, green / 255, blue / 255, alpha[0] if alpha else 1.0)


def _plain(text: str) -> str:
    return re.sub(r"<[^>]+>", "", text)
