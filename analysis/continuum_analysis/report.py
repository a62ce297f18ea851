"""report.html: one file that opens anywhere, with figures, a table beside each, and what the numbers rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
from continuum_traces.run_dir import RunDirError
from plotly.offline import get_plotlyjs

from continuum_analysis.compare import BASELINE, Run, load_runs, verdict, write_summary
from continuum_analysis.timeline import ProgramTimes

COLOURS = ("#7f7f7f", "#E69F00", "#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#0072B2", "#B8A800")
"""Okabe and Ito's palette, grey for the baseline: told apart by colour-blind readers."""

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash")

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("jct_mean_s", "JCT mean, s", "{:.1f}"),
    ("jct_p50_s", "P50", "{:.1f}"),
    ("jct_p90_s", "P90", "{:.1f}"),
    ("jct_p95_s", "P95", "{:.1f}"),
    ("jct_p99_s", "P99", "{:.1f}"),
    ("throughput_jobs_per_s", "jobs/s", "{:.4f}"),
    ("bubble_mean_s", "bubble, s", "{:.1f}"),
    ("prefix_hit_ratio", "prefix hit", "{:.1%}"),
    ("pin_hit_ratio", "pin hit", "{:.1%}"),
    ("ratio_to_vllm", "ratio to vllm", "{:.2f}"),
)
"""The table of the command line and of the report: key, heading, format."""


