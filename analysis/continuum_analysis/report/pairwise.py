"""Policies compared pair by pair on the same arrivals: programs sooner and later, and a matrix of ratios."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from continuum_analysis.compare.intervals import SAME_INSTANT_S, paired_jcts, ratio_interval
from continuum_analysis.compare.runs import Run
from continuum_analysis.report.figure_kit import Groups

Times = Sequence[tuple[Sequence[float], Sequence[float]]]
"""For each common seed the JCTs of the programs that finished under both policies."""


def paired_times(ours: Sequence[Run], theirs: Sequence[Run]) -> Times:
    by_seed = {run.manifest.seed: run.metrics.facts.programs for run in theirs}
    seeds = [(run.metrics.facts.programs, by_seed[run.manifest.seed]) for run in ours if run.manifest.seed in by_seed]
    pairs = [paired_jcts(mine, other) for mine, other in seeds]
    return [pair for pair in pairs if pair[0]]


def sooner_equal_later(times: Times) -> str:
    """Write ``88 sooner, 12 equal, 0 later``; equal is to within a millisecond."""
    late_s = np.concatenate([np.subtract(mine, other) for mine, other in times])
    sooner, later = (int(np.sum(side > SAME_INSTANT_S)) for side in (-late_s, late_s))
    return f"{sooner:,} sooner, {len(late_s) - sooner - later:,} equal, {later:,} later"


def matrix(groups: Groups) -> dict[str, list[tuple[str, str, str] | None]]:
    """Return for each policy its mean JCT over each other policy's; None where nothing can be paired.

    A cell is the ratio, ``faster`` or ``slower`` if its 95% interval shows it, and the ratio with its interval.
    """
    return {arm: [_cell(groups, arm, other) for other in groups] for arm in groups}


def _cell(groups: Groups, arm: str, other: str) -> tuple[str, str, str] | None:
    times = paired_times(groups[arm], groups[other])
    if arm == other or not times:
        return None
    ratio = ratio_interval(*([float(np.mean(pair[side])) for pair in times] for side in (0, 1)))
    low, high = ratio.bounds or (0.0, 2.0)
    kind = "faster" if high < 1.0 else "slower" if low > 1.0 else ""
    return f"{ratio.mean:.2f}", kind, ratio.text("{:.3f}".format)
