"""The parts that all figures of the report use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from continuum_traces.programs.stats import ToolStats, tool_stats

from continuum_analysis.compare.intervals import NO_VALUE
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import COLOURS, DASHES, ArmStyle, arm_styles
from continuum_analysis.plots.drawing import HEIGHT
from continuum_analysis.plots.panels import Kind, Line, Panel, Stack, thin
from continuum_analysis.records.facts import RunFacts

MOST_POINTS = 500
"""Points of a line: about one for each pixel of its drawing."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the report. Its title, and how to read it, are in the page's template."""

    name: str
    """The name of the image file, without its ending."""
    panels: Sequence[Panel]
    table: TextTable
    """The figure's data as a table; it has no rows if nothing was recorded."""
    height: int = HEIGHT
    """Of the axes of each panel of curves, in pixels."""


Groups = Mapping[str, Sequence[Run]]
"""Runs by arm, in the order of the summary."""


def shown_runs(groups: Groups) -> dict[str, Run]:
    """Return by policy the run of the lowest seed of all policies, so that a figure has the same arrivals for each
    policy; without policies that did not run with that seed, or of which no turn was recorded."""
    seed = min(run.manifest.seed for group in groups.values() for run in group)
    firsts = {policy: [run for run in group if run.manifest.seed == seed] for policy, group in groups.items()}
    return {policy: first[0] for policy, first in firsts.items() if first and first[0].metrics.facts.machine}


def report_styles(names: Iterable[str]) -> dict[str, ArmStyle]:
    """Return the styles of a report's arms. If there are few, each has another dash, since most lines have no marks."""
    styles = arm_styles(names)
    if len(styles) <= len(DASHES) and not any(arm.dash for arm in styles.values()):
        return {name: replace(arm, dash=number) for number, (name, arm) in enumerate(styles.items())}
    return styles


def thin_line(name: str, look: ArmStyle, x: Sequence[float], y: Sequence[float], kind: Kind = "plain") -> Line:
    return Line(name, look, thin(x, MOST_POINTS), thin(y, MOST_POINTS), kind=kind)


SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
SHORTEST_S = 1e-3
"""The lower end of logarithmic axes; shorter times are drawn at this value."""


def cdf_figure(
    groups: Groups,
    name: str,
    x_title: str,
    what: str,
    seconds: Callable[[RunFacts], Sequence[float | None]],
    of_all: bool = False,
) -> Figure:
    """Return the distributions of times by policy, all seeds together.

    Args:
        what: the things whose times they are, in the plural.
        seconds: returns the time of each thing in a run; None: not known.
        of_all: whether the shares are of all things and the x axis is linear; otherwise they are of the things whose
            times are known, and the x axis is logarithmic.
    """
    lines, rows = [], []
    for policy, look in report_styles(groups).items():
        every = [time for run in groups[policy] for time in seconds(run.metrics.facts)]
        ordered = np.sort([time for time in every if time is not None])
        times = ordered if of_all else np.maximum(ordered, SHORTEST_S)
        number = len(every if of_all else ordered)
        if len(times):
            x, y = [float(times[0]), *times.tolist()], [0.0, *(np.arange(1, len(times) + 1) / number).tolist()]
            lines.append(thin_line(policy, look, x, y, "stepped"))
            rows.append((policy, *(_within(times, number, share) for share in SHARES)))
    y_title = f"share of {what}"
    panel = Panel("", x_title, y_title, lines, log_x=not of_all, x_from_zero=of_all, percent=True, top=1.03)
    headings = ("policy", "10% within, s", "25%", "50%", "75%", "90%", "99%", "all")
    return Figure(name, [panel], TextTable(headings, rows))


def stacks(
    counts: Mapping[str, Mapping[str, float]],
    looks: Mapping[str, tuple[str, str]],
    meanings: Mapping[str, str] | None = None,
) -> list[Stack]:
    """Return the layers of stacked bars, one bar for each policy. A kind that no policy has gets no layer.

    Args:
        counts: the number of each kind, by policy.
        looks: colour and pattern of each kind, in the order of the layers.
        meanings: what the kinds mean.
    """
    return [
        Stack(kind, {arm: each.get(kind, 0) for arm, each in counts.items()}, *look, (meanings or {}).get(kind))
        for kind, look in looks.items()
        if any(kind in each for each in counts.values())
    ]


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
