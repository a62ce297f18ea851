"""Several runs side by side: means over seeds with intervals, and policies paired on the same arrivals."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from continuum_traces.run_dir import (
    MANIFEST,
    SUMMARY,
    RunDirError,
    read_json,
    read_manifest,
    runs_below,
    write_json,
)
from continuum_traces.schema import Manifest

from continuum_analysis.metrics import METRICS, RunMetrics, Value, analyze_run
from continuum_analysis.pairing import (
    Comparison,
    Interval,
    check_same_arrivals,
    mean_interval,
    paired_jcts,
    ratio_interval,
    resampled_ratio,
)
from continuum_analysis.timeline import AnalysisError
from continuum_analysis.words import BASELINE, verdict

__all__ = ["BASELINE", "Run", "load_runs", "mean_interval", "summarize", "verdict", "write_summary"]

SUMMARY_SCHEMA = "continuum-summary"
MUST_AGREE = ("workload", "engine", "hardware", "engine_options")
"""Manifest fields two runs must share before their numbers may stand side by side."""


@dataclass(frozen=True, slots=True)
class Run:
    path: Path
    manifest: Manifest
    metrics: RunMetrics


def load_runs(path: Path) -> list[Run]:
    """Complete runs at or below ``path``: those with a manifest, records and engine.json.

    Raises:
        AnalysisError: none there.
    """
    runs = []
    for folder in runs_below(path):
        if (folder / MANIFEST).exists() and (folder / "engine.json").exists():
            runs.append(Run(folder, read_manifest(folder), analyze_run(folder)))
    if not runs:
        raise AnalysisError(f"{path}: no finished run there")
    return runs


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs that differ in anything but policy and seed, and a policy that is there twice.

    Raises:
        AnalysisError: naming the manifest's field and both directories.
    """
    first = runs[0]
    seen: dict[tuple[str, int], Run] = {}
    options: dict[str, Run] = {}
    for run in runs:
        policy, seed = run.manifest.policy, run.manifest.seed
        twin = seen.setdefault((policy, seed), run)
        if twin is not run:
            raise AnalysisError(f"{twin.path} and {run.path} are both policy {policy}, seed {seed}; keep them apart")
        other = options.setdefault(policy, run)
        if other.manifest.policy_options != run.manifest.policy_options:
            detail = _difference(other.manifest.policy_options, run.manifest.policy_options)
            raise AnalysisError(f"{other.path} and {run.path} cannot be averaged: policy_options differs{detail}")
        for name in MUST_AGREE:
            ours, theirs = getattr(first.manifest, name), getattr(run.manifest, name)
            if ours != theirs:
                detail = _difference(ours, theirs)
                raise AnalysisError(f"{first.path} and {run.path} cannot be compared: {name} differs{detail}")


def _difference(ours: Any, theirs: Any) -> str:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in sorted({*ours, *theirs}):
            if ours.get(key) != theirs.get(key):
                return f" in {key}: {ours.get(key)!r} against {theirs.get(key)!r}"
    return f": {ours!r} against {theirs!r}"


def summarize(path: Path) -> dict[str, Any]:
    """What summary.json holds: per policy the mean over seeds of every metric, and the paired ratio to ``vllm``.

    Raises:
        AnalysisError: no finished run, or runs that may not stand side by side.
        RunDirError: a fault in a file.
    """
    return summarize_runs(path, load_runs(path))


def summarize_runs(path: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """The summary of runs already read (``load_runs``)."""
    check_comparable(runs)
    by_policy: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_baseline_first(path)):
        by_policy.setdefault(run.manifest.policy, []).append(run)
    baseline = by_policy.get(BASELINE, [])
    policies = {name: _summarize_policy(group, compare_to(baseline, group)) for name, group in by_policy.items()}
    manifest = read_json(path / MANIFEST) if (path / MANIFEST).exists() else _as_json(runs[0].manifest)
    return {
        "schema": SUMMARY_SCHEMA,
        "version": 1,
        "seeds": sorted({run.manifest.seed for run in runs}),
        "policies": policies,
        "warnings": _warnings(by_policy),
        "manifest": manifest,
    }


def _baseline_first(path: Path) -> Callable[[Run], tuple[int, int]]:
    """Policies in the order they were asked for."""
    asked = read_manifest(path).policy.split(",") if (path / MANIFEST).exists() else [BASELINE]
    return lambda run: (
        asked.index(run.manifest.policy) if run.manifest.policy in asked else len(asked),
        run.manifest.seed,
    )


def _as_json(manifest: Manifest) -> dict[str, Any]:
    return dict(json.loads(json.dumps(dataclasses.asdict(manifest))))


