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
    each: bool
    """Whether single gaps were recorded; otherwise a turn's gaps have all the mean length of the turn's."""

    def statistic(self, name: str) -> float | None:
        """Return the ``mean``, or a percentile such as ``p95``; None without gaps, or if a percentile is not known."""
        if not len(self.seconds) or not (self.each or name == "mean"):
            return None
        if name == "mean":
            return float(np.average(self.seconds, weights=self.counts))
        return percentile(self.seconds, float(name[1:]), np.cumsum(self.counts))


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


def pooled_gaps(turns: Sequence[TurnTimes]) -> TokenGaps:
    """Collect the gaps of all turns; single gaps only if those of every turn were recorded."""
    each = all(turn.token_gaps_s is not None for turn in turns if turn.gaps_between_tokens > 0)
    counts: Counter[float] = Counter()
    for turn in turns:
        if each:
            counts.update(turn.token_gaps_s or {})
        elif turn.tpot_s is not None:
            counts[turn.tpot_s] += turn.gaps_between_tokens
    ordered = sorted(counts)
    return TokenGaps(np.array(ordered), np.array([counts[gap_s] for gap_s in ordered]), each)
