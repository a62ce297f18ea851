"""The report's figures of the cache: what fills it, TTLs against tool times, tails, why returns hit or missed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from plotly.subplots import make_subplots

from continuum_analysis.arm_styles import COLOURS
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import cause_table
from continuum_analysis.records.misses import CAUSES, Cause, count_causes
from continuum_analysis.records.occupancy import Occupancy, occupancy
from continuum_analysis.report.figure_kit import (
    DASHES,
    Figure,
    Groups,
    axes,
    marker_look,
    report_styles,
    seed_note,
    short,
    shown_run,
    style,
    thin,
)

RUNNING, PINNED = "#0072B2", "#E69F00"
SHORTEST_S = 1e-3
"""Log axes start here: shorter times are drawn there."""
TOOLS_SHOWN = 6

CAUSE_COLOURS: Mapping[Cause, tuple[str, str]] = {
    "pinned": ("#117733", ""),
    "cached": ("#88CCEE", "."),
    "reloaded": ("#44AA99", "-"),
    "elsewhere": ("#EE8866", "."),
    "expired": ("#DDCC77", "/"),
    "pressure": ("#882255", "x"),
    "dropped": ("#AA4499", "+"),
    "guard": ("#332288", "|"),
    "no tool": ("#999933", "\\"),
    "ttl 0": ("#CC6677", "-"),
    "no pins": ("#999999", ""),
    "failed before": ("#661100", "x"),
    "overlap": ("#6699CC", "+"),
    "rewritten": ("#BBBBBB", "/"),
    "unknown": ("#DDDDDD", "."),
}
"""Colour (Tol's muted set, and kin) and pattern of each cause."""


def occupancy_figure(groups: Groups, capacity_tokens: int) -> Figure:
    """One panel a policy, the same time axis."""
    runs = {policy: run for policy in groups if (run := shown_run(groups, policy)) and run.metrics.facts.machine}
    found = {policy: occupancy(run.metrics.facts.machine) for policy, run in runs.items()}
    panels = max(1, len(found))
    plot = make_subplots(
        panels, 1, shared_xaxes=True, vertical_spacing=0.3 / panels, subplot_titles=list(found) or None
    )
    plot.update_annotations(x=0, xanchor="left", font={"size": 13})
    rows = []
    for row, (policy, levels) in enumerate(found.items(), 1):
        for name, layer, colour in (("running", levels.running, RUNNING), ("pinned", levels.pinned, PINNED)):
            plot.add_scatter(
                x=np.round(levels.times_s, 1).tolist(),
                y=np.round(layer / capacity_tokens, 4).tolist(),
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                mode="lines",
                line={"width": 0, "color": colour},
                fillcolor=colour,
                stackgroup=policy,
                hovertemplate=f"{policy}, %{{x:.0f}} s: {name} %{{y:.0%}}<extra></extra>",
                row=row,
                col=1,
            )
        plot.add_hline(y=1.0, line={"color": "#808080", "width": 1, "dash": "dash"}, row=row, col=1)
        rows.append((policy, *_occupancy_cells(levels, capacity_tokens)))
    style(plot)
    grid = {"gridcolor": "rgba(128,128,128,0.25)", "zeroline": False, "fixedrange": True, "automargin": True}
    plot.update_xaxes(**grid)
    plot.update_xaxes(title="time, s", row=panels, col=1)
    plot.update_yaxes(tickformat=".0%", rangemode="tozero", nticks=4, **grid)
    plot.update_layout(height=90 + 120 * len(found))
    return Figure(
        "kv-occupancy",
        "What fills the KV pool",
        "Share of the pool in pins (recorded) and in running turns (derived: from what a turn found cached to its "
        "prompt at its first token, then growing with its output). The rest, up to the dashed line, is free or holds "
        "KV that nobody guards. A prefix that programs share counts once for each, so that sums can pass 100%."
        + seed_note(groups),
        plot,
        ("policy", "running, mean", "running, peak", "pinned, mean", "pinned, peak", "neither, mean"),
        tuple(rows),
    )


def _occupancy_cells(levels: Occupancy, capacity_tokens: int) -> list[str]:
    running, pinned = levels.running / capacity_tokens, levels.pinned / capacity_tokens
    free = np.maximum(0.0, 1.0 - running - pinned)
    return [f"{v:.0%}" for v in (running.mean(), running.max(), pinned.mean(), pinned.max(), free.mean())]


def ttl_figure(groups: Groups) -> Figure:
    plot = axes("time until the program returned, s", "TTL chosen, s")
    plot.update_xaxes(type="log", rangemode="normal", dtick=1)
    plot.update_yaxes(type="log", rangemode="normal", dtick=1)
    rows, all_seconds = [], [1.0]
    for policy, arm in report_styles(groups).items():
        pairs = _ttls_and_tools(groups[policy])
        if not pairs:
            continue
        ttls, tools = (np.maximum([pair[side] for pair in pairs], SHORTEST_S) for side in (0, 1))
        all_seconds += [*ttls.tolist(), *tools.tolist()]
        plot.add_scatter(
            x=[float(f"{t:.3g}") for t in thin(tools.tolist())],
            y=[float(f"{t:.3g}") for t in thin(ttls.tolist())],
            name=policy,
            mode="markers",
            marker={**marker_look(arm), "size": 6, "opacity": 0.55},
            hovertemplate=f"{policy}: TTL %{{y}} s, back after %{{x}} s<extra></extra>",
        )
        rows.append((policy, str(len(pairs)), *_ttl_cells(ttls, tools)))
    if rows:
        ends = [min(all_seconds), max(all_seconds)]
        plot.add_scatter(
            x=ends, y=ends, name="TTL = time until return", mode="lines", line={"color": "#808080", "dash": "dash"}
        )
    return Figure(
        "ttl-against-tool-time",
        "TTL chosen against what was needed",
        "Each pin: how long it was to be held, and how long after its turn the program came back. Above the dashed "
        "line the hold was long enough; below it, it ended too early. All seeds together, at most 1,500 points each.",
        plot,
        ("policy", "pins", "long enough", "TTL, median s", "return, median s", "return, 90% s", "held, mean s"),
        tuple(rows),
    )


def _ttls_and_tools(group: Sequence[Run]) -> list[tuple[float, float]]:
    returns = (found for run in group for found in run.metrics.facts.returns)
    return [
        (found.pin.ttl_s, found.tool_s)
        for found in returns
        if found.pin is not None and found.pin.ttl_s is not None and found.tool_s is not None and found.tool_s >= 0
    ]


def _ttl_cells(ttls: np.ndarray, tools: np.ndarray) -> list[str]:
    held = np.minimum(ttls, tools)
    seconds = (np.median(ttls), np.median(tools), np.percentile(tools, 90), held.mean())
    return [f"{np.mean(ttls >= tools):.1%}", *(short(float(value)) for value in seconds)]


def tails_figure(groups: Groups) -> Figure:
    """The same workload under every policy: the first one's shown run stands for all."""
    run = next((run for policy in groups if (run := shown_run(groups, policy))), None)
    by_tool = _gaps_by_tool(run) if run else {}
    total_s = sum(sum(gaps) for gaps in by_tool.values())
    plot = axes("tool time, s", "share of calls that take longer")
    plot.update_xaxes(type="log", rangemode="normal", dtick=1)
    plot.update_yaxes(type="log", rangemode="normal", dtick=1, tickformat="~%")
    rows = []
    for number, (tool, gaps) in enumerate(sorted(by_tool.items(), key=lambda item: -sum(item[1]))):
        ordered = np.maximum(np.sort(gaps), SHORTEST_S)
        if number < TOOLS_SHOWN:
            shares = 1 - np.arange(len(ordered)) / len(ordered)
            plot.add_scatter(
                x=[float(f"{t:.4g}") for t in thin(ordered.tolist())],
                y=[float(f"{s:.4g}") for s in thin(shares.tolist())],
                name=tool,
                mode="lines" if len(ordered) > 1 else "lines+markers",
                line={
                    "color": COLOURS[(number + 1) % len(COLOURS)],
                    "dash": DASHES[number % len(DASHES)],
                    "shape": "hv",
                },
            )
        rows.append((tool, *_tail_cells(ordered, total_s)))
    return Figure(
        "tool-time-tails",
        "How long tools take",
        f"Share of calls that take longer than a time, for the {TOOLS_SHOWN} tools with the most time in all; from a "
        "turn's end to the program's return, which includes the agent's own time. A flat tail far to the right is why "
        "a hold needs an end.",
        plot,
        (
            "tool",
            "calls",
            "mean s",
            "median s",
            "90% s",
            "99% s",
            "longest s",
            "slowest tenth's share",
            "share of all time",
        ),
        tuple(rows[:20]),
    )


def _gaps_by_tool(run: Run) -> dict[str, list[float]]:
    by_tool: dict[str, list[float]] = {}
    for program in run.metrics.facts.everyone:
        for before, after in zip(program.turns, program.turns[1:], strict=False):
            if before.finish_s is not None and after.arrive_s >= before.finish_s:
                by_tool.setdefault(before.tool or "(none named)", []).append(after.arrive_s - before.finish_s)
    return by_tool


def _tail_cells(ordered: np.ndarray, total_s: float) -> list[str]:
    tenth = ordered[-(len(ordered) // 10) :].sum() / ordered.sum() if len(ordered) >= 10 else None
    seconds = (ordered.mean(), *np.percentile(ordered, (50, 90, 99)), ordered[-1])
    shares = ("-" if tenth is None else f"{tenth:.0%}", f"{ordered.sum() / total_s:.0%}" if total_s else "-")
    return [str(len(ordered)), *(short(float(value)) for value in seconds), *shares]


def miss_figure(groups: Groups) -> Figure:
    returns = {policy: [r for run in group for r in run.metrics.facts.returns] for policy, group in groups.items()}
    returns = {policy: found for policy, found in returns.items() if found}
    counts = {policy: count_causes(found) for policy, found in returns.items()}
    plot = axes("", "share of returning turns")
    for cause in (cause for cause in CAUSES if any(cause in each for each in counts.values())):
        colour, pattern = CAUSE_COLOURS[cause]
        plot.add_bar(
            x=list(counts),
            y=[round(each.get(cause, 0) / sum(each.values()), 5) for each in counts.values()],
            name=cause,
            marker={"color": colour, "pattern": {"shape": pattern, "size": 6, "solidity": 0.2, "fillmode": "overlay"}},
            hovertemplate=f"%{{x}}: {cause} %{{y:.1%}}<br>{CAUSES[cause]}<extra></extra>",
        )
    plot.update_layout(barmode="stack", bargap=0.5)
    plot.update_yaxes(tickformat=".0%")
    return Figure(
        "misses",
        "Why returns found their KV, or did not",
        "Every turn after a program's first, by what decided whether its KV was still there; all seeds together. From "
        "the records alone; continuum-bench analyze DIR --misses says it for each run, --table turns for each turn.",
        plot,
        ("policy", *cause_table(()).headings),
        tuple((policy, *row) for policy, found in returns.items() for row in cause_table(found).rows),
    )
