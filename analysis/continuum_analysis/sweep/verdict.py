"""The verdict of a sweep: the policies that were the fastest on average over the grid, as far as the intervals show."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Literal

from continuum_traces.names import counted, listed

from continuum_analysis.compare.intervals import Interval
from continuum_analysis.compare.verdict import (
    MORE_SEEDS,
    Outcome,
    Standing,
    as_sentence,
    beside,
    claim,
    outcome,
)
from continuum_analysis.sweep.tables import MODELLED, Sweep, point_text


@dataclass(slots=True)
class PolicyRatios:
    """The ratios of one policy to the baseline at each point of the grid."""

    policy: str
    points: list[tuple[str, Interval]] = field(default_factory=list)
    """The point in words, and this policy's mean JCT / the baseline's at that point."""
    finished_fewer: int = 0
    """Number of points at which fewer programs finished than under another policy. Such a policy is not ranked."""
    longer_tails: int = 0
    """Number of points at which the TTFT P99 was higher than the baseline's."""

    @property
    def mean(self) -> float:
        """The geometric mean of the ratios."""
        return geometric_mean(ratio.mean for _, ratio in self.points)

    def sure(self, result: Literal["faster", "slower"]) -> int:
        """Number of points at which the interval of the ratio shows that the policy was faster (or slower)."""
        return sum(ratio.bounds is not None and outcome(ratio) == result for _, ratio in self.points)


def records_of(sweep: Sweep) -> list[PolicyRatios]:
    """Return the record of every policy, baselines excluded, that has a ratio at some point."""
    axes = sweep.varying() or ["jps"]
    records: dict[str, PolicyRatios] = {}
    for group in sweep.groups:
        for name, arm in group.policies.items():
            if group.summary is not None and name != group.summary.baseline and arm.comparison is not None:
                record = records.setdefault(name, PolicyRatios(name))
                record.points.append((point_text(group.axes, axes), arm.comparison.jct_ratio))
                record.finished_fewer += name not in group.summary.ranked
                own, base = (a.metrics.get("ttft_p99_s") for a in (arm, group.policies[group.summary.baseline]))
                record.longer_tails += own is not None and base is not None and own.mean > base.mean
    return list(records.values())


def sweep_verdict(sweep: Sweep) -> tuple[str, str]:
    """Return the verdict in two parts: the sentence that says which policies were the fastest on average, of those that
    ran at the most points; then how that differs by point."""
    records = records_of(sweep)
    unranked = [
        f"{each.policy} is not ranked: it finished fewer programs at {counted(each.finished_fewer, 'point')}."
        for each in records
        if each.finished_fewer
    ]
    ranked = [record for record in records if not record.finished_fewer]
    if not ranked:
        return "No comparison: no point has two policies that finished the same programs.", " ".join(unranked)
    most = max(len(record.points) for record in ranked)
    compared = sorted((record for record in ranked if len(record.points) == most), key=lambda record: record.mean)
    standings = [Standing(record.policy, Interval(record.mean), _outcome(record)) for record in compared]
    seeds = max(len(ratio.seeds) for record in compared for _, ratio in record.points)
    scope = f" on average over {counted(most, 'point')} of the grid" if most > 1 else ""
    sentence, named = claim(standings, sweep.baseline, seeds, lambda *pair: _beside(sweep, *pair), scope)
    best = next(record for record in compared if record.policy == named[0].policy)
    rest = [_by_point(best, sweep.baseline), *unranked, _tail(best, sweep.baseline)]
    return as_sentence(_overloaded(sweep) + sentence, sweep.policies), " ".join(filter(None, rest))


def _outcome(record: PolicyRatios) -> Outcome:
    """Judge the average by what the intervals of the points show."""
    if len(record.points) == 1:
        return outcome(record.points[0][1])
    side: Literal["faster", "slower"] = "faster" if record.mean < 1 else "slower"
    return side if record.sure(side) else "tie"


def _beside(sweep: Sweep, one: str, other: str) -> Outcome:
    """Judge one policy beside another: ``faster`` if it is so at some point, and slower at none; else ``tie``."""
    at_points = {beside(group.summary, one, other) for group in sweep.groups if group.summary is not None}
    shown = at_points & {"faster", "slower"}
    return shown.pop() if len(shown) == 1 else "tie"


def _by_point(record: PolicyRatios, baseline: str) -> str:
    """Say at how many points the intervals show a difference, and where the policy gained most and least."""
    intervals = [ratio.bounds for _, ratio in record.points if ratio.bounds is not None]
    if not intervals:
        return MORE_SEEDS
    if len(record.points) == 1:
        return f"95% interval: {record.points[0][1].bounds_text('{:.2f}'.format)}."
    faster, slower = record.sure("faster"), record.sure("slower")
    rest = len(intervals) - faster - slower
    counts = f"faster than {baseline} at {faster}, slower at {slower}, a tie at {rest}"
    (most, _), *_, (least, _) = sorted(record.points, key=lambda point: point[1].mean)
    where = f"It gained most at {most}, least at {least}."
    return f"By the 95% intervals of {counted(len(intervals), 'point')} {record.policy} was {counts}. {where}"


def _overloaded(sweep: Sweep) -> str:
    """Begin the sentence with the points where more work arrived than could be finished; empty if there is none."""
    policies = dict.fromkeys(name for group in sweep.groups for name, arm in group.policies.items() if arm.overloaded)
    if not policies:
        return ""
    number = sum(any(arm.overloaded for arm in group.policies.values()) for group in sweep.groups)
    where = f"at {number} of {counted(len(sweep.groups), 'point')} " if len(sweep.groups) > 1 else ""
    who = "some policies" if len(policies) > 1 else listed(policies)
    return f"{where}more work arrived than {who} could finish; in runs of this length, "


def _tail(record: PolicyRatios, baseline: str) -> str:
    if not record.longer_tails:
        return ""
    where = f"{record.longer_tails} of {counted(len(record.points), 'point')}"
    return f"Under {record.policy} TTFT P99 was higher than {baseline}'s at {where}."


def sweep_trust(sweep: Sweep) -> str:
    """Return one line with the number of seeds and what is modelled."""
    seeds = sorted({len(arm.seeds) for group in sweep.groups for arm in group.policies.values()})
    least = f"{seeds[0]} to " if len(seeds) > 1 else ""
    text = f"{least}{counted(seeds[-1] if seeds else 0, 'seed')} at each point; engine {sweep.engine}"
    return f"{text}: {MODELLED[sweep.engine]}." if sweep.engine in MODELLED else f"{text}."
