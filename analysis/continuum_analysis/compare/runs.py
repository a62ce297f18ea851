"""Several runs side by side: means over seeds with intervals, and arms paired on the same arrivals."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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

from continuum_analysis.compare.intervals import (
    Comparison,
    Interval,
    check_same_arrivals,
    mean_interval,
    paired_jcts,
    ratio_interval,
    resampled_ratio,
    share_sooner,
    standardized_difference,
)
from continuum_analysis.compare.words import BASELINE, verdict
from continuum_analysis.metrics import METRICS, RunMetrics, Value, analyze_run
from continuum_analysis.records.generator import lateness_warning
from continuum_analysis.records.timeline import AnalysisError

__all__ = ["BASELINE", "Run", "load_runs", "mean_interval", "summarize", "verdict", "write_summary"]

SUMMARY_SCHEMA = "continuum-summary"
MUST_AGREE = ("workload", "engine", "hardware", "engine_options")
"""Manifest fields two runs must share before their numbers may stand side by side."""
TIERS = "offload"
"""The engine option in which a policy and its ``+offload`` arm differ."""
ROUTER = "router"
"""The engine option in which arms may differ that run on equal replicas."""


@dataclass(frozen=True, slots=True)
class Run:
    path: Path
    manifest: Manifest
    metrics: RunMetrics
    router: str | None = None
    """What its replicas stand behind, where it stands beside runs behind others."""

    @property
    def arm(self) -> str:
        """What it is called in a comparison: ``continuum``, or ``continuum@affinity`` where routers differ."""
        return self.manifest.policy + (f"@{self.router}" if self.router else "")


def name_routers(runs: Sequence[Run]) -> list[Run]:
    """The runs as they stand side by side: with their routers, if they lie behind different ones."""
    routers = [run.manifest.engine_options.get(ROUTER) for run in runs]
    several = len(set(routers)) > 1
    return [replace(run, router=router if several else None) for run, router in zip(runs, routers, strict=True)]


def load_runs(path: Path) -> list[Run]:
    """Complete runs at or below ``path``: those with a manifest, records and engine.json.

    Raises:
        AnalysisError: none there.
    """
    runs = []
    for folder in runs_below(path):
        if (folder / MANIFEST).exists() and (folder / "engine.json").exists():
            runs.append(read_run_metrics(folder))
    if not runs:
        raise AnalysisError(f"{path}: no finished run there")
    return name_routers(runs)


def read_run_metrics(folder: Path) -> Run:
    """One run, cut short or not; an empty manifest where there is none (the preview's files)."""
    manifest = read_manifest(folder) if (folder / MANIFEST).exists() else Manifest()
    return Run(folder, manifest, analyze_run(folder))


def load_all(paths: Sequence[Path]) -> list[Run]:
    """The runs of several directories as those of one experiment: more seeds, more policies, more loads.

    Raises:
        AnalysisError: a directory without a run.
    """
    return name_routers([run for path in paths for run in load_runs(path)])


def by_load(runs: Sequence[Run]) -> dict[float | None, list[Run]]:
    """Runs by programs per second, lowest first; None where a manifest does not say.

    Raises:
        AnalysisError: runs that differ in more than load, policy, router and seed.
    """
    loads: dict[float | None, list[Run]] = {}
    for run in runs:
        _check_same(runs[0], run, leave_out=("jps",))
        jps = run.manifest.workload.get("jps")
        loads.setdefault(None if jps is None else float(jps), []).append(run)
    return dict(sorted(loads.items(), key=lambda item: item[0] or 0.0))


def check_comparable(runs: Sequence[Run]) -> None:
    """Refuse runs that differ in anything but policy, router and seed, and an arm that is there twice.

    Raises:
        AnalysisError: naming the manifest's field and both directories.
    """
    first = runs[0]
    seen: dict[tuple[str, int], Run] = {}
    options: dict[str, Run] = {}
    for run in runs:
        policy, seed = run.manifest.policy, run.manifest.seed
        twin = seen.setdefault((run.arm, seed), run)
        if twin is not run:
            raise AnalysisError(f"{twin.path} and {run.path} are both policy {run.arm}, seed {seed}; keep them apart")
        other = options.setdefault(policy, run)
        if other.manifest.policy_options != run.manifest.policy_options:
            detail = _difference(other.manifest.policy_options, run.manifest.policy_options)
            raise AnalysisError(f"{other.path} and {run.path} cannot be averaged: policy_options differs{detail}")
        _check_same(first, run)
    with_tiers = [run for run in runs if run.manifest.engine_options.get(TIERS)]
    for run in with_tiers:
        _check_same(with_tiers[0], run)


def _check_same(first: Run, run: Run, leave_out: Sequence[str] = ()) -> None:
    """Refuse two runs of different work or machines; ``leave_out`` names keys of the workload that may differ."""
    where = f"{first.path} and {run.path} cannot be compared"
    ours_work, theirs_work = (
        {key: value for key, value in each.manifest.workload.items() if key not in leave_out} for each in (first, run)
    )
    hashes = ours_work.get("sha256"), theirs_work.get("sha256")
    if hashes[0] != hashes[1]:
        raise AnalysisError(
            f"{where}: they played different workloads (sha256 {_brief(hashes[0])} against {_brief(hashes[1])}); only "
            "runs of the same programs say anything about policies"
        )
    for name in MUST_AGREE:
        ours, theirs = getattr(first.manifest, name), getattr(run.manifest, name)
        if name == "workload":
            ours, theirs = ours_work, theirs_work
        if name == "engine_options":
            ours, theirs = {**ours, ROUTER: None}, {**theirs, ROUTER: None}
            if not (ours.get(TIERS) and theirs.get(TIERS)):  # an arm with tiers, one without
                ours, theirs = {**ours, TIERS: None}, {**theirs, TIERS: None}
        if ours != theirs:
            raise AnalysisError(f"{where}: {name} differs{_difference(ours, theirs)}")


def _brief(digest: object) -> str:
    return f"{digest:.12}" if isinstance(digest, str) else "unknown"


def _difference(ours: Any, theirs: Any) -> str:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in sorted({*ours, *theirs}):
            if ours.get(key) != theirs.get(key):
                return f" in {key}: {ours.get(key)!r} against {theirs.get(key)!r}"
    return f": {ours!r} against {theirs!r}"


def summarize(path: Path) -> dict[str, Any]:
    """What summary.json holds: per arm the mean over seeds of every metric, and the paired ratio to the baseline.

    An arm is a policy, or, of runs behind different routers, a policy behind one of them; the baseline is ``vllm``, and
    then the first router's.

    Raises:
        AnalysisError: no finished run, or runs that may not stand side by side.
        RunDirError: a fault in a file.
    """
    return summarize_runs(path, load_runs(path))


def summarize_runs(path: Path | None, runs: Sequence[Run]) -> dict[str, Any]:
    """The summary of runs already read (``load_runs``); without a path, of runs from several directories."""
    check_comparable(runs)
    by_arm: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_as_asked(path, runs)):
        by_arm.setdefault(run.arm, []).append(run)
    base = next((arm for arm, group in by_arm.items() if group[0].manifest.policy == BASELINE), None)
    baseline = by_arm[base] if base is not None else []
    policies = {arm: _summarize_arm(group, compare_to(baseline, group)) for arm, group in by_arm.items()}
    file = path / MANIFEST if path is not None else None
    manifest = read_json(file) if file is not None and file.exists() else _as_json(runs[0].manifest)
    return {
        "schema": SUMMARY_SCHEMA,
        "version": 1,
        "seeds": sorted({run.manifest.seed for run in runs}),
        "baseline": base,
        "policies": policies,
        "warnings": _warnings(by_arm),
        "manifest": manifest,
    }


