"""Plots of a sweep, like the papers': a metric against an axis, a line a policy, intervals over seeds. SVG and PNG."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from continuum_traces.run_dir import RunDirError
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from continuum_analysis.arm_styles import ArmStyle, arm_styles, mark_size
from continuum_analysis.compare.intervals import ENOUGH_SEEDS
from continuum_analysis.metrics import METRICS
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.sweep.tables import GroupSummary, Sweep

MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", ":", "-.", (0, (10, 3)), (0, (10, 3, 1, 3)))
HATCHES = ("", "////", "....", "xxxx", "----", "++++")
"""Of bars, where lines have dashes."""
PANEL_INCHES = (4.2, 3.1)
LEGEND_MARK_INCHES, LEGEND_LETTER_INCHES = 0.5, 0.064
"""Widths at its font size: a mark with the space around it, a letter."""
DOT_INCHES = 0.4
"""Height of a row of dots."""
RATIO_TICKS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.5, 2, 3, 4, 6, 8, 12)
AXIS_TITLES = {
    "jps": "programs per second",
    "chunk_tokens": "chunk size, tokens",
    "max_num_seqs": "most requests at once",
    "turn_scale": "turns, times",
    "shared_prefix": "shared prefix, tokens",
    "kv_blocks": "KV blocks",
}
mpl.rcParams["svg.hashsalt"] = "continuum"  # equal data, equal bytes
mpl.rcParams["svg.fonttype"] = "none"  # text stays text: small files, searchable


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn of a sweep."""

    x: str = "jps"
    """The axis along which lines run."""
    y: tuple[str, ...] = ("jct_mean_s",)
    """Metrics; each makes panels of its own."""
    panels: tuple[str, ...] | None = None
    """Axes that make panels; None: all that vary but ``x``."""
    log: bool = False
    """Logarithmic y."""


@dataclass(frozen=True, slots=True)
class Line:
    """One policy in one panel. ``low`` and ``high``: the 95% interval, or of few seeds what they ranged over."""

    name: str
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bar:
    """One policy's bar in a group of bars; ``low`` and ``high`` are what seeds ranged over."""

    group: str
    name: str
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    log: bool = False
    steps: bool = False
    """Lines without marks: distributions, and values over time."""
    log_x: bool = False
    bars: tuple[Bar, ...] = ()
    """Bars instead of lines."""
    dots: bool = False
    """The bars' values as marks, a row a group, on a logarithmic scale around 1: ratios of many groups."""

    @property
    def names(self) -> list[str]:
        return [*(line.name for line in self.lines), *(bar.name for bar in self.bars)]


def read_plot(given: Mapping[str, Any], sweep: Sweep) -> Plot:
    """A plot's description as it stands in sweep.json.

    Raises:
        AnalysisError: a word or a metric that does not exist.
    """
    where = f"{sweep.path / 'sweep.json'}: plot"
    unknown = sorted(set(given) - set(Plot.__dataclass_fields__))
    if unknown:
        raise AnalysisError(f"{where}: {unknown[0]}: unknown; there are {', '.join(Plot.__dataclass_fields__)}")
    y = given.get("y", "jct_mean_s")
    metrics, panels = tuple([y] if isinstance(y, str) else y), given.get("panels")
    names = {metric.name for metric in METRICS}
    for name in metrics:
        if name not in names:
            raise AnalysisError(f"{where}: y: {name}: no such metric; docs/metrics.md lists them")
    chosen = None if panels is None else tuple(panels)
    return Plot(str(given.get("x", "jps")), metrics, chosen, bool(given.get("log", False)))


def sweep_panels(sweep: Sweep, plot: Plot) -> list[Panel]:
    """Panels with something in them."""
    others = plot.panels if plot.panels is not None else tuple(axis for axis in sweep.varying() if axis != plot.x)
    keys = list(dict.fromkeys(_key(group, others) for group in sweep.groups))
    panels = []
    for metric in plot.y:
        for key in keys:
            groups = [group for group in sweep.groups if _key(group, others) == key]
            lines = tuple(line for policy in sweep.policies if (line := _line(policy, metric, groups, plot.x)).x)
            if lines:
                title = ", ".join(part for part in key if part)
                x_title = AXIS_TITLES.get(plot.x, plot.x)
                panels.append(Panel(title, x_title, _axis_title(metric), lines, plot.log))
    return panels


