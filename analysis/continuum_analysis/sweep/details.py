"""Figures of runs of a sweep (queue waits by program; eta and T over time), and of traces (tool times, turns left)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from continuum_traces.grouped import grouped
from continuum_traces.json_io import read_json
from continuum_traces.schema import Program

from continuum_analysis.compare.intervals import NO_VALUE, mean_interval, number_text
from continuum_analysis.compare.runs import SWEEP, Run
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import arm_styles
from continuum_analysis.plots.panels import Panel
from continuum_analysis.report.figure_kit import TOOL_HEADINGS, thin_line, tool_times
from continuum_analysis.sweep.tables import GroupSummary, Sweep, point_text, runs_of


def queue_figure(sweep: Sweep) -> tuple[list[Panel], TextTable]:
    """Return the queue waits of programs in order of arrival: lines for the lowest seed, a table for all seeds."""
    panels, looks = [], arm_styles(sweep.policies)
    for group, runs in _first_seed(sweep):
        lines = []
        for run in runs:
            waits = [program.bubble_s for program in run.metrics.facts.programs]
            points = [(float(n), wait) for n, wait in enumerate(waits, 1) if wait is not None]
            look = looks[run.manifest.policy]
            lines.append(thin_line(run.manifest.policy, look, [n for n, _ in points], [wait for _, wait in points]))
        title = _title(sweep, group)
        panels.append(Panel(title, "program, in order of arrival", "time in the queue, s", lines))
    headings = ["point", "policy", "seeds", "mean time in the queue, s", "JCT mean, s"]
    shown = ("bubble_mean_s", "jct_mean_s")
    rows = [
        [_title(sweep, group), policy, str(len(arm.seeds)), *(number_text(arm.mean(name), "{:.1f}") for name in shown)]
        for group in sweep.groups
        for policy, arm in group.policies.items()
    ]
    return panels, TextTable(headings, rows)


def estimates_figure(sweep: Sweep) -> tuple[list[Panel], TextTable]:
    """Return the TTL model's estimates at each pin over time: T (mean queueing delay of evicted turns) and eta."""
    curves: dict[str, list[list[float]]] = {}
    """Times, T and eta of each run."""
    rows = []
    for group, runs in _first_seed(sweep):
        for run in runs:
            pins = sorted(run.metrics.facts.pins, key=lambda pin: pin.since_s)
            start_s = min((program.arrive_s for program in run.metrics.facts.everyone), default=0.0)
            name = f"{_title(sweep, group)}, {run.manifest.policy}"
            estimates = [(pin.since_s - start_s, pin.delay_estimate_s, pin.eta) for pin in pins]
            complete = [(since_s, t_s, eta) for since_s, t_s, eta in estimates if t_s is not None and eta is not None]
            if complete:
                curves[name] = _, t, e = [list(column) for column in zip(*complete, strict=True)]
                numbers = (np.mean(t), np.max(t), np.mean(e), np.max(e), t[-1], e[-1])
                rows.append([name, str(len(pins)), *(f"{number:.3g}" for number in numbers)])
    looks = arm_styles(curves)
    delays = [thin_line(name, looks[name], times_s, t) for name, (times_s, t, _) in curves.items()]
    etas = [thin_line(name, looks[name], times_s, e) for name, (times_s, _, e) in curves.items()]
    panels = [
        Panel("T: queueing delay of evicted turns", "time, s", "s", delays),
        Panel("eta", "time, s", "", etas),
    ]
    headings = ["run", "pins", "T mean, s", "T highest", "eta mean", "eta highest", "T at last", "eta at last"]
    return panels, TextTable(headings, rows)


Workloads = Mapping[str, Sequence[Program]]
"""The programs of each workload, by its name."""
AFTER_TURNS, AFTER_CALLS = (1, 2, 5, 10, 20), (10, 100, 1000)
"""The places that the tables of ``remaining_figure`` and ``running_means_figure`` show."""


def remaining_figure(workloads: Workloads) -> tuple[list[Panel], TextTable]:
    """Return how many turns programs still have after so many turns: the mean of those that got so far."""
    panels, rows, looks = [], [], arm_styles(workloads)
    for name, programs in workloads.items():
        turns = np.array([len(program.turns) for program in programs])
        done = np.arange(1, turns.max() + 1)
        left = [float((turns[turns >= k] - k).mean()) for k in done]
        panels.append(
            Panel(name, "turns so far", "turns left, mean", [thin_line(name, looks[name], done.tolist(), left)])
        )
        rows.append((name, *(f"{left[k - 1]:.1f}" if k <= len(left) else NO_VALUE for k in AFTER_TURNS)))
    return panels, TextTable(("workload", *(f"after {k}" for k in AFTER_TURNS)), rows)


def running_means_figure(workloads: Workloads) -> tuple[list[Panel], TextTable]:
    """Return, for the two tools with the most calls, the mean time of the first calls divided by that of all.

    The table has 95% intervals of the first means, by Student's t.
    """
    panels, rows = [], []
    for name, programs in workloads.items():
        by_tool = _times_by_tool(programs)
        most = sorted(by_tool, key=lambda tool: -len(by_tool[tool]))[:2]
        lines, looks = [], arm_styles(most)
        for tool in most:
            times = np.array(by_tool[tool])
            calls = np.arange(1, len(times) + 1)
            ratio = np.cumsum(times) / calls / max(times.mean(), 1e-9)
            lines.append(thin_line(tool, looks[tool], calls.tolist(), ratio.tolist()))
            after = (_to_mean(by_tool[tool][:n], times.mean()) if n <= len(times) else NO_VALUE for n in AFTER_CALLS)
            rows.append((name, tool, str(len(times)), f"{times.mean():.2f}", *after))
        panels.append(Panel(name, "calls so far", "mean so far / mean of all", lines))
    return panels, TextTable(("workload", "tool", "calls", "mean, s", *(f"after {n}" for n in AFTER_CALLS)), rows)


def _to_mean(times: Sequence[float], mean: float) -> str:
    return mean_interval([time / max(mean, 1e-9) for time in times]).text("{:.2f}".format)


def _times_by_tool(programs: Sequence[Program]) -> dict[str, list[float]]:
    calls = [call for program in programs for turn in program.turns for call in turn.tool_calls]
    return grouped((call.name, call.duration_s) for call in calls if call.duration_s is not None)


def tools_figure(workloads: Workloads) -> tuple[list[Panel], TextTable]:
    """Return the distribution of recorded tool times by tool, and the share of each tool's slowest tenth of calls."""
    panels, rows = [], []
    for name, programs in workloads.items():
        if by_tool := _times_by_tool(programs):
            panel, of_tools = tool_times(name, by_tool)
            panels.append(panel)
            rows += [(name, *row) for row in of_tools]
    return panels, TextTable(("workload", *TOOL_HEADINGS), rows)


def _first_seed(sweep: Sweep) -> list[tuple[GroupSummary, list[Run]]]:
    """Read each group's runs of the lowest seed."""
    plan = read_json(sweep.path / SWEEP)
    groups = []
    for summary, group in zip(sweep.groups, plan["groups"], strict=True):
        lowest = min(cell["seed"] for cell in group["cells"])
        cells = [cell for cell in group["cells"] if cell["seed"] == lowest]
        groups.append((summary, runs_of(sweep.path, {**group, "cells": cells})))
    return groups


def _title(sweep: Sweep, group: GroupSummary) -> str:
    return point_text(group.axes, sweep.varying() or ["workload"])
