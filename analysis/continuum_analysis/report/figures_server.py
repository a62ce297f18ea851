"""The figure of what servers report of themselves, beside the first tokens that clients waited for."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from continuum_analysis.compare.intervals import NO_VALUE, number_text
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import ArmStyle
from continuum_analysis.plots.panels import Line, Panel
from continuum_analysis.records.server_load import ServerLoad, server_load
from continuum_analysis.report.figure_kit import Figure, Groups, report_styles, short, thin_line

TITLES = {
    "kv_used": "KV in use",
    "running": "running requests",
    "waiting": "waiting requests",
    "preemptions": "preemptions so far",
}
FIRST_TOKEN = "time to first token, s"
HEADINGS = ("KV in use, mean", "peak", "running, mean", "waiting, mean", "waiting, peak", "preemptions", "cache hits")


def server_figure(groups: Groups) -> Figure | None:
    """Return the figure of the run with the lowest seed of each policy; None: no server reported anything."""
    runs = {policy: min(group, key=lambda run: run.manifest.seed) for policy, group in groups.items()}
    loads = {policy: load for policy, run in runs.items() if (load := server_load(run.path)) is not None}
    if not loads:
        return None
    looks = report_styles(groups)
    first = [_first_tokens(policy, looks[policy], runs[policy]) for policy in loads]
    panels = [Panel("", "time, s", FIRST_TOKEN, first, x_from_zero=True)]
    for name, title in TITLES.items():
        there = {policy: load.series[name] for policy, load in loads.items() if name in load.series}
        lines = [thin_line(policy, looks[policy], *points, "stepped") for policy, points in there.items()]
        share = name == "kv_used"
        panels += [Panel("", "time, s", title, lines, x_from_zero=True, percent=share)] if lines else []
    rows = [(policy, *_row(load)) for policy, load in loads.items()]
    return Figure("server-metrics", panels, TextTable(("policy", *HEADINGS), rows), height=130)


def _first_tokens(policy: str, look: ArmStyle, run: Run) -> Line:
    """Return the first tokens of turns by when the turns were due."""
    turns = [(turn.client.due_s, turn.ttft_s) for turn in run.metrics.facts.requests if turn.client is not None]
    points = sorted((due_s, ttft_s) for due_s, ttft_s in turns if ttft_s is not None)
    return thin_line(policy, look, [due_s for due_s, _ in points], [ttft_s for _, ttft_s in points])


def _row(load: ServerLoad) -> list[str]:
    def of(name: str) -> Sequence[float]:
        return load.series[name][1] if name in load.series else ()

    kv, running, waiting, preempted = (of(name) for name in TITLES)
    shares = [f"{value:.0%}" for value in (fmean(kv), max(kv))] if kv else [NO_VALUE] * 2
    counts = [short(fmean(each)) if each else NO_VALUE for each in (running, waiting)]
    peaks = [f"{each[at]:.0f}" if each else NO_VALUE for each, at in ((sorted(waiting), -1), (preempted, -1))]
    return [*shares, *counts, *peaks, number_text(load.hit_ratio, "{:.1%}")]
