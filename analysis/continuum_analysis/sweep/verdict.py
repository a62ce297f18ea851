"""The verdict of a sweep: the policy that was the fastest on average over the grid, and the number of points at which
the intervals show that it was faster than the baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Literal

from continuum_traces.names import counted

from continuum_analysis.compare.intervals import Interval
from continuum_analysis.compare.words import SAME_TO_THE_EYE, Outcome, headline, outcome
from continuum_analysis.sweep.tables import MODELLED, Sweep, point_text


@dataclass(slots=True)
class Record:
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


def records_of(sweep: Sweep) -> list[Record]:
    """Return the record of every policy, baselines excluded, that has a ratio at some point."""
    axes = sweep.varying() or ["jps"]
    records: dict[str, Record] = {}
    for group in sweep.groups:
        for name, arm in group.policies.items():
            if group.summary is not None and name != group.summary.baseline and arm.comparison is not None:
                record = records.setdefault(name, Record(name))
                record.points.append((point_text(group.axes, axes), arm.comparison.jct_ratio))
                record.finished_fewer += name not in group.summary.ranked
                own, base = (a.metrics.get("ttft_p99_s") for a in (arm, group.policies[group.summary.baseline]))
                record.longer_tails += own is not None and base is not None and own.mean > base.mean
    return list(records.values())


def sweep_verdict(sweep: Sweep) -> tuple[str, str]:
    """Return the verdict in two parts: the best policy on average, of those that ran at the most points; then how sure
    that is."""
    records = records_of(sweep)
    if not records:
        return "No comparison: no point has two policies on the same arrivals.", ""
    unranked = "".join(
        f"{each.policy} is not ranked: it finished fewer programs at {counted(each.finished_fewer, 'point')}. "
        for each in records
        if each.finished_fewer
    )
    ranked = [record for record in records if not record.finished_fewer]
    if not ranked:
        return unranked.strip(), ""
    most = max(len(record.points) for record in ranked)
    best = min((record for record in ranked if len(record.points) == most), key=lambda record: record.mean)
    ratios = [ratio.mean for _, ratio in best.points]
    spread = f", {min(ratios):.2f} to {max(ratios):.2f} by point" if most > 1 else ""
    over = f"over {counted(most, 'point')} (geometric mean{spread})"
    facts = f"mean JCT {best.mean:.2f} times {sweep.baseline}'s {over}"
    tail = ""
    if best.longer_tails:
        tail = f" Its TTFT P99 was higher than {sweep.baseline}'s at {best.longer_tails} of {counted(most, 'point')}."
    return f"{unranked}{_headline(best, sweep)}: {facts}.", f"{_how_sure(best)} {_where(best)}".strip() + tail


def _headline(best: Record, sweep: Sweep) -> str:
    """Name the best policy, and claim no more than its intervals show."""
    side: Literal["faster", "slower"] = "faster" if best.mean < 1 else "slower"
    result: Outcome = "open"
    if abs(best.mean - 1) >= SAME_TO_THE_EYE:
        shown = not any(ratio.bounds for _, ratio in best.points) or best.sure(side)
        result = side if shown else "open"
    elif all(outcome(ratio) == "equal" for _, ratio in best.points):
        result = "equal"
    return headline(result, best.policy, sweep.baseline, len(sweep.policies), scope=" on average")


def _how_sure(record: Record) -> str:
    intervals = sum(ratio.bounds is not None for _, ratio in record.points)
    if intervals == 0:
        return "No point has enough seeds for an interval, so that nothing is proved; run with --seeds 5."
    faster, slower = record.sure("faster"), record.sure("slower")
    rest = intervals - faster - slower
    counts = f"By the 95% intervals it was faster at {faster}, slower at {slower} and not told apart at {rest} of them."
    return counts if intervals == len(record.points) else f"{counts} The others have no interval."


def _where(record: Record) -> str:
    if len(record.points) < 2:
        return ""
    ranked = sorted(record.points, key=lambda point: point[1].mean)
    return f"It gained most at {ranked[0][0]}, least at {ranked[-1][0]}."


def sweep_trust(sweep: Sweep) -> str:
    """Return one line with the number of seeds and what is modelled."""
    seeds = sorted({len(arm.seeds) for group in sweep.groups for arm in group.policies.values()})
    least = f"{seeds[0]} to " if len(seeds) > 1 else ""
    text = f"{least}{counted(seeds[-1] if seeds else 0, 'seed')} at each point; engine {sweep.engine}"
    return f"{text}: {MODELLED[sweep.engine]}." if sweep.engine in MODELLED else f"{text}."
