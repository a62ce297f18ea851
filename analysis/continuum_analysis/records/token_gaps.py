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
    """The different lengths of gaps in ascending order, with cumulative counts."""

    seconds: np.ndarray
    up_to: np.ndarray
    """For each length, the number of gaps that are at most as long."""

    @property
    def mean_s(self) -> float:
        return float(np.average(self.seconds, weights=np.diff(self.up_to, prepend=0)))

    def percentile_s(self, q: float) -> float:
        """Compute the percentile as ``numpy.percentile`` would from the list of all gaps."""
        place = q / 100 * (int(self.up_to[-1]) - 1)
        below, above = self._nth_s(floor(place)), self._nth_s(ceil(place))
        return below + (place - floor(place)) * (above - below)

    def _nth_s(self, number: int) -> float:
        """Return the gap at this position in ascending order, counted from 0."""
        return float(self.seconds[np.searchsorted(self.up_to, number, "right")])


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
    return TokenGaps(np.array(ordered), np.cumsum([counts[gap_s] for gap_s in ordered]))
