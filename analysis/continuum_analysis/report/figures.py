"""The report's figures of programs, their queue waits and their pins, each with its data as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from continuum_traces.grouped import grouped

from continuum_analysis.compare.intervals import NO_VALUE, interval_text
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import Summary
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import arm_styles
from continuum_analysis.plots.panels import Bar, Panel
from continuum_analysis.records.demand import demand
from continuum_analysis.report.figure_kit import (
    Figure,
    Groups,
    report_styles,
    short,
    shown_runs,
    stacks,
    thin_line,
)

ENDINGS = {
    "hit": ("#117733", ""),
    "gone": ("#CC6677", "o"),
    "expired": ("#DDCC77", "/"),
    "pressure": ("#AA3377", "x"),
    "last": ("#88CCEE", "."),
    "abort": ("#6C5FC7", "-"),
    "shutdown": ("#999999", "+"),
    "held at the end": ("#999999", "\\"),
    "not recorded": ("#999999", "|"),
}
"""Colour (of Tol's muted set, which policies do not use) and pattern of each reason why a pin ends."""


def head_figure(summary: Summary) -> Figure:
    """Return the first chart of the report: mean and P95 of the JCTs by policy."""
    form = "{:,.0f}".format if (summary.arms[summary.baseline].mean("jct_mean_s") or 0.0) >= 100 else "{:.1f}".format
    bars, rows, looks = [], [], arm_styles(summary.arms)
    for name, arm in summary.arms.items():
        mean, p95 = arm.metrics["jct_mean_s"], arm.metrics["jct_p95_s"]
        for jct in (mean, p95):
            if jct is not None:
                bars.append(Bar(name, name, looks[name], jct.mean, *jct.spread, jct.text(form), thin=jct is p95))
        rows.append((name, interval_text(mean, form), interval_text(p95, form)))
    table = TextTable(("policy", "mean JCT, s", "P95, s"), rows)
    return Figure("jct-by-policy", [Panel("", "job completion time, s", "", bars=bars)], table)


def wait_figure(groups: Groups) -> Figure:
    bands = ((1, 1), (2, 5), (6, 10), (11, 20), (21, 10**9))
    lines, rows = [], []
    for policy, arm in report_styles(groups).items():
        by_turn = _waits_by_turn(groups[policy])
        if by_turn:
            means = [float(np.mean(waits)) for waits in by_turn.values()]
            lines.append(thin_line(policy, arm, list(by_turn), means))
            rows.append((policy, *(_band(by_turn, low, high) for low, high in bands)))
    headings = ("policy", "turn 1, mean s", "2 to 5", "6 to 10", "11 to 20", "later")
    panel = Panel("", "turn of its program", "mean queue wait, s", lines)
    return Figure("waits-by-turn", [panel], TextTable(headings, rows))


def _waits_by_turn(group: Sequence[Run]) -> dict[int, list[float]]:
    turns = [turn for run in group for turn in run.metrics.facts.requests]
    waits = grouped((turn.index + 1, turn.wait_s) for turn in turns if turn.wait_s is not None)
    return dict(sorted(waits.items()))


def _band(by_turn: Mapping[int, Sequence[float]], low: int, high: int) -> str:
    waits = [wait for turn, values in by_turn.items() if low <= turn <= high for wait in values]
    return short(float(np.mean(waits))) if waits else NO_VALUE


def pin_figure(summary: Summary) -> Figure:
    pinning = {name: arm.pins_by_ending for name, arm in summary.arms.items() if arm.pins_by_ending}
    layers = stacks(pinning, ENDINGS)
    reasons = [layer.name for layer in layers]
    rows = [(policy, *(str(endings.get(reason, 0)) for reason in reasons)) for policy, endings in pinning.items()]
    return Figure("pin-endings", [Panel("", "pins", "", stacks=layers)], TextTable(("policy", *reasons), rows))


def demand_figure(groups: Groups, capacity_tokens: int) -> Figure:
    lines, rows = [], []
    looks = report_styles(groups)
    for policy, run in shown_runs(groups).items():
        need = demand(run.metrics.facts.machine)
        start_s = need.times_s[0]
        x, y = [t - start_s for t in need.times_s], [tokens / capacity_tokens for tokens in need.tokens]
        lines.append(thin_line(policy, looks[policy], x, y, "stepped"))
        shares = (need.mean_tokens / capacity_tokens, need.peak_tokens / capacity_tokens)
        rows.append((policy, *(f"{share:.0%}" for share in (*shares, need.share_of_time_above(capacity_tokens)))))
    panel = Panel("", "time, s", "live context / KV pool", lines, x_from_zero=True, percent=True, level=1.0)
    table = TextTable(("policy", "mean", "peak", "share of time above 100%"), rows)
    return Figure("load-against-memory", [panel], table)