def _key(group: GroupSummary, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(_named(axis, group.axes[axis]) for axis in axes if axis in group.axes)


def _named(axis: str, value: Any) -> str:
    """GPUs, models and workloads speak for themselves; numbers need their axis' name."""
    return f"{axis} {value}" if isinstance(value, int | float) else str(value)


def _line(policy: str, metric: str, groups: Sequence[GroupSummary], x: str) -> Line:
    line = Line(policy)
    there = [group for group in groups if policy in group.policies]
    for group in sorted(there, key=lambda one: float(one.axes.get(x, 0))):
        found, seeds = group.policies[policy].metrics[metric], list(group.by_seed(policy, metric).values())
        if found is not None:
            few = len(seeds) < ENOUGH_SEEDS
            low, high = (min(seeds), max(seeds)) if few else found.bounds or (found.mean, found.mean)
            line.x.append(float(group.axes.get(x, 0)))
            line.y.append(found.mean)
            line.low.append(low)
            line.high.append(high)
    return line


def _axis_title(metric: str) -> str:
    words = {
        "jct_mean_s": "mean JCT",
        "throughput_jobs_per_s": "programs finished",
        "throughput_steps_per_min": "steps",
        "bubble_mean_s": "time in the queue per program",
    }
    unit = next(m.unit for m in METRICS if m.name == metric)
    name = words.get(metric) or metric.removesuffix("_s").replace("jct_p", "JCT, P").replace("_", " ")
    return f"{name}, {unit}" if unit else name


def draw(panels: Sequence[Panel]) -> Figure:
    """The panels, two beside each other, one legend above."""
    figure, axes = _paper(panels)
    styles = arm_styles(name for panel in panels for name in panel.names)
    for panel, axis in zip(panels, axes, strict=False):
        drawn = _draw_dots if panel.dots else _draw_bars if panel.bars else _draw_panel
        drawn(axis, panel, styles)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    handles: dict[str, Any] = {}
    for axis in axes:
        handles |= {name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    known = [name for name in styles if name in handles]
    columns = _legend_columns(known, figure.get_figwidth())
    marks = [handles[name] for name in known]
    figure.legend(marks, known, loc="outside upper center", ncols=columns, frameon=False, fontsize=8)
    return figure


def _legend_columns(names: Sequence[str], inches: float) -> int:
    """As many as fit the width, up to four; names of arms with tiers are long."""
    for columns in (4, 3, 2):
        rows = -(-len(names) // columns)
        longest = [max(map(len, names[first : first + rows])) for first in range(0, len(names), rows)]
        if sum(LEGEND_MARK_INCHES + LEGEND_LETTER_INCHES * letters for letters in longest) <= inches:
            return columns
    return 1


def _paper(panels: Sequence[Panel]) -> tuple[Figure, Sequence[Axes]]:
    """Axes of equal size, two beside each other; of panels of dots one under the other, each as high as it has rows."""
    if panels[0].dots:
        rows = [len({bar.group for bar in panel.bars}) for panel in panels]
        inches = [DOT_INCHES * number for number in rows]
        size = (PANEL_INCHES[0] * 2, sum(inches) + 0.7 * len(panels) + 0.6)
        figure = Figure(figsize=size, layout="constrained")
        return figure, list(figure.subplots(len(panels), squeeze=False, height_ratios=inches).flatten())
    columns = min(2, len(panels))
    high = -(-len(panels) // columns)
    figure = Figure(figsize=(PANEL_INCHES[0] * columns, PANEL_INCHES[1] * high + 0.5), layout="constrained")
    return figure, list(figure.subplots(high, columns, squeeze=False).flatten())


def _line_look(style: ArmStyle) -> dict[str, Any]:
    mark, face = MARKS[style.mark], "white" if style.is_open else style.colour
    size = mark_size(mark, style.is_open)
    look = {"color": style.colour, "marker": mark, "markersize": size, "markerfacecolor": face}
    return {**look, "linestyle": DASHES[style.dash]}


def _bar_look(style: ArmStyle) -> dict[str, Any]:
    """Open bars are hatched in their colour, filled ones of a second dash in white."""
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


def _draw_panel(axis: Axes, panel: Panel, styles: Mapping[str, ArmStyle]) -> None:
    for line in panel.lines:
        look = _line_look(styles[line.name])
        if panel.steps:
            axis.plot(line.x, line.y, label=line.name, **{**look, "marker": "", "linewidth": 1.2})
            continue
        below = [max(0.0, y - low) for y, low in zip(line.y, line.low, strict=True)]
        above = [max(0.0, high - y) for y, high in zip(line.y, line.high, strict=True)]
        axis.errorbar(line.x, line.y, yerr=[below, above], label=line.name, linewidth=1.3, capsize=2, **look)
    axis.set_title(panel.title, fontsize=9)
    axis.set_xlabel(panel.x_title, fontsize=8)
    axis.set_ylabel(panel.y_title, fontsize=8)
    axis.tick_params(labelsize=7)
    axis.grid(visible=True, alpha=0.3, linewidth=0.5)
    if panel.log_x:
        axis.set_xscale("log")
    if panel.log:
        axis.set_yscale("log")
    elif min((y for line in panel.lines for y in line.y), default=0.0) >= 0:
        axis.set_ylim(bottom=0)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """``name.svg`` and ``name.png`` in ``folder``."""
    made = []
    for suffix, options in (("svg", {"metadata": {"Date": None, "Creator": None}}), ("png", {"dpi": 150})):
        target = folder / f"{name}.{suffix}"
        try:
            figure.savefig(target, **options)
        except OSError as error:
            raise RunDirError(f"{target}: cannot write: {error.strerror}") from error
        made.append(target)
    return made
