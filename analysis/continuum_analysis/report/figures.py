"""The report's figures of programs, their queue waits and their pins, each with its data as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from continuum_analysis.compare.intervals import ENOUGH_SEEDS, NO_VALUE
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.summary import Summary
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import ArmStyle, arm_styles
from continuum_analysis.plots.panels import Bar, Panel, Stack
from continuum_analysis.records.demand import Demand, demand
from continuum_analysis.report.figure_kit import (
    Figure,
    Groups,
    cdf_figure,
    report_styles,
    seed_note,
    short,
    shown_run,
    thin_line,
)

ENDINGS = {
    "hit": ("#117733", ""),
    "expired": ("#DDCC77", "/"),
    "pressure": ("#AA3377", "x"),
    "last": ("#88CCEE", "."),
    "abort": ("#6C5FC7", "-"),
    "shutdown": ("#999999", "+"),
    "held at the end": ("#999999", "\\"),
    "not recorded": ("#999999", "|"),
}
"""Colour (of Tol's muted set, which policies do not use) and pattern of each reason why a pin ends."""


def head_figure(groups: Groups, summary: Summary) -> Figure:
    """Return the first chart of the report: mean and P95 of the JCTs by policy."""
    form = "{:,.0f}".format if (summary.arms[summary.baseline].mean("jct_mean_s") or 0.0) >= 100 else "{:.1f}".format
    looks = arm_styles(groups)
    bars = {
        (name, metric): bar
        for name, look in looks.items()
        for metric in ("jct_mean_s", "jct_p95_s")
        if (bar := _head_bar(summary, name, look, metric, form)) is not None
    }
    said = {key: bar.said for key, bar in bars.items()}
    rows = [(name, *(said.get((name, m), NO_VALUE) for m in ("jct_mean_s", "jct_p95_s"))) for name in summary.arms]
    table = TextTable(("policy", "mean JCT, s", "P95, s"), rows)
    return Figure(
        "jct-by-policy",
        "Job completion time by policy",
        f"Thick bars: the mean; thin bars: P95. Shorter is better. {_spread(len(summary.seeds))}",
        [Panel("", "job completion time, s", "", bars=list(bars.values()))],
        table,
    )


def _spread(seeds: int) -> str:
    """Say what the whiskers show."""
    if seeds >= ENOUGH_SEEDS:
        return (
            "Whiskers and brackets: 95% intervals over seeds. All policies have the same arrivals, so that their "
            "ratios are known more precisely than these intervals suggest."
        )
    return "Whiskers: the two seeds themselves." if seeds > 1 else "One seed: there is no interval."


def _head_bar(summary: Summary, name: str, look: ArmStyle, metric: str, form: Callable[[float], str]) -> Bar | None:
    value = summary.arms[name].metrics[metric]
    if value is None:
        return None
    shown = value.within(0.0, float("inf"))
    return Bar(name, name, value.mean, *shown.spread, look, shown.text(form), thin=metric != "jct_mean_s")


def jct_figure(groups: Groups) -> Figure:
    return cdf_figure(
        "jct-cdf",
        "Job completion times",
        "Share of all programs that finished within a time, all seeds together. Further left is better; a line that "
        "ends below 100% leaves programs that did not finish.",
        "job completion time, s",
        "programs",
        {policy: [p.jct_s for run in runs for p in run.metrics.facts.programs] for policy, runs in groups.items()},
        report_styles(groups),
        {policy: sum(len(run.metrics.facts.everyone) for run in runs) for policy, runs in groups.items()},
    )


def wait_figure(groups: Groups) -> Figure:
    bands = ((1, 1), (2, 5), (6, 10), (11, 20), (21, 10**9))
    lines, rows = [], []
    for policy, arm in report_styles(groups).items():
        by_turn = _waits_by_turn(groups[policy])
        if by_turn:
            means = [float(np.mean(waits)) for waits in by_turn.values()]
            lines.append(thin_line(policy, arm, list(by_turn), means))
            rows.append((policy, *(_band(by_turn, low, high) for low, high in bands)))
    return Figure(
        "waits-by-turn",
        "Waiting, turn by turn",
        "Mean time from a turn's arrival to its first scheduling, over all programs with that many turns, all seeds. "
        "Few programs have as many turns as the last points.",
        [Panel("", "turn of its program", "mean queue wait, s", lines)],
        TextTable(("policy", "turn 1, mean s", "2 to 5", "6 to 10", "11 to 20", "later"), rows),
    )


def _waits_by_turn(group: Sequence[Run]) -> dict[int, list[float]]:
    waits: dict[int, list[float]] = {}
    for turn in (turn for run in group for turn in run.metrics.facts.turns):
        if turn.wait_s is not None:
            waits.setdefault(turn.index + 1, []).append(turn.wait_s)
    return dict(sorted(waits.items()))


def _band(by_turn: Mapping[int, Sequence[float]], low: int, high: int) -> str:
    waits = [wait for turn, values in by_turn.items() if low <= turn <= high for wait in values]
    return short(float(np.mean(waits))) if waits else NO_VALUE


def pin_figure(summary: Summary) -> Figure:
    pinning = {name: arm.pins_by_ending for name, arm in summary.arms.items() if arm.pins_by_ending}
    reasons = [reason for reason in ENDINGS if any(reason in endings for endings in pinning.values())]
    stacks = [
        Stack(reason, list(pinning), [endings.get(reason, 0) for endings in pinning.values()], *ENDINGS[reason])
        for reason in reasons
    ]
    rows = [(policy, *(str(endings.get(reason, 0)) for reason in reasons)) for policy, endings in pinning.items()]
    return Figure(
        "pin-endings",
        "How pins ended",
        "Pins by the reason why they ended, all seeds together: hit (the program returned in time), expired (it did "
        "not), pressure (another request needed the room).",
        [Panel("", "pins", "", stacks=stacks)],
        TextTable(("policy", *reasons), rows),
    )


def demand_figure(groups: Groups, capacity_tokens: int) -> Figure:
    lines, rows = [], []
    for policy, arm in report_styles(groups).items():
        run = shown_run(groups, policy)
        if run is None or not run.metrics.facts.machine:
            continue
        need = demand(run.metrics.facts.machine)
        start_s = need.times_s[0]
        x, y = [t - start_s for t in need.times_s], [tokens / capacity_tokens for tokens in need.tokens]
        lines.append(thin_line(policy, arm, x, y, "stepped"))
        rows.append((policy, *_demand_cells(need, capacity_tokens)))
    return Figure(
        "load-against-memory",
        "Load against memory",
        "Tokens in the contexts of all live programs, as a share of the KV pool. Above the line at 100% some programs "
        "must wait, or their KV must be rebuilt." + seed_note(groups),
        [Panel("", "time, s", "live context / KV pool", lines, x_from_zero=True, percent=True, level=1.0)],
        TextTable(("policy", "mean", "peak", "share of time above 100%"), rows),
    )


def _demand_cells(need: Demand, capacity_tokens: int) -> tuple[str, str, str]:
    return (
        f"{need.mean_tokens / capacity_tokens:.0%}",
        f"{need.peak_tokens / capacity_tokens:.0%}",
        f"{need.share_of_time_above(capacity_tokens):.0%}",
    )
