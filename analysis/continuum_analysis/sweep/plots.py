"""The plots of a sweep, as in the papers: a metric against an axis, with a line for each policy and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from continuum_traces.names import near
from continuum_traces.typed import FieldError, from_json

from continuum_analysis.compare.runs import SWEEP
from continuum_analysis.metrics import METRICS
from continuum_analysis.plots.arm_styles import ArmStyle, arm_styles
from continuum_analysis.plots.panels import Line, Panel
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.slo import read_slo
from continuum_analysis.sweep.capacity import AT_A_TIME, capacity_of
from continuum_analysis.sweep.tables import GroupSummary, Sweep, point_text

AXIS_TITLES = {
    "jps": "programs per second",
    "concurrency": "agents at a time",
    "chunk_tokens": "chunk size, tokens",
    "max_num_seqs": "most requests at once",
    "turn_scale": "turns, times",
    "shared_prefix": "shared prefix, tokens",
    "kv_blocks": "KV blocks",
}


@dataclass(frozen=True, slots=True)
class Plot:
    """The description of a sweep's plot."""

    x: str = "jps"
    """The axis along which lines run."""
    y: tuple[str, ...] = ("jct_mean_s",)
    """Metrics. Each metric has its own panels."""
    panels: tuple[str, ...] | None = None
    """Axes whose values have their own panels; None: all axes that vary, except ``x``."""
    log: bool = False
    """Whether the y axis is logarithmic."""
    slo: str | None = None
    """A service level. The sweep then says how many programs at a time keep it (``capacity``)."""


def read_plot(given: Mapping[str, Any], sweep: Sweep) -> Plot:
    """Read the description of a plot from sweep.json.

    Raises:
        AnalysisError: a field or a metric does not exist.
    """
    try:
        plot = from_json(Plot, given)
    except FieldError as error:
        raise AnalysisError(f"{sweep.path / SWEEP}: plot: {error}") from error
    names = {metric.name for metric in METRICS}
    for name in plot.y:
        if name not in names:
            hint = f"{near(name, names)}docs/metrics.md lists them"
            raise AnalysisError(f"{sweep.path / SWEEP}: plot: y: {name}: no such metric; {hint}")
    return plot


def sweep_panels(sweep: Sweep, plot: Plot) -> list[Panel]:
    """Return the panels of the plot that are not empty."""
    others = plot.panels if plot.panels is not None else tuple(axis for axis in sweep.varying() if axis != plot.x)
    titles = dict.fromkeys(point_text(group.axes, others) for group in sweep.groups)
    panels, looks = [], arm_styles(sweep.policies)
    capacity = capacity_of(sweep)
    stems = capacity.stems() if capacity is not None and plot.x == AT_A_TIME else []
    limits = {level.metric: level.limit for level in read_slo(plot.slo).levels} if plot.slo else {}
    for metric in plot.y:
        for title in titles:
            groups = [group for group in sweep.groups if point_text(group.axes, others) == title]
            lines = [line for policy, look in looks.items() if (line := _line(policy, look, metric, groups, plot.x)).x]
            if lines:
                x_title = AXIS_TITLES.get(plot.x, plot.x)
                level = limits.get(metric)
                panels.append(Panel(title, x_title, _axis_title(metric), lines, plot.log, level=level, stems=stems))
    return panels


def _line(policy: str, look: ArmStyle, metric: str, groups: Sequence[GroupSummary], x: str) -> Line:
    """Return a line with a point for each group, and its 95% interval, or with few seeds the range over them."""
    points = []
    there = [group for group in groups if policy in group.policies]
    for group in sorted(there, key=lambda group: float(group.axes.get(x, 0))):
        value = group.policies[policy].metrics[metric]
        if value is not None:
            points.append((float(group.axes.get(x, 0)), value.mean, *value.spread))
    x_values, y, low, high = (tuple(point[place] for point in points) for place in range(4))
    return Line(policy, look, x_values, y, low, high)


def _axis_title(metric: str) -> str:
    words = {
        "jct_mean_s": "mean JCT",
        "ttft_p50_s": "time to first token, median",
        "ttft_p95_s": "time to first token, P95",
        "throughput_jobs_per_s": "programs finished",
        "throughput_steps_per_min": "steps",
        "bubble_mean_s": "time in the queue per program",
        "throughput_output_tokens_per_s": "output tokens",
        "newcomer_ttft_p95_s": "newcomers' first token, P95",
        "output_tokens_s_p25": "output tokens per agent, P25",
    }
    unit = next(m.unit for m in METRICS if m.name == metric)
    name = words.get(metric) or metric.removesuffix("_s").replace("jct_p", "JCT, P").replace("_", " ")
    return f"{name}, {unit}" if unit else name