def _as_asked(path: Path | None, runs: Sequence[Run]) -> Callable[[Run], tuple[int, int, int]]:
    """Routers as they come; policies as they were asked for, or, without an experiment's manifest, the baseline first
    and the others as they come."""
    if path is not None and (path / MANIFEST).exists():
        asked = read_manifest(path).policy.split(",")
    else:
        asked = [BASELINE, *(run.manifest.policy for run in runs)]
    routers = list(dict.fromkeys(run.router for run in runs))
    return lambda run: (
        routers.index(run.router),
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
        closed = str(base.manifest.workload.get("arrivals", "")).startswith("concurrency")
        check_same_arrivals(where, base.metrics.facts.everyone, run.metrics.facts.everyone, closed)
    times = [paired_jcts(base.metrics.facts.programs, run.metrics.facts.programs) for base, run in pairs]
    if not times or not all(over for over, _ in times):
        return None
    over, under = [float(np.mean(a)) for a, _ in times], [float(np.mean(b)) for _, b in times]
    several = len(times) > 1
    return Comparison(
        seeds=tuple(base.manifest.seed for base, _ in pairs),
        ratio=ratio_interval(over, under),
        difference_s=mean_interval([a - b for a, b in zip(over, under, strict=True)]),
        ratio_within=None if several else resampled_ratio(*times[0]),
        ratio_resampled=resampled_ratio(over, under) if several else None,
        effect=standardized_difference(over, under),
        sooner=mean_interval([share_sooner(a, b) for a, b in times]),
        programs=(sum(len(a) for a, _ in times), sum(len(base.metrics.facts.everyone) for base, _ in pairs)),
    )


def _summarize_arm(runs: Sequence[Run], comparison: Comparison | None) -> dict[str, Any]:
    row: dict[str, Any] = {"policy": runs[0].manifest.policy, "router": runs[0].manifest.engine_options.get(ROUTER)}
    intervals: dict[str, list[float] | None] = {}
    for metric in METRICS:
        values = [float(v) for run in runs if (v := run.metrics.values[metric.name]) is not None]
        row[metric.name] = float(np.mean(values)) if values else None
        intervals[metric.name] = _pair(mean_interval(values)) if values else None
    row["jct_mean_interval_s"] = intervals["jct_mean_s"]
    row |= _comparison_fields(comparison)
    row["pins_by_ending"] = _sum_counts([run.metrics.pins_by_ending for run in runs])
    row["errors_by_kind"] = _sum_counts([run.metrics.errors_by_kind for run in runs])
    row["unfinished"] = sorted({program for run in runs for program in run.metrics.unfinished})
    row["failed"] = sorted({program for run in runs for program in run.metrics.failed})
    row["seeds"] = sorted(run.manifest.seed for run in runs)
    row["intervals"] = intervals
    return row


def _comparison_fields(found: Comparison | None) -> dict[str, Any]:
    within, resampled = (found.ratio_within, found.ratio_resampled) if found else (None, None)
    return {
        "ratio_to_vllm": found.ratio.mean if found else None,
        "ratio_to_vllm_interval": _pair(found.ratio) if found else None,
        "ratio_to_vllm_within_one_arrival_sequence": _pair(within) if within else None,
        "ratio_to_vllm_bootstrap_interval": _pair(resampled) if resampled else None,
        "difference_to_vllm_s": found.difference_s.mean if found else None,
        "difference_to_vllm_interval_s": _pair(found.difference_s) if found else None,
        "effect_size_to_vllm": found.effect if found else None,
        "sooner_than_vllm_share": found.sooner.mean if found else None,
        "sooner_than_vllm_interval": _pair(found.sooner) if found else None,
        "paired_seeds": list(found.seeds) if found else [],
        "paired_programs": list(found.programs) if found else [],
    }


def _warnings(by_arm: Mapping[str, Sequence[Run]]) -> list[str]:
    """What makes a mean mean less than it seems."""
    warnings = []
    all_seeds = {run.manifest.seed for group in by_arm.values() for run in group}
    for policy, group in by_arm.items():
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
            late = lateness_warning(run.metrics.facts)
            if late is not None and run.manifest.engine != "virtual":  # there a turn only waits for a step to end
                warnings.append(f"{policy}, seed {run.manifest.seed}: {late}")
    return warnings


def _pair(interval: Interval) -> list[float] | None:
    return None if interval.low is None or interval.high is None else [interval.low, interval.high]


def _sum_counts(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


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
        by_seed = sorted(runs, key=lambda run: (order.index(run.arm), run.manifest.seed))
        cells = [
            [run.arm, str(run.manifest.seed), *(_cell(run.metrics.values[name]) for name in names)] for run in by_seed
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
