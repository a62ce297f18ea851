"""report.html: one file that opens anywhere, with figures, a table beside each, and what the numbers rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
from continuum_traces.run_dir import RunDirError
from plotly.offline import get_plotlyjs

from continuum_analysis.compare import Run, load_runs, write_summary_of
from continuum_analysis.demand import demand
from continuum_analysis.figures import Figure, Groups, all_figures, shown_run
from continuum_analysis.metrics import METRICS
from continuum_analysis.words import BASELINE, COLUMNS, table_rows, verdict

__all__ = ["COLUMNS", "table_rows", "write_report"]


def write_report(path: Path) -> Path:
    """Write report.html (and the summary) for the runs below ``path`` and return its path.

    Raises:
        AnalysisError, RunDirError: nothing to report, or nowhere to write.
    """
    runs = load_runs(path)
    summary = write_summary_of(path, runs)
    target = path / "report.html"
    try:
        target.write_text(render(path.resolve().name, runs, summary), encoding="utf-8")
    except OSError as error:
        raise RunDirError(f"{target}: cannot write: {error.strerror}") from error
    return target


def render(name: str, runs: Sequence[Run], summary: Mapping[str, Any]) -> str:
    """The page."""
    groups = {policy: [r for r in runs if r.manifest.policy == policy] for policy in summary["policies"]}
    capacity = kv_tokens(runs)
    source = (files("continuum_analysis") / "report.html.j2").read_text(encoding="utf-8")
    template = jinja2.Template(source, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    html: str = template.render(
        title=f"Continuum report: {name}",
        verdict=verdict(summary),
        warnings=summary["warnings"],
        headings=["policy", *(heading for _, heading, _ in COLUMNS)],
        rows=table_rows(summary),
        several_seeds=len(summary["seeds"]) > 1,
        figures=[
            {"figure": figure, "html": _html(figure, f"figure-{number}")}
            for number, figure in enumerate(all_figures(groups, capacity), 1)
        ],
        facts=_facts(runs, summary, groups, capacity),
        modelled=runs[0].manifest.modelled,
        notes=runs[0].manifest.notes,
        measures=_measures(summary),
        policies=list(summary["policies"]),
        left_out={policy: row["unfinished"] + row["failed"] for policy, row in summary["policies"].items()},
        manifest=_flat(summary["manifest"]),
        plotly=get_plotlyjs(),
    )
    return html


def _html(figure: Figure, name: str) -> str:
    config = {"displayModeBar": False, "responsive": True}
    return str(figure.plot.to_html(full_html=False, include_plotlyjs=False, config=config, div_id=name))


def _measures(summary: Mapping[str, Any]) -> list[tuple[str, str, str, list[str]]]:
    """Every metric: name, unit, formula, and a cell for each policy, with its interval where there is one."""
    policies = summary["policies"].values()
    return [(m.name, m.unit, m.formula, [_measure_cell(row, m.name) for row in policies]) for m in METRICS]


def _measure_cell(row: Mapping[str, Any], name: str) -> str:
    value, interval = row[name], row["intervals"][name]
    if value is None:
        return "-"
    spread = f" ({_number(interval[0])} to {_number(interval[1])})" if interval and interval[0] < interval[1] else ""
    return _number(value) + spread


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def kv_tokens(runs: Sequence[Run]) -> int | None:
    """Tokens the KV pool holds, where the manifest says."""
    tokens = runs[0].manifest.hardware.get("kv_capacity", {}).get("tokens")
    return int(tokens) if tokens else None


def _facts(
    runs: Sequence[Run], summary: Mapping[str, Any], groups: Groups, capacity: int | None
) -> list[tuple[str, str]]:
    """What a sceptical reader asks first; what the manifest does not say is left out."""
    manifest = runs[0].manifest
    work, hardware = manifest.workload, manifest.hardware
    steps = hardware.get("step_times", {})
    kind = ("synthetic" if work["synthetic"] else "recorded") if "synthetic" in work else None
    seeds = ", ".join(map(str, summary["seeds"]))
    facts = [
        ("Workload", _join([work.get("name"), kind])),
        ("Programs", _join([work.get("programs")])),
        ("Turns", _join([work.get("turns")])),
        ("Tokens reading", _join([work.get("tokens_reading")])),
        ("Arrivals", _join([work.get("arrivals"), f"{work['jps']} programs/s" if "jps" in work else None])),
        ("Seeds", seeds),
        ("Engine", manifest.engine),
        ("Model", _join([hardware.get("model")])),
        ("GPU", _join([hardware.get("gpu"), _parallel(hardware.get("tensor_parallel"))])),
        ("Step times", _join([steps.get("kind"), steps.get("source")])),
    ]
    if capacity:
        facts += [("KV pool", f"{capacity:,} tokens"), ("Distance to the knee", _knee(groups, capacity))]
    return [(name, value) for name, value in facts if value]


def _join(parts: Sequence[object]) -> str:
    return ", ".join(str(part) for part in parts if part is not None)


def _parallel(number: object) -> str | None:
    return None if number in (None, 1) else f"tensor parallel over {number}"


def _knee(groups: Groups, capacity: int) -> str:
    """Live context against the pool, in the baseline where it ran."""
    policy = BASELINE if BASELINE in groups else next(iter(groups))
    run = shown_run(groups, policy) or groups[policy][0]
    need = demand(run.metrics.facts.everyone)
    mean, peak = need.mean_tokens / capacity, need.peak_tokens / capacity
    side = (
        "below the knee, where policies should agree" if peak <= 1.0 else "beyond the knee, where seeds differ widely"
    )
    return (
        f"live context fills {mean:.0%} of the pool on average and {peak:.0%} at its peak under {policy}, seed "
        f"{run.manifest.seed}: {side}"
    )


def _flat(data: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested manifest entries as dotted names."""
    if isinstance(data, Mapping):
        return [row for key, value in data.items() for row in _flat(value, f"{name}.{key}" if name else str(key))]
    if isinstance(data, list | tuple):
        return [(name, ", ".join(map(str, data)))] if data else []
    return [(name, str(data))]
