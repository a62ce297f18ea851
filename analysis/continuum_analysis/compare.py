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
from scipy.stats import t as student

from continuum_analysis.metrics import METRICS, RunMetrics, Value, analyze_run
from continuum_analysis.timeline import AnalysisError

SUMMARY_SCHEMA = "continuum-summary"
BASELINE = "vllm"
MUST_AGREE = ("workload", "engine", "hardware", "engine_options")
"""Manifest fields two runs must share before their numbers may stand side by side."""


@dataclass(frozen=True, slots=True)
class Run:
    path: Path
    manifest: Manifest
    metrics: RunMetrics


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95% interval; the interval is None where one value cannot give one."""

    mean: float
    low: float | None
    high: float | None


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


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's t over seeds."""
    array = np.asarray(values, dtype=float)
    mean = float(array.mean())
    if len(array) < 2:
        return Interval(mean, None, None)
    half = float(student.ppf(0.975, len(array) - 1) * array.std(ddof=1) / np.sqrt(len(array)))
    return Interval(mean, mean - half, mean + half)


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs that differ in anything but policy and seed.

    Raises:
        AnalysisError: naming the manifest's field and both directories.
    """
    first = runs[0]
    for run in runs[1:]:
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
    """What summary.json holds: per policy the mean over seeds of every metric, and the paired ratio to ``vllm``."""
    runs = load_runs(path)
    check_comparable(runs)
    by_policy: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_baseline_first(path)):
        by_policy.setdefault(run.manifest.policy, []).append(run)
    baseline = {run.manifest.seed: run for run in by_policy.get(BASELINE, [])}
    policies = {name: _summarize_policy(name, group, baseline) for name, group in by_policy.items()}
    manifest = read_json(path / MANIFEST) if (path / MANIFEST).exists() else _as_json(runs[0].manifest)
    return {
        "schema": SUMMARY_SCHEMA,
        "version": 1,
        "seeds": sorted({run.manifest.seed for run in runs}),
        "policies": policies,
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


def _summarize_policy(name: str, runs: Sequence[Run], baseline: Mapping[int, Run]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for metric in METRICS:
        values = [v for run in runs if (v := run.metrics.values[metric.name]) is not None]
        row[metric.name] = float(np.mean(values)) if values else None
    row["jct_mean_interval_s"] = _pair(mean_interval([_jct(run) for run in runs]))
    ratios = [_jct(baseline[r.manifest.seed]) / _jct(r) for r in runs if r.manifest.seed in baseline]
    interval = mean_interval(ratios) if ratios else None
    row["ratio_to_vllm"] = interval.mean if interval else None
    row["ratio_to_vllm_interval"] = _pair(interval) if interval else None
    row["pins_by_ending"] = _sum_endings(runs)
    row["unfinished"] = sorted({program for run in runs for program in run.metrics.unfinished})
    row["seeds"] = sorted(run.manifest.seed for run in runs)
    return row


def _jct(run: Run) -> float:
    value = run.metrics.values["jct_mean_s"]
    if value is None:
        raise AnalysisError(f"{run.path}: no program finished")
    return float(value)


def _pair(interval: Interval) -> list[float] | None:
    return None if interval.low is None or interval.high is None else [interval.low, interval.high]


def _sum_endings(runs: Sequence[Run]) -> dict[str, int]:
    total: dict[str, int] = {}
    for run in runs:
        for reason, count in run.metrics.pins_by_ending.items():
            total[reason] = total.get(reason, 0) + count
    return total


def write_summary(path: Path) -> dict[str, Any]:
    """Write summary.json and summary.csv into ``path`` and return the summary.

    Raises:
        AnalysisError, RunDirError: nothing to summarise, or nowhere to write.
    """
    summary = summarize(path)
    write_json(path / SUMMARY, summary)
    names = [metric.name for metric in METRICS]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["policy", *names, "ratio_to_vllm"])
    for policy, row in summary["policies"].items():
        writer.writerow([policy, *(_cell(row[name]) for name in names), _cell(row["ratio_to_vllm"])])
    try:
        (path / "summary.csv").write_text(out.getvalue(), encoding="utf-8")
    except OSError as error:
        raise RunDirError(f"{path / 'summary.csv'}: cannot write: {error.strerror}") from error
    return summary


def _cell(value: Value) -> str:
    return "" if value is None else f"{value:.6g}"


def verdict(summary: Mapping[str, Any]) -> str:
    """The result in one sentence, no stronger than the data."""
    policies = summary["policies"]
    others = {name: row for name, row in policies.items() if name != BASELINE and row.get("ratio_to_vllm")}
    if BASELINE not in policies or not others:
        return "No comparison: the runs do not hold vllm and another policy on the same arrivals."
    name = "continuum" if "continuum" in others else max(others, key=lambda n: others[n]["ratio_to_vllm"])
    ratio, interval = others[name]["ratio_to_vllm"], others[name]["ratio_to_vllm_interval"]
    base, own = policies[BASELINE]["jct_mean_s"], others[name]["jct_mean_s"]
    seeds = len(summary["seeds"])
    facts = f"mean JCT {own:.0f} s against {base:.0f} s"
    if interval is None:
        return (
            f"{name}: {ratio:.2f}x vllm's speed ({facts}) on one arrival sequence; one seed is no proof, "
            "use --seeds 5 for an interval."
        )
    low, high = interval
    spread = f"95% interval {low:.2f} to {high:.2f}, {seeds} seeds, paired"
    if low <= 1.0 <= high:
        return f"{name} and vllm cannot be told apart: {ratio:.2f}x ({spread}; {facts})."
    direction = "faster" if ratio > 1 else "slower"
    factor = ratio if ratio > 1 else 1 / ratio
    return f"{name} finished programs {factor:.2f}x {direction} than vllm ({spread}; {facts})."
