"""The report's figures of the cache: its content, TTLs against tool times, tool times, causes of hits and misses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from continuum_traces.grouped import grouped

from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import TextTable, cause_table
from continuum_analysis.plots.arm_styles import ArmStyle
from continuum_analysis.plots.panels import LEVEL_COLOUR, Area, Line, Panel
from continuum_analysis.records.misses import CAUSES, count_causes
from continuum_analysis.records.occupancy import occupancy
from continuum_analysis.report.figure_kit import (
    SHORTEST_S,
    TOOL_HEADINGS,
    Figure,
    Groups,
    report_styles,
    short,
    shown_runs,
    stacks,
    thin_line,
    tool_times,
)

RUNNING, PINNED = "#0072B2", "#E69F00"
DIAGONAL = ArmStyle(LEVEL_COLOUR, mark=0, is_open=False, dash=1)

CAUSE_COLOURS = {
    "pinned": ("#117733", ""),
    "cached": ("#88CCEE", "."),
    "reloaded": ("#44AA99", "-"),
    "found": ("#44AA99", "/"),
    "elsewhere": ("#EE8866", "."),
    "expired": ("#DDCC77", "/"),
    "pressure": ("#AA3377", "x"),
    "dropped": ("#CC99BB", "+"),
    "guard": ("#6C5FC7", "|"),
    "no tool": ("#999933", "\\"),
    "ttl 0": ("#CC6677", "-"),
    "no pins": ("#999999", ""),
    "failed before": ("#A65628", "x"),
    "overlap": ("#6699CC", "+"),
    "rewritten": ("#BBBBBB", "/"),
    "unknown": ("#DDDDDD", "."),
}
"""Colour (mostly of Tol's muted set) and pattern of each cause."""


def occupancy_figure(groups: Groups, capacity_tokens: int) -> Figure:
    """Return a figure with one panel for each policy and a common time axis."""
    panels, rows, shown = [], [], shown_runs(groups)
    for policy, run in shown.items():
        levels = occupancy(run.metrics.facts.machine)
        times_s, running, pinned = levels.times_s, levels.running / capacity_tokens, levels.pinned / capacity_tokens
        areas = [
            Area("running", times_s.tolist(), running.tolist(), RUNNING),
            Area("pinned", times_s.tolist(), pinned.tolist(), PINNED),
        ]
        x_title = "time, s" if policy == [*shown][-1] else ""
        panels.append(Panel(policy, x_title, "", areas=areas, x_from_zero=True, percent=True, level=1.0))
        free = np.maximum(0.0, 1.0 - running - pinned)
        shares = (running.mean(), running.max(), pinned.mean(), pinned.max(), free.mean())
        rows.append((policy, *(f"{share:.0%}" for share in shares)))
    headings = ("policy", "running, mean", "running, peak", "pinned, mean", "pinned, peak", "neither, mean")
    return Figure("kv-occupancy", panels, TextTable(headings, rows), height=70)


def ttl_figure(groups: Groups) -> Figure:
    lines, rows, all_seconds = [], [], [1.0]
    for policy, look in report_styles(groups).items():
        pairs = _ttls_and_tools(groups[policy])
        if pairs:
            ttls, tools = np.maximum(np.transpose(pairs), SHORTEST_S)
            all_seconds += [*ttls.tolist(), *tools.tolist()]
            lines.append(thin_line(policy, look, tools.tolist(), ttls.tolist(), "points"))
            seconds = (np.median(ttls), np.median(tools), np.percentile(tools, 90), np.minimum(ttls, tools).mean())
            enough = f"{np.mean(ttls >= tools):.1%}"
            rows.append((policy, str(len(pairs)), enough, *(short(float(value)) for value in seconds)))
    if rows:
        ends = [min(all_seconds), max(all_seconds)]
        lines.append(Line("TTL = time until return", DIAGONAL, ends, ends, kind="plain"))
    x_title, y_title = "time until the program returned, s", "TTL chosen, s"
    headings = ("policy", "pins", "long enough", "TTL, median s", "return, median s", "return, 90% s", "held, mean s")
    panel = Panel("", x_title, y_title, lines, log=True, log_x=True)
    return Figure("ttl-against-tool-time", [panel], TextTable(headings, rows))


def _ttls_and_tools(group: Sequence[Run]) -> list[tuple[float, float]]:
    return [
        (pin.ttl_s, tool_s)
        for run in group
        for returned in run.metrics.facts.returns
        if (pin := returned.pin) and pin.ttl_s is not None and (tool_s := returned.tool_s) is not None and tool_s >= 0
    ]


def tails_figure(groups: Groups) -> Figure:
    """Return the figure of tool times from the run of one policy, since all policies have the same workload."""
    first = list(shown_runs(groups).values())[:1]
    gaps = [gap for run in first for program in run.metrics.facts.everyone for gap in program.gaps()]
    panel, rows = tool_times("", grouped((turn.tool or "(none named)", gap_s) for turn, gap_s in gaps))
    return Figure("tool-time-tails", [panel], TextTable(TOOL_HEADINGS, rows))


def miss_figure(groups: Groups) -> Figure:
    every = {policy: [r for run in group for r in run.metrics.facts.returns] for policy, group in groups.items()}
    returns = {policy: returned for policy, returned in every.items() if returned}
    shares = {
        policy: {cause: turns / len(returned) for cause, turns in count_causes(returned).items()}
        for policy, returned in returns.items()
    }
    rows = [(policy, *row) for policy, returned in returns.items() for row in cause_table(returned).rows]
    layers = stacks(shares, CAUSE_COLOURS, CAUSES)
    panel = Panel("", "share of returning turns", "", stacks=layers, percent=True)
    return Figure("misses", [panel], TextTable(("policy", *cause_table(()).headings), rows))
