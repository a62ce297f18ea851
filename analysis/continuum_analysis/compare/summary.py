"""The summary of several runs: each arm's means over seeds with their intervals, and its ratio to the baseline."""

from __future__ import annotations

import csv
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from continuum_traces.json_io import write_json, writing
from continuum_traces.records.run_dir import MANIFEST, SUMMARY, read_manifest
from continuum_traces.schema import Manifest
from continuum_traces.typed import to_json

from continuum_analysis.compare.intervals import (
    Comparison,
    Interval,
    check_same_arrivals,
    mean_interval,
    paired_jcts,
    ratio_interval,
    sooner_equal_later,
    standardized_difference,
)
from continuum_analysis.compare.runs import (
    BASELINES,
    Run,
    baseline_of,
    by_arm,
    check_comparable,
    load_runs,
)
from continuum_analysis.compare.scenario import scenario_line, scenario_of
from continuum_analysis.metrics import is_overloaded, is_share
from continuum_analysis.records.generator import lateness_warning
from continuum_analysis.records.unknown import who_waits

SUMMARY_SCHEMA = "continuum-summary"
COMPARED = {
    "jct_mean_ratio": ("jct_mean_ratio_interval", "jct_ratio"),
    "difference_to_vllm_s": ("difference_to_vllm_interval_s", "difference_s"),
    "sooner_than_vllm_share": ("sooner_than_vllm_interval", "sooner"),
}
"""The estimates of a comparison in files: the name of each, that of its interval, and the attribute."""


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """The summary of one arm: a policy, or a policy with a router if the runs have different routers."""

    policy: str
    router: str | None
    seeds: tuple[int, ...]
    metrics: Mapping[str, Interval | None]
    """The mean over seeds of each metric, by name; None if no run has a value."""
    comparison: Comparison | None = None
    """The comparison with the baseline; None if they have no seed in common, or no program finished under both."""
    pins_by_ending: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Counts, summed over seeds."""
    errors_by_kind: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Counts, summed over seeds."""
    unfinished: tuple[str, ...] = ()
    """Program ids."""
    failed: tuple[str, ...] = ()
    """Program ids."""

    def mean(self, metric: str) -> float | None:
        value = self.metrics[metric]
        return None if value is None else value.mean

    @property
    def left_out(self) -> tuple[str, ...]:
        """Ids of the programs that are in no mean."""
        return (*self.unfinished, *self.failed)

    @property
    def overloaded(self) -> bool:
        """Whether unfinished work grew, so that the mean JCT depends on the number of programs."""
        return is_overloaded({name: self.mean(name) for name in self.metrics})

    @property
    def jct_ratio(self) -> Interval | None:
        """This arm's mean JCT / the baseline's; None if it finished fewer: it is never called faster."""
        if self.comparison is None or self.comparison.finished[0] < self.comparison.finished[1]:
            return None
        return self.comparison.jct_ratio

    def estimates(self) -> dict[str, tuple[str, Interval | None]]:
        """Return every estimate by its name in files, behind the name of its interval."""
        compared = {
            name: (bounds, getattr(self.comparison, attribute, None)) for name, (bounds, attribute) in COMPARED.items()
        }
        return {name: (name, interval) for name, interval in self.metrics.items()} | compared

    def row(self) -> dict[str, float | None]:
        """Return the arm's row in tables: each estimate, and the two bounds of its interval."""
        columns: dict[str, float | None] = {}
        for name, (bounds, interval) in self.estimates().items():
            low, high = (interval.bounds if interval else None) or (None, None)
            columns |= {name: interval.mean if interval else None, f"{bounds}_low": low, f"{bounds}_high": high}
        return {**columns, "effect_size_to_vllm": self.comparison.effect if self.comparison else None}

    def to_json(self) -> dict[str, Any]:
        """Return the arm's entry in summary.json."""
        comparison, estimates = self.comparison, self.estimates()
        return {
            "policy": self.policy,
            "router": self.router,
            **{name: interval.mean if interval else None for name, (_, interval) in estimates.items()},
            **{bounds: _bounds(interval) for name, (bounds, interval) in estimates.items() if name in COMPARED},
            "jct_mean_interval_s": _bounds(self.metrics["jct_mean_s"]),
            "effect_size_to_vllm": comparison.effect if comparison else None,
            "worst_slowdown_to_vllm": comparison.worst if comparison else None,
            "paired_seeds": list(comparison.seeds) if comparison else [],
            "paired_programs": list(comparison.programs) if comparison else [],
            "finished_programs": list(comparison.finished) if comparison else [],
            "pins_by_ending": dict(self.pins_by_ending),
            "errors_by_kind": dict(self.errors_by_kind),
            "unfinished": list(self.unfinished),
            "failed": list(self.failed),
            "seeds": list(self.seeds),
            "intervals": {name: _bounds(interval) for name, interval in self.metrics.items()},
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of several runs of the same workload, by arm."""

    seeds: tuple[int, ...]
    baseline: str
    """The arm with which the others are compared (see ``baseline_of``)."""
    arms: Mapping[str, ArmSummary]
    pairs: Mapping[tuple[str, str], Comparison]
    """Every two ranked arms, baseline excluded: the faster of the two compared with the other, on the same arrivals."""
    warnings: tuple[str, ...]
    manifest: Manifest
    """The manifest of the experiment, or of the first run."""
    scenario: Mapping[str, Any] | None = None
    """The benchmark whose rules the runs follow, and whether they are comparable (``scenario_of``)."""

    @property
    def ranked(self) -> list[str]:
        """The arms by their ratio to the baseline, fastest first, without those that finished fewer programs than
        another arm."""
        comparisons = {name: arm.comparison for name, arm in self.arms.items() if arm.comparison is not None}
        shares = {name: comparison.finished[0] / comparison.programs[1] for name, comparison in comparisons.items()}
        whole = [name for name, share in shares.items() if share == max(shares.values())]
        return sorted(whole, key=lambda name: comparisons[name].jct_ratio.mean)

    def to_json(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        return {
            "schema": SUMMARY_SCHEMA,
            "version": 1,
            "seeds": list(self.seeds),
            "baseline": self.baseline,
            "policies": {name: arm.to_json() for name, arm in self.arms.items()},
            "warnings": list(self.warnings),
            "manifest": to_json(self.manifest),
            **({"scenario": dict(self.scenario)} if self.scenario else {}),
        }


def _bounds(interval: Interval | None) -> list[float] | None:
    return None if interval is None or interval.bounds is None else list(interval.bounds)


def summarize(path: Path) -> Summary:
    """Summarise the complete runs at or below ``path``.

    Raises:
        AnalysisError: there is no finished run, or the runs cannot be compared.
        RunDirError: a file has a fault.
    """
    return summarize_runs(path, load_runs(path))


def summarize_runs(path: Path | None, runs: Sequence[Run], baseline: str | None = None) -> Summary:
    """Summarise runs that ``load_runs`` has read.

    Args:
        path: the experiment's directory; None for runs of several directories.
        runs: runs with the same load.
        baseline: an arm or a policy; None: see ``baseline_of``.

    Raises:
        AnalysisError: the runs cannot be compared, or the baseline has no run.
    """
    check_comparable(runs)
    arms = by_arm(sorted(runs, key=_order(path, runs)))
    base = baseline_of(arms, baseline)
    left_out = _leave_out_seeds(arms)
    summary = Summary(
        seeds=tuple(sorted({run.manifest.seed for group in arms.values() for run in group})),
        baseline=base,
        arms={arm: _summarize_arm(group, compare_to(arms[base], group)) for arm, group in arms.items()},
        pairs={},
        warnings=(*left_out, *_assumed(arms), *_warnings(arms)),
        manifest=read_manifest(path) if path is not None and (path / MANIFEST).exists() else runs[0].manifest,
    )
    scenario = scenario_of(runs)
    if scenario is not None:
        line = () if scenario["comparable"] else (scenario_line(scenario),)
        summary = dataclasses.replace(summary, scenario=scenario, warnings=(*line, *summary.warnings))
    ranked = [arm for arm in summary.ranked if arm != base]
    compared = {(one, other): compare_to(arms[other], arms[one]) for one, other in combinations(ranked, 2)}
    return dataclasses.replace(summary, pairs={pair: each for pair, each in compared.items() if each is not None})


def _leave_out_seeds(arms: dict[str, list[Run]]) -> list[str]:
    """Drop the runs of seeds that some arm lacks, and return warnings that name these. If no seed is common to all,
    all runs stay."""
    seeds = {arm: {run.manifest.seed for run in group} for arm, group in arms.items()}
    common, every = set.intersection(*seeds.values()), set.union(*seeds.values())
    if not common:
        return ["the policies have no seed in common, so that nothing here compares all of them"]
    for arm, group in arms.items():
        arms[arm] = [run for run in group if run.manifest.seed in common]
    return [
        f"seed {seed} is left out: no finished run of {', '.join(arm for arm in seeds if seed not in seeds[arm])}"
        for seed in sorted(every - common)
    ]


def _order(path: Path | None, runs: Sequence[Run]) -> Callable[[Run], tuple[int, int, int]]:
    """Return a sort key: router in order of appearance, then policy, then seed. Policies are in the order of the
    experiment's manifest; without a manifest the baseline comes first and the others follow in order of appearance."""
    if path is not None and (path / MANIFEST).exists():
        asked = read_manifest(path).policy.split(",")
    else:
        asked = [*BASELINES, *(run.manifest.policy for run in runs)]
    routers = list(dict.fromkeys(run.router for run in runs))
    return lambda run: (
        routers.index(run.router),
        asked.index(run.manifest.policy) if run.manifest.policy in asked else len(asked),
        run.manifest.seed,
    )


def compare_to(baseline: Sequence[Run], runs: Sequence[Run]) -> Comparison | None:
    """Compare a policy's runs with the baseline's on the seeds that both have.

    Returns:
        None if they have no seed in common, or no program finished under both, or all of these took 0 s.

    Raises:
        AnalysisError: two runs of a seed had different arrivals.
    """
    by_seed = {run.manifest.seed: run for run in runs}
    pairs = [(base, by_seed[base.manifest.seed]) for base in baseline if base.manifest.seed in by_seed]
    for base, run in pairs:
        if not base.manifest.workload.closed_loop:  # in which arrivals depend on the server
            where = f"{base.path} and {run.path}"
            check_same_arrivals(where, base.metrics.facts.everyone, run.metrics.facts.everyone)
    times = [paired_jcts(base.metrics.facts.programs, run.metrics.facts.programs) for base, run in pairs]
    if not times or not all(sum(over) > 0 < sum(under) for over, under in times):
        return None
    over, under = [float(np.mean(a)) for a, _ in times], [float(np.mean(b)) for _, b in times]
    ends = np.array([sooner_equal_later(a, b) for a, b in times])
    sooner, tied, later = ends.T
    ended = ends.sum(axis=1)
    return Comparison(
        seeds=tuple(base.manifest.seed for base, _ in pairs),
        jct_ratio=ratio_interval(under, over),
        jct_means_s=(float(np.mean(under)), float(np.mean(over))),
        difference_s=mean_interval([a - b for a, b in zip(over, under, strict=True)]),
        effect=standardized_difference(over, under),
        sooner=mean_interval((sooner + tied / 2) / ended).within(0.0, 1.0),
        later=float(np.mean(later / ended)),
        worst=max(b / a for over, under in times for a, b in zip(over, under, strict=True) if a > 0),
        programs=(sum(len(a) for a, _ in times), sum(len(base.metrics.facts.everyone) for base, _ in pairs)),
        finished=(
            sum(len(run.metrics.facts.programs) for _, run in pairs),
            sum(len(base.metrics.facts.programs) for base, _ in pairs),
        ),
        ends=tuple(ends.sum(axis=0).tolist()),
    )


def _summarize_arm(runs: Sequence[Run], comparison: Comparison | None) -> ArmSummary:
    metrics = [run.metrics for run in runs]
    names = metrics[0].values  # METRICS, and the SLO's where one is given
    by_seed = {name: [float(v) for each in metrics if (v := each.values[name]) is not None] for name in names}
    return ArmSummary(
        policy=runs[0].manifest.policy,
        router=runs[0].manifest.engine_options.router,
        seeds=tuple(sorted(run.manifest.seed for run in runs)),
        metrics={name: mean_of(name, values) for name, values in by_seed.items()},
        comparison=comparison,
        pins_by_ending=_sum_counts(each.pins_by_ending for each in metrics),
        errors_by_kind=_sum_counts(each.errors_by_kind for each in metrics),
        unfinished=tuple(sorted({program for each in metrics for program in each.facts.unfinished})),
        failed=tuple(sorted({program for each in metrics for program in each.facts.failed})),
    )


def mean_of(name: str, values: Sequence[float]) -> Interval | None:
    """Return the mean of a metric over seeds, with its interval cut to possible values; None without values."""
    if not values:
        return None
    least = -inf if name == "backlog_growth" else 0.0
    return mean_interval(values).within(least, 1.0 if is_share(name) else inf)


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum(map(Counter, counts), Counter[str]()))