def compare_to(baseline: Sequence[Run], runs: Sequence[Run]) -> Comparison | None:
    """A policy's runs against the baseline's on the seeds both have; None where there are none.

    Raises:
        AnalysisError: two runs of a seed that were not given the same arrivals.
    """
    ours = {run.manifest.seed: run for run in runs}
    pairs = [(base, ours[base.manifest.seed]) for base in baseline if base.manifest.seed in ours]
    for base, run in pairs:
        where = f"{base.path} and {run.path}"
        check_same_arrivals(where, base.metrics.facts.everyone, run.metrics.facts.everyone)
    times = [paired_jcts(base.metrics.facts.programs, run.metrics.facts.programs) for base, run in pairs]
    if not times or not all(over for over, _ in times):
        return None
    over, under = [float(np.mean(a)) for a, _ in times], [float(np.mean(b)) for _, b in times]
    return Comparison(
        seeds=tuple(base.manifest.seed for base, _ in pairs),
        ratio=ratio_interval(over, under),
        difference_s=mean_interval([a - b for a, b in zip(over, under, strict=True)]),
        ratio_within=resampled_ratio(*times[0]) if len(times) == 1 else None,
    )


def _summarize_policy(runs: Sequence[Run], comparison: Comparison | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    intervals: dict[str, list[float] | None] = {}
    for metric in METRICS:
        values = [float(v) for run in runs if (v := run.metrics.values[metric.name]) is not None]
        row[metric.name] = float(np.mean(values)) if values else None
        intervals[metric.name] = _pair(mean_interval(values)) if values else None
    row["jct_mean_interval_s"] = intervals["jct_mean_s"]
    row |= _comparison_fields(comparison)
    row["pins_by_ending"] = _sum_endings(runs)
    row["unfinished"] = sorted({program for run in runs for program in run.metrics.unfinished})
    row["failed"] = sorted({program for run in runs for program in run.metrics.failed})
    row["seeds"] = sorted(run.manifest.seed for run in runs)
    row["intervals"] = intervals
    return row


def _comparison_fields(found: Comparison | None) -> dict[str, Any]:
    within = found.ratio_within if found else None
    return {
        "ratio_to_vllm": found.ratio.mean if found else None,
        "ratio_to_vllm_interval": _pair(found.ratio) if found else None,
        "ratio_to_vllm_within_one_arrival_sequence": _pair(within) if within else None,
        "difference_to_vllm_s": found.difference_s.mean if found else None,
        "difference_to_vllm_interval_s": _pair(found.difference_s) if found else None,
        "paired_seeds": list(found.seeds) if found else [],
    }


def _warnings(by_policy: Mapping[str, Sequence[Run]]) -> list[str]:
    """What makes a mean mean less than it seems."""
    warnings = []
    all_seeds = {run.manifest.seed for group in by_policy.values() for run in group}
    for policy, group in by_policy.items():
        missing = sorted(all_seeds - {run.manifest.seed for run in group})
        if missing:
            warnings.append(f"{policy}: no finished run of seed {', '.join(map(str, missing))}")
        for run in group:
            left_out = len(run.metrics.unfinished) + len(run.metrics.failed)
            if left_out:
                warnings.append(
                    f"{policy}, seed {run.manifest.seed}: {left_out} of {len(run.metrics.facts.everyone)} programs did "
                    "not finish; its times leave them out, the ratio uses programs that finished under both policies"
                )
    return warnings


def _pair(interval: Interval) -> list[float] | None:
    return None if interval.low is None or interval.high is None else [interval.low, interval.high]


def _sum_endings(runs: Sequence[Run]) -> dict[str, int]:
    total: dict[str, int] = {}
    for run in runs:
        for reason, count in run.metrics.pins_by_ending.items():
            total[reason] = total.get(reason, 0) + count
    return total


def write_summary(path: Path) -> dict[str, Any]:
    """Write summary.json, summary.csv and, with several seeds, summary_by_seed.csv; return the summary.

    Raises:
        AnalysisError, RunDirError: nothing to summarise, or nowhere to write.
    """
    runs = load_runs(path)
    return write_summary_of(path, runs)


def write_summary_of(path: Path, runs: Sequence[Run]) -> dict[str, Any]:
    """``write_summary`` of runs already read."""
    summary = summarize_runs(path, runs)
    write_json(path / SUMMARY, summary)
    names = [metric.name for metric in METRICS]
    rows = [_csv_row(policy, row, names) for policy, row in summary["policies"].items()]
    bounds = ["ratio_to_vllm_low", "ratio_to_vllm_high"]
    _write_csv(path / "summary.csv", ["policy", *names, "ratio_to_vllm", *bounds], rows)
    if len(summary["seeds"]) > 1:
        order = list(summary["policies"])
        by_seed = sorted(runs, key=lambda run: (order.index(run.manifest.policy), run.manifest.seed))
        cells = [
            [run.manifest.policy, str(run.manifest.seed), *(_cell(run.metrics.values[name]) for name in names)]
            for run in by_seed
        ]
        _write_csv(path / "summary_by_seed.csv", ["policy", "seed", *names], cells)
    return summary


def _csv_row(policy: str, row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    bounds = row["ratio_to_vllm_interval"] or (None, None)
    return [policy, *(_cell(row[name]) for name in [*names, "ratio_to_vllm"]), *map(_cell, bounds)]


def _write_csv(file: Path, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([headings, *rows])
    try:
        file.write_text(out.getvalue(), encoding="utf-8")
    except OSError as error:
        raise RunDirError(f"{file}: cannot write: {error.strerror}") from error


def _cell(value: Value) -> str:
    return "" if value is None else f"{value:.6g}"
