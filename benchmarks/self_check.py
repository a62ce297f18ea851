"""False-alarm rates of the comparison: how often it reports a difference between a policy and itself.

    python benchmarks/self_check.py RUNS [--against TWINS] [--pairs 5]

Two kinds of pairs have no true difference. *Other seeds*: the runs of a policy are split at random into two groups,
which are compared as if they were two policies. *A twin*: the policy runs again on the same arrivals with step times
that are longer by a ten-thousandth of a millisecond, and is paired by seed as in a real comparison. A twin is truly
slower by that little, which a narrow interval may rightly show.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from commands import show
from continuum_analysis.compare.intervals import (
    Interval,
    check_same_arrivals,
    paired_jcts,
    ratio_interval,
)
from continuum_analysis.compare.runs import Run, load_runs
from continuum_analysis.compare.verdict import outcome
from continuum_analysis.compare.words import markdown
from continuum_analysis.records.timeline import AnalysisError

DEALS = 400
"""Number of random splits of the runs into groups. Their comparisons share runs, so more splits add little."""

HEADINGS = ("policy", "pairs", "95% interval", "separate", "alarms", "alarm rate", "no interval")

Pair = tuple[Run, Run]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="an experiment with many seeds")
    parser.add_argument("--against", type=Path, help="the same experiment with a difference that has no effect")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs in each comparison, at least 2")
    options = parser.parse_args()
    twins = [] if options.against is None else load_runs(options.against)
    rows = [
        [rate.policy, rate.pairs, rate.method, str(rate.separate), str(rate.alarms)]
        + [f"{share:.1%}" for share in (rate.rate, rate.no_interval)]
        for rate in self_check(load_runs(options.runs), twins, options.pairs)
    ]
    show(markdown(HEADINGS, rows))


@dataclass(frozen=True, slots=True)
class Rate:
    """How often the interval of a ratio did not contain 1 (an alarm)."""

    policy: str
    method: str
    pairs: str
    """The kind of the pairs: ``other seeds`` or ``same arrivals``."""
    separate: int
    """Number of comparisons in the first split, which share no run."""
    alarms: int
    """Number of alarms in the first split."""
    rate: float
    """Share of alarms in the comparisons of all splits."""
    no_interval: float
    """Share of comparisons without an interval, which raise no alarm."""


def self_check(runs: Sequence[Run], twins: Sequence[Run], per_comparison: int) -> list[Rate]:
    """Compute the false-alarm rates of every policy in ``runs``; with ``twins`` also paired by seed.

    Raises:
        AnalysisError: there are too few runs for two comparisons, or a twin had other arrivals.
    """
    rates = []
    for policy in dict.fromkeys(run.arm for run in runs):
        ours = [run for run in runs if run.arm == policy]
        if len(ours) < 4 * per_comparison:
            least = f"two comparisons of {per_comparison} pairs"
            raise AnalysisError(f"{policy}: {len(ours)} runs are too few for {least}; run more --seeds")
        dealt = [_halves(ours, order) for order in _orders(len(ours))]
        rates += _rates(policy, "other seeds", dealt, per_comparison)
        pairs = list(_twins(ours, {run.manifest.seed: run for run in twins if run.arm == policy}))
        if pairs:
            dealt = [[pairs[place] for place in order] for order in _orders(len(pairs))]
            rates += _rates(policy, "same arrivals", dealt, per_comparison)
    return rates


def _orders(number: int) -> list[Sequence[int]]:
    """Return the order in which the runs are given, then random orders."""
    random = np.random.default_rng(0)
    return [range(number), *(random.permutation(number).tolist() for _ in range(DEALS - 1))]


def _halves(runs: Sequence[Run], order: Sequence[int]) -> list[Pair]:
    """Pair each run with the next in that order."""
    return [(runs[a], runs[b]) for a, b in zip(order[::2], order[1::2], strict=False)]


def _twins(ours: Sequence[Run], theirs: dict[int, Run]) -> Iterator[Pair]:
    for run in ours:
        twin = theirs.get(run.manifest.seed)
        if twin is not None:
            where = f"{run.path} and {twin.path}"
            check_same_arrivals(where, run.metrics.facts.everyone, twin.metrics.facts.everyone)
            yield run, twin


Method = Callable[[Sequence[Pair]], Interval]


def _rates(policy: str, kind: str, dealt: Sequence[Sequence[Pair]], per_comparison: int) -> list[Rate]:
    several = f"{per_comparison} {'pairs of seeds' if kind == 'other seeds' else 'seeds'}"
    methods: list[tuple[str, Method, int, int]] = [
        (f"log ratio over {several} (the verdict's)", _log_ratio, per_comparison, DEALS),
        (f"bootstrap over {several}", _bootstrap, per_comparison, 10),
        ("bootstrap over one pair's programs", _within_one, 1, 2),
    ]
    return [_rate(policy, name, kind, method, size, dealt[:deals]) for name, method, size, deals in methods]


def _rate(policy: str, name: str, pairs: str, method: Method, size: int, deals: Sequence[Sequence[Pair]]) -> Rate:
    alarms, unbounded, total, separate, first = 0, 0, 0, 0, 0
    for number, dealt in enumerate(deals):
        groups = [dealt[at : at + size] for at in range(0, len(dealt) - size + 1, size)]
        intervals = [method(group) for group in groups]
        raised = sum(map(_is_alarm, intervals))
        alarms, total = alarms + raised, total + len(groups)
        unbounded += sum(interval.low is None for interval in intervals)
        if number == 0:
            separate, first = len(groups), raised
    return Rate(policy, name, pairs, separate, first, alarms / total, unbounded / total)


def _is_alarm(interval: Interval) -> bool:
    return interval.bounds is not None and outcome(interval) != "tie"


def _means(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    """Return the mean JCTs of the programs that finished in both runs of each pair, as a real comparison does."""
    times = [paired_jcts(a.metrics.facts.programs, b.metrics.facts.programs) for a, b in pairs]
    return [float(np.mean(over)) for over, _ in times], [float(np.mean(under)) for _, under in times]


def _log_ratio(pairs: Sequence[Pair]) -> Interval:
    return ratio_interval(*_means(pairs))


def _resampled_ratio(over: Sequence[float], under: Sequence[float]) -> Interval:
    """Compute the ratio of the means with a bootstrap interval (paired, percentile, fixed seed)."""
    top, bottom = np.asarray(over, dtype=float), np.asarray(under, dtype=float)
    estimate = float(top.mean() / bottom.mean())
    if len(top) < 2 or not top.min() > 0 < bottom.min():  # resamples of times of 0 s have no ratio
        return Interval(estimate)
    picks = np.random.default_rng(0).integers(0, len(top), (4000, len(top)))
    ratios = top[picks].mean(axis=1) / bottom[picks].mean(axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(estimate, float(low), float(high))


def _bootstrap(pairs: Sequence[Pair]) -> Interval:
    return _resampled_ratio(*_means(pairs))


def _within_one(pairs: Sequence[Pair]) -> Interval:
    ((run, twin),) = pairs
    return _resampled_ratio(*paired_jcts(run.metrics.facts.programs, twin.metrics.facts.programs))


if __name__ == "__main__":
    main()