def _assumed(arms: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield what was assumed of the programs when they were imported, once for all runs."""
    works = (run.manifest.workload for group in arms.values() for run in group)
    lines = (line for work in works for line in work.assumptions or ())
    yield from (f"assumed: {line}" for line in dict.fromkeys(lines))


def _warnings(arms: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield warnings about the means: unfinished programs, policies that raised, lengths, lateness."""
    for run in (run for group in arms.values() for run in group):
        facts, where = run.metrics.facts, f"{run.arm}, seed {run.manifest.seed}"
        if left_out := len(facts.unfinished) + len(facts.failed):
            yield (
                f"{where}: {left_out} of {len(facts.everyone)} programs did not finish; its times leave them out, the "
                "ratio uses programs that finished under both policies"
            )
        if waiting := who_waits(facts):
            yield f"{where}: {waiting}"
        if run.plugin_errors:
            yield (
                f"{where}: the server caught {run.plugin_errors} exceptions in its policy (its log has them) and "
                "scheduled without it; these times are no result of the policy"
            )
        yield from (f"{where}: {note}" for note in run.notes)
        if late := lateness_warning(facts):
            yield f"{where}: {late}"


def write_summary(path: Path, runs: Sequence[Run], baseline: str | None = None) -> Summary:
    """Write summary.json and summary.csv; return the summary. The arguments are those of ``summarize_runs``.

    Raises:
        AnalysisError, RunDirError: the runs cannot be compared, or the files cannot be written.
    """
    summary = summarize_runs(path, runs, baseline)
    write_json(path / SUMMARY, summary.to_json())
    write_csv(path / "summary.csv", [{"policy": name, **arm.row()} for name, arm in summary.arms.items()])
    return summary


def write_csv(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that have the same columns."""
    with writing(file), file.open("w", encoding="utf-8", newline="") as out:
        table = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
