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
    """Gaps in order of their length, each with the number of times that it occurs."""

    seconds: np.ndarray
    up_to: np.ndarray
    """Number of gaps that are no longer."""

    @property
    def mean_s(self) -> float:
        return float(np.average(self.seconds, weights=np.diff(self.up_to, prepend=0)))

    def percentile_s(self, q: float) -> float:
        """As ``numpy.percentile`` of all gaps, one by one."""
        place = q / 100 * (int(self.up_to[-1]) - 1)
        below, above = self._nth_s(floor(place)), self._nth_s(ceil(place))
        return below + (place - floor(place)) * (above - below)

    def _nth_s(self, number: int) -> float:
        """The gap with that number, from 0."""
        return float(self.seconds[np.searchsorted(self.up_to, number, "right")])


def pooled_gaps(turns: Sequence[TurnTimes]) -> TokenGaps | None:
    """The gaps of all turns; None: there is no gap, or a turn of several tokens has no record of its gaps."""
    counts: Counter[float] = Counter()
    for turn in turns:
        if turn.token_gaps_s is not None:
            counts.update(turn.token_gaps_s)
        elif turn.gaps_between_tokens > 0:
            return None
    if not counts:
        return None
    ordered = sorted(counts)
    return TokenGaps(np.array(ordered), np.cumsum([counts[gap_s] for gap_s in ordered]))
