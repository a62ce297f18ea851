"""How often the comparison finds a difference where there is none: a policy compared with itself.

Two kinds of pairs have no true difference. *Other seeds*: runs of one policy are dealt at random into two groups, which
are compared as if they were two policies. *A twin*: the same policy on the same arrivals in an experiment whose step
times are longer by a ten-thousandth of a millisecond, paired by seed as in a real comparison. A twin is truly slower by
that little, and a narrow interval may rightly show it, so for twins the claims count and not the alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from continuum_analysis.compare.intervals import (
    Interval,
    check_same_arrivals,
    paired_jcts,
    ratio_interval,
    resampled_ratio,
)
from continuum_analysis.compare.runs import Run
from continuum_analysis.compare.words import outcome
from continuum_analysis.records.timeline import AnalysisError

DEALS = 400
"""Random dealings of the runs into groups. Their comparisons share runs, so more dealings add little."""

Pair = tuple[Run, Run]


@dataclass(frozen=True, slots=True)
class Rate:
    """How often an interval for the ratio left out 1."""

    policy: str
    method: str
    pairs: str
    """What was compared with what."""
    per_comparison: int
    """Pairs of runs in each comparison."""
    separate: int
    """Comparisons that share no run."""
    alarms: int
    """How many of these have an interval that leaves out 1."""
    rate: float
    """Share of alarms over all dealings."""
    claims: float
    """Share of comparisons in which the verdict would name a difference: alarms, except intervals within 1% of 1."""
    no_interval: float
    """Share of comparisons that have no interval; they raise no alarm."""


def self_check(runs: Sequence[Run], twins: Sequence[Run], per_comparison: int) -> list[Rate]:
    """False-alarm rates of every policy in ``runs``; with ``twins`` also paired by seed.

    Raises:
        AnalysisError: too few runs for two comparisons, or twins that did not play the same arrivals.
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
    """The order as it is, then random ones."""
    random = np.random.default_rng(0)
    return [range(number), *(random.permutation(number).tolist() for _ in range(DEALS - 1))]


def _halves(runs: Sequence[Run], order: Sequence[int]) -> list[Pair]:
    """Runs in that order, each with its neighbour."""
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
    alarms, claims, unbounded, total, separate, first = 0, 0, 0, 0, 0, 0
    for number, dealt in enumerate(deals):
        groups = [dealt[at : at + size] for at in range(0, len(dealt) - size + 1, size)]
        found = [method(group) for group in groups]
        raised = sum(_leaves_out_one(each) for each in found)
        claims += sum(each.bounds is not None and outcome(each) in ("faster", "slower") for each in found)
        alarms, total = alarms + raised, total + len(groups)
        unbounded += sum(each.low is None for each in found)
        if number == 0:
            separate, first = len(groups), raised
    return Rate(policy, name, pairs, size, separate, first, alarms / total, claims / total, unbounded / total)


def _leaves_out_one(found: Interval) -> bool:
    return found.bounds is not None and not found.bounds[0] <= 1 <= found.bounds[1]


def _means(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    """Mean JCTs of the programs that finished in both runs, as a real comparison takes them."""
    times = [paired_jcts(a.metrics.facts.programs, b.metrics.facts.programs) for a, b in pairs]
    return [float(np.mean(over)) for over, _ in times], [float(np.mean(under)) for _, under in times]


def _log_ratio(pairs: Sequence[Pair]) -> Interval:
    return ratio_interval(*_means(pairs))


def _bootstrap(pairs: Sequence[Pair]) -> Interval:
    return resampled_ratio(*_means(pairs))


def _within_one(pairs: Sequence[Pair]) -> Interval:
    ((one, other),) = pairs
    return resampled_ratio(*paired_jcts(one.metrics.facts.programs, other.metrics.facts.programs))
