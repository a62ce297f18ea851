"""Gaps between output tokens, pooled over turns. Runs of ``--token-times`` record them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from continuum_analysis.records.timeline import TurnTimes


@dataclass(frozen=True, slots=True)
class TokenGaps:
    """The different lengths of gaps in ascending order, and how many gaps there are of each."""

    seconds: np.ndarray
    counts: np.ndarray

    @property
    def mean_s(self) -> float:
        return float(np.average(self.seconds, weights=self.counts))

    def percentile_s(self, q: float) -> float:
        return percentile(self.seconds, q, np.cumsum(self.counts))


def percentile(ordered: np.ndarray, q: float, up_to: np.ndarray | None = None) -> float:
    """Compute a percentile as ``numpy.percentile`` does; infinite values are those of what did not end.

    Args:
        ordered: values in ascending order.
        up_to: for each value, how many values are at most as large; None: every value counts once.
    """
    counts = np.arange(1, len(ordered) + 1) if up_to is None else up_to
    place = q / 100 * (int(counts[-1]) - 1)
    below, above = (ordered[np.searchsorted(counts, number, "right")] for number in (floor(place), ceil(place)))
    return float(below if below == above else below + (place - floor(place)) * (above - below))


def pooled_gaps(turns: Sequence[TurnTimes]) -> TokenGaps | None:
    """Collect the gaps of all turns; None if there are none, or if the gaps of some turn were not recorded."""
    counts: Counter[float] = Counter()
    for turn in turns:
        if turn.token_gaps_s is not None:
            counts.update(turn.token_gaps_s)
        elif turn.gaps_between_tokens > 0:
            return None
    if not counts:
        return None
    ordered = sorted(counts)
    return TokenGaps(np.array(ordered), np.array([counts[gap_s] for gap_s in ordered]))
