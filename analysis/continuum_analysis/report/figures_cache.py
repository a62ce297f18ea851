"""The report's figures of the cache: its content, TTLs against tool times, tool times, causes of hits and misses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from continuum_traces.grouped import grouped

from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import TextTable, cause_table
from continuum_analysis.plots.arm_styles import ArmStyle
from continuum_analysis.plots.panels import Area, Bar, Line, Panel
from continuum_analysis.records.misses import CAUSES, count_causes
from continuum_analysis.records.occupancy import Array, occupancy
from continuum_analysis.report.figure_kit import (
    ALL_TOOLS,
    SHORTEST_S,
    TOOL_HEADINGS,
    TOOLS_SHOWN,
    Figure,
    Groups,
    report_styles,
    short,
    shown_runs,
    stacks,
    tool_times,
)

RUNNING, PINNED = "#0072B2", "#E69F00"
BINS = 100
"""Equal spans of time in the figure of the KV pool; a divisor of ``INSTANTS``."""
PEAK = ArmStyle("var(--ink)", mark=0, is_open=False, dash=0)
RETURN, RETURN_LOOK = "time until the return", ArmStyle("var(--ink)", mark=6, is_open=False, dash=0)
QUANTILES = (10, 50, 90)
UNNAMED = "(none named)"

CAUSE_COLOURS = {
    "pinned": ("#117733", ""),
    "cached": ("#88CCEE", "."),
    "reloaded": ("#44AA99", "-"),
    "found": ("#44AA99", "/"),
    "elsewhere": ("#EE8866", "."),
    "state": ("#CC6677", "o"),
    "expired": ("#DDCC77", "/"),
    "pressure": ("#AA3377", "x"),
    "dropped": ("#CC99BB", "+"),
    "guard": ("#6C5FC7", "|"),
    "no tool": ("#997700", "\\"),
    "ttl 0": ("#CC6677", "-"),
    "no pins": ("#999999", ""),
    "failed before": ("#A65628", "x"),
    "overlap": ("#6699CC", "+"),
    "left": ("#EE3377", "|"),
    "rewritten": ("#BBBBBB", "/"),
    "unknown": ("#DDDDDD", "."),
}
"""Colour (mostly of Tol's muted set) and pattern of each cause."""


def occupancy_figure(groups: Groups, capacity_tokens: int) -> Figure:
    """Return a figure with a panel for each policy and a common time axis: means and peaks of ``BINS`` equal spans."""
    panels, rows, shown = [], [], shown_runs(groups)
    for policy, run in shown.items():
        levels = occupancy(run.metrics.facts.machine)
        running, pinned = levels.running / capacity_tokens, levels.pinned / capacity_tokens
        times_s = _mean_by_bin(levels.times_s)
        areas = [
            Area("running", times_s, _mean_by_bin(running), RUNNING),
            Area("pinned", times_s, _mean_by_bin(pinned), PINNED),
        ]
        peaks = (running + pinned).reshape(BINS, -1).max(axis=1).tolist()
        lines = [Line("highest in a span", PEAK, times_s, peaks, kind="plain")]
        x_title = "time, s" if policy == [*shown][-1] else ""
        panels.append(Panel(policy, x_title, "", lines, areas=areas, x_from_zero=True, percent=True, level=1.0))
        free = np.maximum(0.0, 1.0 - running - pinned)
        shares = (running.mean(), running.max(), pinned.mean(), pinned.max(), free.mean())
        rows.append((policy, *(f"{share:.0%}" for share in shares)))
    headings = ("policy", "running, mean", "running, peak", "pinned, mean", "pinned, peak", "neither, mean")
    return Figure("kv-occupancy", panels, TextTable(headings, rows), height=130)


def _mean_by_bin(values: Array) -> list[float]:
    return [float(mean) for mean in values.reshape(BINS, -1).mean(axis=1)]


def ttl_figure(groups: Groups) -> Figure:
    """Return rows by tool: the TTLs of each policy's pins beside the time until the programs returned, each as its
    median between its 10th and 90th percentile."""
    bars, rows, looks = [], [], report_styles(groups)
    pins = {policy: _ttls_and_tools(group) for policy, group in groups.items()}
    calls = Counter(pin[0] for of_policy in pins.values() for pin in of_policy)
    for tool in [ALL_TOOLS, *(name for name, _ in calls.most_common(TOOLS_SHOWN - 1))] if calls else []:
        here = {policy: [pin for pin in each if tool in (pin[0], ALL_TOOLS)] for policy, each in pins.items()}
        bars.append(_spread(tool, RETURN, RETURN_LOOK, [pin[2] for each in here.values() for pin in each]))
        for policy, each in here.items():
            if each:
                ttls, returns = np.array([pin[1] for pin in each]), np.array([pin[2] for pin in each])
                bars.append(_spread(tool, policy, looks[policy], ttls.tolist()))
                seconds = (*np.percentile(ttls, QUANTILES), *np.percentile(returns, QUANTILES))
                held = float(np.minimum(ttls, returns).mean())
                shown = (short(float(value)) for value in (*seconds, held))
                rows.append((tool, policy, str(len(each)), f"{np.mean(ttls >= returns):.1%}", *shown))
    headings = ["tool", "policy", "pins", "long enough", "TTL, 10% s", "median", "90%"]
    headings += ["return, 10% s", "median", "90%", "held, mean s"]
    return Figure("ttl-against-tool-time", [Panel("", "seconds", "", bars=bars, dots=True)], TextTable(headings, rows))


def _spread(tool: str, name: str, look: ArmStyle, seconds: Sequence[float]) -> Bar:
    low, median, high = (float(value) for value in np.percentile(np.maximum(seconds, SHORTEST_S), QUANTILES))
    return Bar(tool, name, look, median, low, high)


def _ttls_and_tools(group: Sequence[Run]) -> list[tuple[str, float, float]]:
    """Return for each pin whose program returned: the tool, the TTL and the time until the return, in seconds."""
    return [
        (returned.before.tool or UNNAMED, pin.ttl_s, tool_s)
        for run in group
        for returned in run.metrics.facts.returns
        if (pin := returned.pin) and pin.ttl_s is not None and (tool_s := returned.tool_s) is not None and tool_s >= 0
    ]


def tails_figure(groups: Groups) -> Figure:
    """Return the figure of tool times from the run of one policy, since all policies have the same workload."""
    first = list(shown_runs(groups).values())[:1]
    gaps = [gap for run in first for program in run.metrics.facts.everyone for gap in program.gaps()]
    panel, rows = tool_times("", grouped((turn.tool or UNNAMED, gap_s) for turn, gap_s in gaps))
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
