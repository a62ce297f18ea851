"""The report's figures, each with the table that says the same to those who do not see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from continuum_analysis.compare import Run
from continuum_analysis.demand import Demand, demand

COLOURS = ("#7f7f7f", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#B8A800")
"""Okabe and Ito's palette, grey first: told apart by colour-blind readers. A policy keeps its colour throughout."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")

ENDINGS = {
    "hit": ("#117733", ""),
    "expired": ("#DDCC77", "/"),
    "pressure": ("#882255", "x"),
    "last": ("#88CCEE", "."),
    "abort": ("#332288", "-"),
    "shutdown": ("#999999", "+"),
    "held at the end": ("#999999", "\\"),
    "not recorded": ("#999999", "|"),
}
"""Colour (Tol's muted set, none of a policy's) and pattern of each way a pin ends."""

MOST_POINTS = 1500


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    text: str
    """What it shows and how to read it."""
    plot: go.Figure
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """The same as a table; empty where nothing was recorded."""


Groups = Mapping[str, Sequence[Run]]
"""Runs by policy, in the order of the summary."""


def all_figures(groups: Groups, capacity_tokens: int | None) -> list[Figure]:
    made = [jct_figure(groups), bubble_figure(groups), wait_figure(groups), pin_figure(groups)]
    if capacity_tokens:
        made.append(demand_figure(groups, capacity_tokens))
    return made


def shown_run(groups: Groups, policy: str) -> Run | None:
    """The policy's run of the lowest seed of all: figures of single runs show the same arrivals for each policy."""
    seed = min(run.manifest.seed for group in groups.values() for run in group)
    return next((run for run in groups[policy] if run.manifest.seed == seed), None)


def _seed_note(groups: Groups) -> str:
    seeds = {run.manifest.seed for group in groups.values() for run in group}
    return f" Shown: seed {min(seeds)}, of {len(seeds)} that ran." if len(seeds) > 1 else ""


def jct_figure(groups: Groups) -> Figure:
    plot = _plot("job completion time, s", "share of programs")
    plot.update_xaxes(rangemode="tozero")
    rows = []
    for number, (policy, group) in enumerate(groups.items()):
        times = np.sort([p.jct_s for run in group for p in run.metrics.facts.programs])
        if len(times):
            shares = np.arange(1, len(times) + 1) / len(times)
            x, y = [float(times[0]), *times.tolist()], [0.0, *shares.tolist()]
            _line(plot, number, policy, _thin(x), _thin(y), shape="hv")
            rows.append((policy, *(_short(np.percentile(times, q)) for q in (10, 25, 50, 75, 90, 100))))
    return Figure(
        "Job completion times",
        "Share of programs finished within a time, all seeds together. Further left is better.",
        plot,
        ("policy", "10% within, s", "25%", "50%", "75%", "90%", "all"),
        tuple(rows),
    )


def bubble_figure(groups: Groups) -> Figure:
    plot = _plot("program, in order of arrival", "time in the queue, s")
    rows = []
    for number, policy in enumerate(groups):
        run = shown_run(groups, policy)
        waits = [(i, p.bubble_s) for i, p in enumerate(run.metrics.facts.programs, 1)] if run else []
        known = [(i, wait) for i, wait in waits if wait is not None]
        if known:
            _line(plot, number, policy, [i for i, _ in known], [wait for _, wait in known])
            quarters = np.array_split([wait for _, wait in known], 4)
            rows.append((policy, *(_short(q.mean()) if len(q) else "-" for q in quarters), _short(_top(known))))
    return Figure(
        "Waiting, program by program",
        "Seconds each program spent in the queue, summed over its turns, in order of arrival." + _seed_note(groups),
        plot,
        ("policy", "first quarter, mean s", "second", "third", "last", "longest, s"),
        tuple(rows),
    )


def _top(points: Sequence[tuple[int, float]]) -> float:
    return max(value for _, value in points)


def wait_figure(groups: Groups) -> Figure:
    plot = _plot("turn of its program", "mean queue wait, s")
    bands = ((1, 1), (2, 5), (6, 10), (11, 20), (21, 10**9))
    rows = []
    for number, (policy, group) in enumerate(groups.items()):
        by_turn = _waits_by_turn(group)
        if by_turn:
            _line(plot, number, policy, list(by_turn), [float(np.mean(waits)) for waits in by_turn.values()])
            rows.append((policy, *(_band(by_turn, low, high) for low, high in bands)))
    return Figure(
        "Waiting, turn by turn",
        "Mean time from a turn's arrival to its first scheduling, over all programs that got so far, all seeds. "
        "The last points rest on few programs.",
        plot,
        ("policy", "turn 1, mean s", "2 to 5", "6 to 10", "11 to 20", "later"),
        tuple(rows),
    )


