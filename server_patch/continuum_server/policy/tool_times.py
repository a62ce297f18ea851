"""Recorded tool times, and the best hold for them: the papers' (``ToolTimes``), working-set's (``RecentToolTimes``)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import accumulate
from typing import ClassVar


class ToolTimes:
    """The most recent ``window`` tool times. ``add`` takes O(log n) comparisons, ``best_ttl`` a loop over samples."""

    def __init__(self, window: int) -> None:
        self.count = 0
        """Number of samples ever added, forgotten ones included."""
        self._window = max(1, window)
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        self.count += 1
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def recent(self) -> list[float]:
        """Return the samples, oldest first."""
        return list(self._recent)

    def best_ttl(self, gain_s: float) -> float:
        """Return the tau, 0 or a recorded time, that maximises P(tau) * gain - tau. Of equal taus the smallest wins.

        P(tau) is the share of samples up to tau. A tau of ``gain_s`` or more is never better than 0.
        """
        taus = self._sorted[: bisect_left(self._sorted, gain_s)]
        gain_per_sample = gain_s / len(self._sorted) if taus else 0.0
        values = [rank * gain_per_sample - tau for rank, tau in enumerate(taus, 1)]
        best = max(values, default=0.0)
        return taus[values.index(best)] if best > 0.0 else 0.0


class RecentToolTimes:
    """The recent tool times of all programs, and the best hold for them."""

    ENOUGH: ClassVar[int] = 8
    """Number of samples below which nothing is assumed about their distribution."""
    POINTS: ClassVar[int] = 64
    """Number of samples tried as holds, evenly spaced in the sorted list."""
    MARGIN: ClassVar[float] = 1.25
    """A hold is longer than the best sample by this factor, because a similar return may be a little later."""

    def __init__(self, window: int) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._new = 0
        self._sorted: list[float] = []
        self._sums: list[float] = [0.0]

    def add(self, tool_s: float) -> None:
        self._recent.append(tool_s)
        self._new += 1

    def best_hold_s(self, even_s: float, share: float = 1.0) -> float:
        """Return the tau up to the break-even time that minimises E[min(S, tau)] + P(S > tau) * even_s.

        Of equal taus ``even_s`` wins, because longer times than the recorded ones are possible.

        Args:
            share: the share of programs that return. The others cost tau, and no rebuild.
        """
        if len(self._recent) < self.ENOUGH:
            return even_s * share
        if self._new >= self.ENOUGH:
            self._new, self._sorted = 0, sorted(self._recent)
            self._sums = [0.0, *accumulate(self._sorted)]
        number, total = bisect_right(self._sorted, even_s), len(self._sorted)
        step = max(1, number // self.POINTS)
        taus = self._sorted[step - 1 : number : step]
        waited, later = self._sums[step : number + 1 : step], range(total - step, total - number - 1, -step)
        gone = total * (1.0 / max(share, 1e-3) - 1.0)
        costs = [self._cost(number, even_s + even_s) + gone * even_s, self._cost(0, even_s)]
        costs += [
            sum_s + left * (tau + even_s) + gone * tau for sum_s, left, tau in zip(waited, later, taus, strict=True)
        ]
        tau_s = (even_s, 0.0, *taus)[costs.index(min(costs))]
        return min(even_s, tau_s * self.MARGIN)

    def _cost(self, within: int, beyond_s: float) -> float:
        """Return the sum of the shortest ``within`` samples, plus ``beyond_s`` for each other sample."""
        return self._sums[within] + (len(self._sorted) - within) * beyond_s
