"""Panels drawn by matplotlib as SVG and PNG, for papers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from continuum_traces.run_dir import writing
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from continuum_analysis.plots.arm_styles import ArmStyle, arm_styles
from continuum_analysis.plots.panels import LEVEL_COLOUR, Line, Panel

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.", (0, (10, 3)), (0, (10, 3, 1, 3)))
HATCHES = ("", "////", "....", "xxxx", "----", "++++")
"""Hatches of bars, in place of the dashes of lines."""
PANEL_INCHES = (4.2, 3.1)
LEGEND_MARK_INCHES, LEGEND_LETTER_INCHES = 0.5, 0.064
"""Widths in the legend: a mark with the space around it, and a letter."""
DOT_INCHES = 0.4
"""Height of a row of dots."""
RATIO_TICKS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 4, 6, 8, 12)
mpl.rcParams["svg.hashsalt"] = "continuum"  # equal data, equal bytes
mpl.rcParams["svg.fonttype"] = "none"  # text stays text: small files, searchable


def draw(panels: Sequence[Panel], inches: tuple[float, float] | None = None) -> Figure:
    """Draw the panels with one legend above them.

    Args:
        inches: the size of a figure with all panels in one column and a common x axis; None: two panels in each row.
    """
    figure, axes = _paper(panels, inches)
    styles = arm_styles(name for panel in panels for name in panel.arms)
    for panel, axis in zip(panels, axes, strict=False):
        drawn = _draw_dots if panel.dots else _draw_bars if panel.bars else _draw_panel
        drawn(axis, panel, styles)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= {name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    known = [name for name in styles if name in handles] or list(handles)
    columns = _legend_columns(known, figure.get_figwidth())
    marks = [handles[name] for name in known]
    figure.legend(marks, known, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
    return figure


def _legend_columns(names: Sequence[str], inches: float) -> int:
    """Return the number of columns that fit the width, at most four; names of arms with tiers are long."""
    for columns in (4, 3, 2):
        rows = -(-len(names) // columns)
        longest = [max(map(len, names[first : first + rows])) for first in range(0, len(names), rows)]
        if sum(LEGEND_MARK_INCHES + LEGEND_LETTER_INCHES * letters for letters in longest) <= inches:
            return columns
    return 1


def _paper(panels: Sequence[Panel], inches: tuple[float, float] | None) -> tuple[Figure, Sequence[Axes]]:
    """Return axes of equal size; panels of dots are below each other, with heights by their numbers of rows."""
    rows, columns, heights = -(-len(panels) // 2), min(2, len(panels)), None
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * rows + 0.5)
    if panels[0].dots:
        rows, columns = len(panels), 1
        heights = [DOT_INCHES * len({bar.group for bar in panel.bars}) for panel in panels]
        size = (PANEL_INCHES[0] * 2, sum(heights) + 0.7 * rows + 0.6)
    if inches is not None:
        rows, columns, size = len(panels), 1, inches
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=inches is not None, height_ratios=heights)
    return figure, list(axes.flatten())


def _line_look(style: ArmStyle) -> dict[str, Any]:
    mark, face = MARKS[style.mark], "white" if style.is_open else style.colour
    size = _mark_size(mark, style.is_open)
    look = {"color": style.colour, "marker": mark, "markersize": size, "markerfacecolor": face}
    return {**look, "linestyle": DASHES[style.dash]}


def _bar_look(style: ArmStyle) -> dict[str, Any]:
    """Return the style of bars: open bars have hatches in their colour, filled bars in white."""
    face, edge = ("none", style.colour) if style.is_open else (style.colour, "white")
    return {"facecolor": face, "edgecolor": edge, "hatch": HATCHES[style.dash], "linewidth": 0.6}


def _draw_bars(axis: Axes, panel: Panel, styles: Mapping[str, ArmStyle]) -> None:
    groups = list(dict.fromkeys(bar.group for bar in panel.bars))
    width = 0.8 / len(styles)
    for number, (name, style) in enumerate(styles.items()):
        bars = [bar for bar in panel.bars if bar.name == name]
        at = [groups.index(bar.group) + (number - (len(styles) - 1) / 2) * width for bar in bars]
        spread = [[bar.y - bar.low for bar in bars], [bar.high - bar.y for bar in bars]]
        axis.bar(at, [bar.y for bar in bars], width, yerr=spread, label=name, capsize=2, **_bar_look(style))
    axis.set_xticks(range(len(groups)), [textwrap.fill(group, 22) for group in groups], fontsize=7)
    axis.set_ylabel(panel.y_title, fontsize=8)
    axis.tick_params(axis="y", labelsize=7)
    axis.grid(visible=True, axis="y", alpha=0.3, linewidth=0.5)


def _draw_dots(axis: Axes, panel: Panel, styles: Mapping[str, ArmStyle]) -> None:
    groups = list(dict.fromkeys(bar.group for bar in panel.bars))
    for number, (name, style) in enumerate(styles.items()):
        bars = [bar for bar in panel.bars if bar.name == name]
        at = [groups.index(bar.group) + (number - (len(styles) - 1) / 2) * 0.7 / len(styles) for bar in bars]
        spread = [[bar.y - bar.low for bar in bars], [bar.high - bar.y for bar in bars]]
        look = {**_line_look(style), "linestyle": "", "elinewidth": 0.8}
        axis.errorbar([bar.y for bar in bars], at, xerr=spread, label=name, **look)
    axis.axvline(1.0, color="#7f7f7f", linewidth=0.6)
    axis.set_xscale("log")
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, 0.9), max(high, 1.1))
    shown = [tick for tick in RATIO_TICKS if min(low, 0.9) <= tick <= max(high, 1.1)]
    axis.set_xticks(shown, [f"{tick:g}" for tick in shown])
    axis.minorticks_off()
    axis.set_yticks(range(len(groups)), groups, fontsize=7)
    axis.set_ylim(len(groups) - 0.5, -0.5)
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.x_title, fontsize=8)
    axis.tick_params(axis="x", labelsize=7)
    axis.grid(visible=True, axis="x", alpha=0.3, linewidth=0.5)


def _mark_size(mark: str, is_open: bool) -> float:
    """Return the size of a mark in points; open marks are larger, so that their inside can be seen."""
    return (5.0 if is_open else 4.0) * {"*": 1.8, "P": 1.4, "X": 1.4, "^": 1.2, "v": 1.2}.get(mark, 1.0)


def _draw_panel(axis: Axes, panel: Panel, styles: Mapping[str, ArmStyle]) -> None:
    for line in panel.lines:
        _draw_line(axis, line, line.look or styles[line.name])
    if panel.areas:
        first = panel.areas[0]
        colours, names = [area.colour for area in panel.areas], [area.name for area in panel.areas]
        axis.stackplot(first.x, *(area.y for area in panel.areas), colors=colours, labels=names, zorder=2)
    _draw_stacks(axis, panel)
    _draw_spans(axis, panel)
    if panel.level is not None:
        axis.axhline(panel.level, color=LEVEL_COLOUR, linewidth=1.0, linestyle="--")
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.x_title, fontsize=8)
    axis.set_ylabel(panel.y_title, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(visible=True, alpha=0.3, linewidth=0.5)
    _scale(axis, panel)


def _scale(axis: Axes, panel: Panel) -> None:
    """Set logarithmic axes, percents, and the ends of the axes."""
    if panel.log_x:
        axis.set_xscale("log")
    elif panel.x_from_zero:
        axis.set_xlim(left=0)
    if panel.log:
        axis.set_yscale("log")
    elif not panel.spans and min((y for line in panel.lines for y in line.y), default=0.0) >= 0:
        axis.set_ylim(bottom=0, top=panel.top)
    if panel.percent:
        axis.yaxis.set_major_formatter(PercentFormatter(xmax=1.0))


def _draw_line(axis: Axes, line: Line, style: ArmStyle) -> None:
    look = _line_look(style)
    if line.kind == "marked":
        axis.errorbar(line.x, line.y, yerr=line.errors, label=line.name, linewidth=1.3, capsize=2, **look)
    elif line.kind == "points":
        smaller = {"linestyle": "", "alpha": 0.55, "markersize": 0.6 * look["markersize"]}
        axis.plot(line.x, line.y, label=line.name, **{**look, **smaller})
    else:
        steps = "steps-post" if line.kind == "stepped" else "default"
        look["marker"] = "" if len(line.x) > 1 else look["marker"]
        axis.plot(line.x, line.y, label=line.name, linewidth=1.2, drawstyle=steps, **look)


def _draw_stacks(axis: Axes, panel: Panel) -> None:
    below = dict.fromkeys((group for stack in panel.stacks for group in stack.groups), 0.0)
    for stack in panel.stacks:
        base = [below[group] for group in stack.groups]
        look: dict[str, Any] = {"color": stack.colour, "hatch": stack.pattern * 2, "edgecolor": "white", "zorder": 2}
        axis.bar(stack.groups, stack.heights, 0.5, bottom=base, label=stack.name, **look)
        below |= {group: low + height for group, low, height in zip(stack.groups, base, stack.heights, strict=True)}


def _draw_spans(axis: Axes, panel: Panel) -> None:
    for spans in panel.spans:
        look: dict[str, Any] = {"color": spans.colour, "label": spans.name, "linewidth": 0}
        axis.barh(spans.rows, spans.lengths, spans.height, left=spans.starts, **look)
    if panel.spans:
        last = max((row for spans in panel.spans for row in spans.rows), default=0.0)
        axis.set_ylim(last + 0.5, 0.5)
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.svg`` and ``name.png`` in ``folder``; equal figures give equal bytes.

    Raises:
        RunDirError: a file cannot be written.
    """
    forms: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None, "Creator": None}}, "png": {"dpi": 150}}
    made = [folder / f"{name}.{form}" for form in forms]
    for target, options in zip(made, forms.values(), strict=True):
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(target, **options)
    return made
