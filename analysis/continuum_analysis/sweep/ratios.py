"""A sweep as ratios: each policy's JCT / a base policy's at each point, and the geometric mean over the points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from continuum_traces.grouped import grouped

from continuum_analysis.compare.intervals import Interval, ratio_by_seed
from continuum_analysis.compare.words import TextTable
from continuum_analysis.plots.arm_styles import OFFLOAD, arm_styles
from continuum_analysis.plots.panels import Bar, Panel
from continuum_analysis.sweep.tables import GroupSummary, Sweep, point_text

PANELS = ("workload", "gpu")
HINTS = ("hints", "hint_error")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A policy compared with the base policy at one point, over the seeds that both ran."""

    where: str
    """Workload and GPU of the point."""
    point: str
    """The other axes of the point."""
    policy: str
    jct_s: float
    to_base: Interval
    p95_to_base: Interval


def sweep_ratios(sweep: Sweep, base: str) -> list[Ratio]:
    """Compare the policies of every point with ``base``; arms with offload with ``base`` with offload, if it ran."""
    where = {group.folder: point_text(group.axes, PANELS) for group in sweep.groups}
    numbers = {(where[group.folder], group.axes.get("num_programs")) for group in sweep.groups}
    alike = len(numbers) == len(set(where.values()))  # all points of a panel have the same number of programs
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
    """Yield the ratio if both policies have a seed in common."""
    jct, p95 = (
        ratio_by_seed(group.by_seed(policy, metric), base_group.by_seed(base, metric))
        for metric in ("jct_mean_s", "jct_p95_s")
    )
    if jct is not None and p95 is not None:
        mean = group.by_seed(policy, "jct_mean_s").values()
        yield Ratio(where, point, policy, sum(mean) / len(mean), jct, p95)


def hint_ratios(sweep: Sweep) -> list[Ratio]:
    """Compare every policy with hints with the same policy without hints where all other axes are equal."""

    def without(group: GroupSummary) -> dict[str, Any]:
        return {axis: value for axis, value in group.axes.items() if axis not in HINTS}

    silent = [group for group in sweep.groups if group.axes.get("hints", "none") == "none"]
    pairs = [(group, base) for group in sweep.groups for base in silent if without(base) == without(group)]
    others = [*PANELS, *(axis for axis in sweep.varying() if axis not in (*PANELS, *HINTS))]
    return [
        ratio
        for group, base in pairs
        if group is not base
        for policy in group.policies
        for ratio in _beside(group, policy, base, policy, point_text(group.axes, others), point_text(group.axes, HINTS))
    ]


def ratio_table(ratios: Sequence[Ratio], base: str) -> TextTable:
    """Return one row for each point and policy, then one row for each policy over all its points."""
    headings = ["workload", "point", "policy", "seeds", "JCT mean, s", f"JCT to {base}", f"P95 to {base}"]
    rows = [
        [
            ratio.where,
            ratio.point,
            ratio.policy,
            str(len(ratio.to_base.seeds)),
            f"{ratio.jct_s:.1f}",
            ratio.to_base.text("{:.3f}".format),
            ratio.p95_to_base.text("{:.3f}".format),
        ]
        for ratio in ratios
    ]
    for policy, of_policy in grouped((ratio.policy, ratio) for ratio in ratios).items():
        jct = geometric_mean(ratio.to_base.mean for ratio in of_policy)
        p95 = geometric_mean(ratio.p95_to_base.mean for ratio in of_policy)
        rows.append(["geometric mean", f"{len(of_policy)} points", policy, "-", "-", f"{jct:.3f}", f"{p95:.3f}"])
    return TextTable(headings, rows)


def ratio_panels(ratios: Sequence[Ratio], base: str) -> list[Panel]:
    """Return a panel for each workload and GPU, with a row for each point and a mark for each policy."""
    looks = arm_styles(ratio.policy for ratio in ratios)
    bars = grouped(
        (each.where, Bar(each.point, each.policy, looks[each.policy], each.to_base.mean, *each.to_base.spread))
        for each in ratios
    )
    return [Panel(where, f"mean JCT to {base}", "", bars=here, dots=True, level=1.0) for where, here in bars.items()]
