"""A sweep as ratios: each policy's JCT over another one's, point by point, and the geometric mean over the points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from continuum_analysis.compare.intervals import Interval, ratio_interval
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import OFFLOAD
from continuum_analysis.plots.panels import Bar, Panel
from continuum_analysis.sweep.tables import GroupSummary, Sweep, point_text

READING = (
    "Ratio: this policy's mean JCT (or P95) over {base}'s, on the same arrivals; below 1 is faster. Round brackets: "
    "95% intervals over seeds (paired, symmetric in the logarithm). Of fewer than three seeds: the seeds themselves, "
    "in square brackets. Marks: the ratio and what seeds range over; hollow: with offload. Arms with offload stand "
    "beside {base} with offload where the point has it. The last rows are geometric means over the points."
)
PANELS = ("workload", "gpu")
HINTS = ("hints", "hint_error")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A policy beside the base at one point, over the seeds both ran."""

    where: str
    """Workload and GPU."""
    point: str
    """What else the grid says of it."""
    policy: str
    jct_s: float
    to_base: Interval
    by_seed: tuple[float, ...]
    p95_to_base: Interval
    p95_by_seed: tuple[float, ...]


def sweep_ratios(sweep: Sweep, base: str) -> list[Ratio]:
    """Every point's policies beside ``base``; arms with offload beside the base with offload, where it is there."""
    where = {group.folder: point_text(group.axes, PANELS) for group in sweep.groups}
    numbers = {(where[group.folder], group.axes.get("num_programs")) for group in sweep.groups}
    alike = len(numbers) == len(set(where.values()))  # each panel has its number of programs: no point need say it
    axes = [axis for axis in sweep.varying() if axis not in PANELS and not (alike and axis == "num_programs")]
    return [
        ratio
        for group in sweep.groups
        for ratio in _of_group(group, where[group.folder], point_text(group.axes, axes), base)
    ]


def _of_group(group: GroupSummary, where: str, point: str, base: str) -> Iterator[Ratio]:
    for policy in group.policies:
        with_tiers = f"{base}{OFFLOAD}"
        beside = with_tiers if policy.endswith(OFFLOAD) and with_tiers in group.policies else base
        yield from _beside(group, policy, group, beside, where, point)


def _beside(
    group: GroupSummary, policy: str, base_group: GroupSummary, base: str, where: str, point: str
) -> Iterator[Ratio]:
    """The ratio, if both have a seed in common."""
    jct, jcts = _over(group.by_seed(policy, "jct_mean_s"), base_group.by_seed(base, "jct_mean_s"))
    p95, p95s = _over(group.by_seed(policy, "jct_p95_s"), base_group.by_seed(base, "jct_p95_s"))
    if jct is not None and p95 is not None:
        mean = group.by_seed(policy, "jct_mean_s").values()
        yield Ratio(where, point, policy, sum(mean) / len(mean), jct, jcts, p95, p95s)


def hint_ratios(sweep: Sweep) -> list[Ratio]:
    """Every policy with hints beside the same policy without hints, where all else is equal."""

    def without(group: GroupSummary) -> dict[str, Any]:
        return {axis: value for axis, value in group.axes.items() if axis not in HINTS}

    silent = [group for group in sweep.groups if group.axes.get("hints", "none") == "none"]
    pairs = [(group, base) for group in sweep.groups for base in silent if without(base) == without(group)]
    others = [axis for axis in sweep.varying() if axis not in HINTS]
    return [
        ratio
        for group, base in pairs
        if group is not base
        for policy in group.policies
        for ratio in _beside(group, policy, base, policy, point_text(group.axes, others), point_text(group.axes, HINTS))
    ]


def _over(mine: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[Interval | None, tuple[float, ...]]:
    seeds = sorted(set(mine) & set(theirs))
    if not seeds:
        return None, ()
    ratio = ratio_interval([mine[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    return ratio, tuple(mine[seed] / theirs[seed] for seed in seeds)


def ratio_table(ratios: Sequence[Ratio], base: str) -> TextTable:
    """A row a point and policy, then a row a policy over all points that have it."""
    headings = ["workload", "point", "policy", "seeds", "JCT mean, s", f"JCT to {base}", f"P95 to {base}"]
    rows = [
        [
            one.where,
            one.point,
            one.policy,
            str(len(one.by_seed)),
            f"{one.jct_s:.1f}",
            one.to_base.text("{:.3f}".format, one.by_seed),
            one.p95_to_base.text("{:.3f}".format, one.p95_by_seed),
        ]
        for one in ratios
    ]
    for policy in dict.fromkeys(one.policy for one in ratios):
        mine = [one for one in ratios if one.policy == policy]
        means = (geometric_mean(one.to_base.mean for one in mine), geometric_mean(one.p95_to_base.mean for one in mine))
        rows.append(["geometric mean", f"{len(mine)} points", policy, "-", "-", *(f"{mean:.3f}" for mean in means)])
    return TextTable(headings, rows)


def ratio_panels(ratios: Sequence[Ratio], base: str) -> list[Panel]:
    """A panel a workload and GPU: a row a point, a mark a policy."""
    panels = []
    for where in dict.fromkeys(one.where for one in ratios):
        bars = tuple(
            Bar(one.point, one.policy, one.to_base.mean, min(one.by_seed), max(one.by_seed))
            for one in ratios
            if one.where == where
        )
        panels.append(Panel(where, f"mean JCT to {base}", "", bars=bars, dots=True))
    return panels
