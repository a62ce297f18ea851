"""The parts that all figures of the report use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from continuum_traces.stats import ToolStats, tool_stats

from continuum_analysis.compare.intervals import NO_VALUE
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import COLOURS, DASHES, ArmStyle, arm_styles
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


def thin_line(name: str, look: ArmStyle | None, x: Sequence[float], y: Sequence[float], kind: Kind = "plain") -> Line:
    return Line(name, thin(x, MOST_POINTS), thin(y, MOST_POINTS), kind=kind, look=look)


SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SHORTEST_S = 1e-3
"""The lower end of logarithmic axes; shorter times are drawn at this value."""


def cdf_figure(
    name: str,
    title: str,
    text: str,
    x_title: str,
    what: str,
    seconds: Mapping[str, Sequence[float]],
    looks: Mapping[str, ArmStyle],
    out_of: Mapping[str, int] | None = None,
) -> Figure:
    """Return the distributions of times by policy.

    Args:
        what: the things whose times they are, in the plural.
        out_of: for each policy the number of things of which these are the times that are known, and then the x axis
            is linear; None: all of them, and the x axis is logarithmic.
    """
    lines, rows = [], []
    for policy, values in seconds.items():
        times = np.maximum(np.sort(values), 0.0 if out_of else SHORTEST_S)
        number = out_of[policy] if out_of else len(times)
        if len(times):
            x, y = [float(times[0]), *times.tolist()], [0.0, *(np.arange(1, len(times) + 1) / number).tolist()]
            lines.append(thin_line(policy, looks[policy], x, y, "stepped"))
            rows.append((policy, *(_within(times, number, share) for share in SHARES)))
    panel = Panel(
        "",
        x_title,
        f"share of {what}",
        lines,
        log_x=out_of is None,
        x_from_zero=out_of is not None,
        percent=True,
        top=1.03,
    )
    headings = ("policy", "10% within, s", "25%", "50%", "75%", "90%", "99%", "all")
    return Figure(name, title, text, [panel], TextTable(headings, rows))


TOOLS_SHOWN = 6
TOOL_HEADINGS = ("tool", "calls", "share of delay", "mean, s", "P50", "P99", "slowest tenth's share")
ALL_TOOLS = "all tools"


def tool_times(title: str, by_tool: Mapping[str, Sequence[float]]) -> tuple[Panel, list[tuple[str, ...]]]:
    """Return the distribution of the seconds that calls take, for all tools and for those with the longest total time;
    and a row of ``TOOL_HEADINGS`` for each of these."""
    calls = [(tool, 1e3 * seconds) for tool, times in by_tool.items() for seconds in times]
    shown = [*tool_stats([(ALL_TOOLS, ms) for _, ms in calls]), *tool_stats(calls)[:TOOLS_SHOWN]]
    lines = []
    for number, tool in enumerate(shown):
        ordered = np.maximum(np.sort([ms / 1e3 for name, ms in calls if tool.name in (name, ALL_TOOLS)]), SHORTEST_S)
        look = ArmStyle(COLOURS[number % len(COLOURS)], 0, False, number % len(DASHES))
        shares = (np.arange(1, len(ordered) + 1) / len(ordered)).tolist()
        lines.append(thin_line(tool.name, look, ordered.tolist(), shares))
    panel = Panel(title, "tool time, s", "share of calls", lines, log_x=True, percent=True)
    return panel, [_tool_row(tool) for tool in shown]


def _tool_row(tool: ToolStats) -> tuple[str, ...]:
    seconds = (f"{ms / 1e3:.2f}" for ms in (tool.mean_ms, tool.p50_ms, tool.p99_ms))
    slowest = f"{tool.slowest_tenth_share:.1%}" if tool.calls >= 10 else NO_VALUE
    return (tool.name, str(tool.calls), f"{tool.share_of_time:.1%}", *seconds, slowest)


def _within(times: np.ndarray, number: int, share: float) -> str:
    """Return the seconds of that share of all; a dash if fewer are known."""
    place = max(1, ceil(share * number))
    return short(float(times[place - 1])) if place <= len(times) else NO_VALUE


def short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2g}"
