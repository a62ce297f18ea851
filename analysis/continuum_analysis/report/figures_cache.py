"""The report's figures of the cache: its content, TTLs against tool times, tool times, causes of hits and misses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import TextTable, cause_table
from continuum_analysis.plots.arm_styles import ArmStyle
from continuum_analysis.plots.panels import LEVEL_COLOUR, Area, Line, Panel, Stack
from continuum_analysis.records.misses import CAUSES, count_causes
from continuum_analysis.records.occupancy import Occupancy, occupancy
from continuum_analysis.report.figure_kit import (
    SHORTEST_S,
    TOOL_HEADINGS,
    TOOLS_SHOWN,
    Figure,
    Groups,
    report_styles,
    seed_note,
    short,
    shown_run,
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
    runs = {policy: run for policy in groups if (run := shown_run(groups, policy)) and run.metrics.facts.machine}
    by_policy = {policy: occupancy(run.metrics.facts.machine) for policy, run in runs.items()}
    last = list(by_policy)[-1:]
    panels = [
        Panel(
            policy,
            "time, s" if policy in last else "",
            "",
            areas=_areas(levels, capacity_tokens),
            x_from_zero=True,
            percent=True,
            level=1.0,
        )
        for policy, levels in by_policy.items()
    ]
    headings = ("policy", "running, mean", "running, peak", "pinned, mean", "pinned, peak", "neither, mean")
    rows = [(policy, *_occupancy_cells(levels, capacity_tokens)) for policy, levels in by_policy.items()]
    return Figure(
        "kv-occupancy",
        "What fills the KV pool",
        "Share of the pool in pins (recorded) and in running turns (derived: from the tokens that a turn found in the "
        "cache to its prompt at the first token, then growing with its output). The rest, up to the dashed line, is "
        "free or contains KV that can be evicted. A prefix that programs share counts once for each program, so that "
        "sums can exceed 100%." + seed_note(groups),
        panels,
        TextTable(headings, rows),
        height=70,
    )


def _areas(levels: Occupancy, capacity_tokens: int) -> list[Area]:
    layers = (("running", levels.running, RUNNING), ("pinned", levels.pinned, PINNED))
    return [
        Area(name, levels.times_s.tolist(), (layer / capacity_tokens).tolist(), colour)
        for name, layer, colour in layers
    ]


def _occupancy_cells(levels: Occupancy, capacity_tokens: int) -> list[str]:
    running, pinned = levels.running / capacity_tokens, levels.pinned / capacity_tokens
    free = np.maximum(0.0, 1.0 - running - pinned)
    return [f"{v:.0%}" for v in (running.mean(), running.max(), pinned.mean(), pinned.max(), free.mean())]


def ttl_figure(groups: Groups) -> Figure:
    lines, rows, all_seconds = [], [], [1.0]
    for policy, arm in report_styles(groups).items():
        pairs = _ttls_and_tools(groups[policy])
        if not pairs:
            continue
        ttls, tools = (np.maximum([pair[side] for pair in pairs], SHORTEST_S) for side in (0, 1))
        all_seconds += [*ttls.tolist(), *tools.tolist()]
        lines.append(thin_line(policy, arm, tools.tolist(), ttls.tolist(), "points"))
        rows.append((policy, str(len(pairs)), *_ttl_cells(ttls, tools)))
    if rows:
        ends = [min(all_seconds), max(all_seconds)]
        lines.append(Line("TTL = time until return", ends, ends, kind="plain", look=DIAGONAL))
    x_title, y_title = "time until the program returned, s", "TTL chosen, s"
    headings = ("policy", "pins", "long enough", "TTL, median s", "return, median s", "return, 90% s", "held, mean s")
    return Figure(
        "ttl-against-tool-time",
        "TTL chosen against what was needed",
        "The TTL of each pin, and the time after which its program returned. Above the dashed line the TTL was long "
        "enough; below it, the pin ended too early. All seeds together, a few hundred points for each policy.",
        [Panel("", x_title, y_title, lines, log=True, log_x=True)],
        TextTable(headings, rows),
    )


def _ttls_and_tools(group: Sequence[Run]) -> list[tuple[float, float]]:
    return [
        (pin.ttl_s, tool_s)
        for run in group
        for returned in run.metrics.facts.returns
        if (pin := returned.pin) and pin.ttl_s is not None and (tool_s := returned.tool_s) is not None and tool_s >= 0
    ]


def _ttl_cells(ttls: np.ndarray, tools: np.ndarray) -> list[str]:
    held = np.minimum(ttls, tools)
    seconds = (np.median(ttls), np.median(tools), np.percentile(tools, 90), held.mean())
    return [f"{np.mean(ttls >= tools):.1%}", *(short(float(value)) for value in seconds)]


def tails_figure(groups: Groups) -> Figure:
    """Return the figure of tool times from the run of one policy, since all policies have the same workload."""
    run = next((run for policy in groups if (run := shown_run(groups, policy))), None)
    panel, rows = tool_times("", _gaps_by_tool(run) if run else {})
    return Figure(
        "tool-time-tails",
        "How long tools take",
        f"Share of calls that end within a time, for all tools and the {TOOLS_SHOWN} tools with the longest total "
        "time. The time is that from a turn's end to the program's return, which includes the agent's own time. A line "
        "that reaches 100% far to the right means that a few calls take very long; a pin without a TTL would wait for "
        "them.",
        [panel],
        TextTable(TOOL_HEADINGS, rows),
    )


def _gaps_by_tool(run: Run) -> dict[str, list[float]]:
    by_tool: dict[str, list[float]] = {}
    for program in run.metrics.facts.everyone:
        for turn, gap_s in program.gaps():
            by_tool.setdefault(turn.tool or "(none named)", []).append(gap_s)
    return by_tool


def miss_figure(groups: Groups) -> Figure:
    returns = {policy: [r for run in group for r in run.metrics.facts.returns] for policy, group in groups.items()}
    returns = {policy: returned for policy, returned in returns.items() if returned}
    counts = {policy: count_causes(returned) for policy, returned in returns.items()}
    stacks = [
        Stack(
            cause,
            list(counts),
            [each.get(cause, 0) / sum(each.values()) for each in counts.values()],
            *CAUSE_COLOURS[cause],
            hover=CAUSES[cause],
        )
        for cause in CAUSES
        if any(cause in each for each in counts.values())
    ]
    rows = [(policy, *row) for policy, returned in returns.items() for row in cause_table(returned).rows]
    return Figure(
        "misses",
        "Cache hits and misses of returning turns, by cause",
        "Every turn but the first of each program, by the cause of its hit or miss, derived from the records; all "
        "seeds together. continuum-bench analyze DIR --misses shows the causes of each run, --table turns those of "
        "each turn.",
        [Panel("", "share of returning turns", "", stacks=stacks, percent=True)],
        TextTable(("policy", *cause_table(()).headings), rows),
    )