def _waits_by_turn(group: Sequence[Run]) -> dict[int, list[float]]:
    waits: dict[int, list[float]] = {}
    for turn in (turn for run in group for turn in run.metrics.facts.turns):
        if turn.wait_s is not None:
            waits.setdefault(turn.index + 1, []).append(turn.wait_s)
    return dict(sorted(waits.items()))


def _band(by_turn: Mapping[int, Sequence[float]], low: int, high: int) -> str:
    waits = [wait for turn, values in by_turn.items() if low <= turn <= high for wait in values]
    return _short(float(np.mean(waits))) if waits else "-"


def pin_figure(groups: Groups) -> Figure:
    plot = _plot("", "pins")
    counts = {policy: _endings(group) for policy, group in groups.items()}
    pinning = {policy: endings for policy, endings in counts.items() if endings}
    reasons = [reason for reason in ENDINGS if any(reason in endings for endings in pinning.values())]
    for reason in reasons:
        colour, pattern = ENDINGS[reason]
        plot.add_bar(
            x=list(pinning),
            y=[endings.get(reason, 0) for endings in pinning.values()],
            name=reason,
            marker={"color": colour, "pattern": {"shape": pattern, "size": 6, "solidity": 0.2, "fillmode": "overlay"}},
        )
    plot.update_layout(barmode="stack", bargap=0.5)
    return Figure(
        "How pins ended",
        "Holds of a finished turn's KV by what ended them, all seeds together: hit (the next turn found it), expired "
        "(held in vain), pressure (given up for room).",
        plot,
        ("policy", *reasons),
        tuple((policy, *(str(endings.get(r, 0)) for r in reasons)) for policy, endings in pinning.items()),
    )


def _endings(group: Sequence[Run]) -> dict[str, int]:
    total: dict[str, int] = {}
    for run in group:
        for reason, count in run.metrics.pins_by_ending.items():
            total[reason] = total.get(reason, 0) + count
    return total


def demand_figure(groups: Groups, capacity_tokens: int) -> Figure:
    plot = _plot("time, s", "live context / KV pool")
    rows = []
    for number, policy in enumerate(groups):
        run = shown_run(groups, policy)
        if run is None or not run.metrics.facts.everyone:
            continue
        need = demand(run.metrics.facts.everyone)
        start_s = need.times_s[0]
        x, y = [t - start_s for t in need.times_s], [tokens / capacity_tokens for tokens in need.tokens]
        _line(plot, number, policy, _thin(x), _thin(y), shape="hv")
        rows.append((policy, *_demand_cells(need, capacity_tokens)))
    plot.update_yaxes(tickformat=".0%")
    plot.add_hline(y=1.0, line={"color": "#808080", "width": 2})
    return Figure(
        "Load against memory",
        "Tokens in the contexts of all live programs, as a share of the KV pool. Above the line at 100% something "
        "must wait or be rebuilt." + _seed_note(groups),
        plot,
        ("policy", "mean", "peak", "share of time above 100%"),
        tuple(rows),
    )


def _demand_cells(need: Demand, capacity_tokens: int) -> tuple[str, str, str]:
    return (
        f"{need.mean_tokens / capacity_tokens:.0%}",
        f"{need.peak_tokens / capacity_tokens:.0%}",
        f"{need.share_of_time_above(capacity_tokens):.0%}",
    )


def _plot(x_title: str, y_title: str) -> go.Figure:
    plot = go.Figure()
    plot.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 13},
        margin={"l": 60, "r": 15, "t": 10, "b": 50},
        height=360,
        showlegend=True,
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        hovermode="closest",
        dragmode=False,
    )
    grid = {"gridcolor": "rgba(128,128,128,0.25)", "zeroline": False, "fixedrange": True, "automargin": True}
    plot.update_xaxes(title=x_title, **grid)
    plot.update_yaxes(title=y_title, rangemode="tozero", **grid)
    return plot


def _line(
    plot: go.Figure, number: int, name: str, x: Sequence[float], y: Sequence[float], shape: str = "linear"
) -> None:
    plot.add_scatter(
        x=[round(float(value), 3) for value in x],
        y=[round(float(value), 5) for value in y],
        name=name,
        mode="lines+markers" if len(x) == 1 else "lines",
        line={"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)], "shape": shape},
    )


def _thin(values: Sequence[float]) -> list[float]:
    """At most about 1,500 of the values, evenly spaced, the last one kept."""
    step = max(1, -(-len(values) // MOST_POINTS))
    kept = list(values[::step])
    return kept if (len(values) - 1) % step == 0 else [*kept, values[-1]]


def _short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2g}"