def table_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row a policy, cells formatted; a dash where there is no value."""
    return [
        [name, *(form.format(row[key]) if row.get(key) is not None else "-" for key, _, form in COLUMNS)]
        for name, row in summary["policies"].items()
    ]


def write_report(path: Path) -> Path:
    """Write report.html (and the summary) for the runs below ``path`` and return its path.

    Raises:
        AnalysisError, RunDirError: nothing to report, or nowhere to write.
    """
    summary = write_summary(path)
    runs = load_runs(path)
    figures = [
        ("Job completion times", "Share of programs finished within a time. Further left is better.", jct_figure(runs)),
        (
            "Waiting, program by program",
            "Seconds each program spent in the queue, summed over its turns, in order of arrival.",
            bubble_figure(runs),
        ),
        ("How pins ended", "Holds of a finished turn's KV by what ended them.", pin_figure(runs)),
        (
            "Load against memory",
            "KV tokens of all live programs, as a share of the pool. Above 100% something must wait or be rebuilt.",
            demand_figure(runs),
        ),
    ]
    template = jinja2.Template(
        (files("continuum_analysis") / "report.html.j2").read_text(encoding="utf-8"), autoescape=True
    )
    html = template.render(
        title=f"Continuum report: {path.name}",
        verdict=verdict(summary),
        headings=["policy", *(heading for _, heading, _ in COLUMNS)],
        rows=table_rows(summary),
        figures=[
            {"title": title, "text": text, "html": _html(figure), "summary": figure_words(figure)}
            for title, text, figure in figures
        ],
        facts=_facts(runs, summary),
        modelled=runs[0].manifest.modelled,
        unfinished={name: row["unfinished"] for name, row in summary["policies"].items() if row["unfinished"]},
        manifest=_flat(summary["manifest"]),
        plotly=get_plotlyjs(),
    )
    target = path / "report.html"
    try:
        target.write_text(html, encoding="utf-8")
    except OSError as error:
        raise RunDirError(f"{target}: cannot write: {error.strerror}") from error
    return target


def _html(figure: go.Figure) -> str:
    return str(
        figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
    )


def _groups(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.manifest.policy, []).append(run)
    return dict(sorted(groups.items(), key=lambda item: item[0] != BASELINE))


def _style(number: int) -> dict[str, str]:
    return {"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)]}


def _figure(x_title: str, y_title: str) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template="none",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "color": "#808080", "size": 13},
        margin={"l": 60, "r": 10, "t": 10, "b": 50},
        height=340,
        legend={"orientation": "h", "y": 1.12},
        hovermode="closest",
    )
    grid = {"gridcolor": "rgba(128,128,128,0.25)", "zeroline": False}
    figure.update_xaxes(title=x_title, **grid)
    figure.update_yaxes(title=y_title, rangemode="tozero", **grid)
    return figure


def jct_figure(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("job completion time, s", "share of programs")
    for number, (policy, group) in enumerate(_groups(runs).items()):
        times = np.sort([p.jct_s for run in group for p in run.metrics.facts.programs])
        shares = np.arange(1, len(times) + 1) / len(times)
        figure.add_scatter(
            x=times.round(3).tolist(), y=shares.round(5).tolist(), name=policy, mode="lines", line=_style(number)
        )
    return figure


def bubble_figure(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("program, in order of arrival", "time in the queue, s")
    first_seed = min(run.manifest.seed for run in runs)
    for number, (policy, group) in enumerate(_groups(runs).items()):
        programs = next((r.metrics.facts.programs for r in group if r.manifest.seed == first_seed), ())
        figure.add_scatter(
            x=list(range(1, len(programs) + 1)),
            y=[round(p.bubble_s, 3) for p in programs],
            name=policy,
            mode="lines",
            line=_style(number),
        )
    return figure


def pin_figure(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("policy", "pins")
    groups = {name: group for name, group in _groups(runs).items() if any(r.metrics.pins_by_ending for r in group)}
    reasons = sorted({reason for group in groups.values() for run in group for reason in run.metrics.pins_by_ending})
    for number, reason in enumerate(reasons):
        counts = [sum(run.metrics.pins_by_ending.get(reason, 0) for run in group) for group in groups.values()]
        figure.add_bar(x=list(groups), y=counts, name=reason, marker_color=COLOURS[(number + 1) % len(COLOURS)])
    figure.update_layout(barmode="stack")
    return figure


def demand(programs: Sequence[ProgramTimes]) -> tuple[list[float], list[int]]:
    """KV tokens of live programs over time: a program counts with its latest context, tools included."""
    changes: list[tuple[float, int]] = []
    for program in programs:
        held = 0
        for turn in program.turns:
            changes.append((turn.arrive_s, turn.prompt_tokens + turn.output_tokens - held))
            held = turn.prompt_tokens + turn.output_tokens
        changes.append((program.finish_s, -held))
    changes.sort()
    return [t for t, _ in changes], list(accumulate(tokens for _, tokens in changes))


def demand_figure(runs: Sequence[Run]) -> go.Figure:
    figure = _figure("time, s", "live context / KV pool")
    capacity = kv_tokens(runs)
    first_seed = min(run.manifest.seed for run in runs)
    for number, (policy, group) in enumerate(_groups(runs).items()):
        run = next((r for r in group if r.manifest.seed == first_seed), None)
        if run is None or capacity is None:
            continue
        times, tokens = demand(run.metrics.facts.programs)
        keep = slice(None, None, max(1, len(times) // 1500))
        figure.add_scatter(
            x=[round(t, 2) for t in times[keep]],
            y=[round(n / capacity, 4) for n in tokens[keep]],
            name=policy,
            mode="lines",
            line={**_style(number), "shape": "hv"},
        )
    figure.update_yaxes(tickformat=".0%")
    return figure


def kv_tokens(runs: Sequence[Run]) -> int | None:
    capacity = runs[0].manifest.hardware.get("kv_capacity", {})
    tokens = capacity.get("tokens")
    return int(tokens) if tokens is not None else None


def figure_words(figure: go.Figure) -> list[str]:
    """The text alternative: each line's range and middle, each bar's values."""
    words = []
    for trace in figure.data:
        if trace.type == "bar":
            pairs = zip(trace.x, trace.y, strict=True)
            words.append(f"{trace.name}: " + ", ".join(f"{x} {y}" for x, y in pairs))
        elif len(trace.y):
            words.append(f"{trace.name}: from {min(trace.y):.4g} to {max(trace.y):.4g}, mean {np.mean(trace.y):.4g}")
    return words or ["nothing recorded"]


def _facts(runs: Sequence[Run], summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a sceptical reader asks first."""
    manifest = runs[0].manifest
    work, hardware = manifest.workload, manifest.hardware
    facts = [
        ("Workload", f"{work.get('name')}, {'synthetic' if work.get('synthetic') else 'recorded'}"),
        ("Programs, turns", f"{work.get('programs')}, {work.get('turns')}"),
        ("Arrivals", f"{work.get('arrivals')}, {work.get('jps')} programs/s; seeds {summary['seeds']}"),
        ("Engine", manifest.engine),
        ("Model on GPU", f"{hardware.get('model')} on {hardware.get('tensor_parallel')} x {hardware.get('gpu')}"),
        ("Step times", f"{hardware.get('step_times', {}).get('kind')}: {hardware.get('step_times', {}).get('source')}"),
    ]
    capacity = kv_tokens(runs)
    if capacity:
        facts.append(("KV pool", f"{capacity:,} tokens"))
        facts.append(("Distance to the knee", _knee(runs, capacity)))
    return facts


def _knee(runs: Sequence[Run], capacity: int) -> str:
    """Time-weighted mean and peak of the live context against the pool, in the baseline where it ran."""
    run = next((r for r in runs if r.manifest.policy == BASELINE), runs[0])
    times, tokens = demand(run.metrics.facts.programs)
    spans = np.diff(times)
    mean = float(np.dot(tokens[:-1], spans) / spans.sum()) / capacity if len(spans) and spans.sum() > 0 else 0.0
    peak = max(tokens, default=0) / capacity
    side = "below the knee: policies should agree" if peak <= 1.0 else "beyond the knee: results are sensitive to seeds"
    return (
        f"live context is {mean:.0%} of the pool on average, {peak:.0%} at its peak under {run.manifest.policy}; {side}"
    )


def _flat(data: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested manifest entries as dotted names."""
    if isinstance(data, Mapping):
        return [row for key, value in data.items() for row in _flat(value, f"{name}.{key}" if name else str(key))]
    if isinstance(data, list | tuple):
        return [(name, ", ".join(map(str, data)))] if data else []
    return [(name, str(data))]
