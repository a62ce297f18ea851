"""Recorded tool times, and the TTLs they suggest: the papers' (``ToolTimes``) and working-set's (``AwayTimes``)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import ClassVar


class ToolTimes:
    """The most recent ``window`` tool times. A sample takes O(log n) comparisons, a decision looks at a few samples."""

    STRIDE: ClassVar[int] = 64
    """A decision passes over samples in groups of this size."""

    def __init__(self, window: int) -> None:
        self.count = 0
        """Samples ever seen, forgotten ones included."""
        self._window = max(1, window)
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        self.count += 1
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > self._window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def __len__(self) -> int:
        return len(self._recent)

    def recent(self) -> list[float]:
        """The samples kept, oldest first."""
        return list(self._recent)

    def best_ttl(self, gain_s: float) -> float:
        """argmax over tau in {0} and the recorded times of P(tau) * gain - tau; ties go to the smaller tau.

        P(tau) is the share of samples up to tau. No tau from ``gain_s`` on can be better than 0.
        """
        taus = self._sorted[: bisect_left(self._sorted, gain_s)]
        if not taus:
            return 0.0
        gain_per_sample = gain_s / len(self._sorted)
        ranks = self._worth_a_look(taus, gain_per_sample)
        values = [rank * gain_per_sample - taus[rank - 1] for rank in ranks]
        best = max(values)
        return taus[ranks[values.index(best)] - 1] if best > 0.0 else 0.0

    def _worth_a_look(self, taus: Sequence[float], gain_per_sample: float) -> list[int]:
        """Ranks of the samples among which the best tau is.

        No sample has a higher value than the rank of its last neighbour would have at the time of its first neighbour.
        """
        ends = [*range(self.STRIDE, len(taus), self.STRIDE), len(taus)]
        reached = max([end * gain_per_sample - taus[end - 1] for end in ends])
        firsts = zip(ends, taus[:: self.STRIDE], strict=True)
        close = [end for end, tau in firsts if end * gain_per_sample - tau >= reached]
        return [rank for end in close for rank in range((end - 1) // self.STRIDE * self.STRIDE + 1, end + 1)]

    def cost(self, gain_s: float, ttl_s: float) -> float:
        """The TTL, and what is expected to be lost if the tool takes longer. ``best_ttl`` has the least cost."""
        return ttl_s + (1.0 - bisect_right(self._sorted, ttl_s) / max(1, len(self._sorted))) * gain_s


class AwayTimes:
    """Seconds that programs recently stayed away between two turns, and how long to hold KV for the next return."""

    ENOUGH: ClassVar[int] = 32
    """With fewer samples nothing is assumed about their distribution."""
    POINTS: ClassVar[int] = 64
    """Samples tried as holds, evenly spaced in the sorted list."""
    MARGIN: ClassVar[float] = 1.25
    """A hold is longer than the best sample by this factor, because a similar return may come a little later."""

    def __init__(self, window: int) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._new = 0
        self._sorted: list[float] = []
        self._sums: list[float] = [0.0]

    def add(self, away_s: float) -> None:
        self._recent.append(away_s)
        self._new += 1

    def best_hold_s(self, even_s: float) -> float:
        """The tau up to the break-even time ``even_s`` with the least E[min(away, tau)] + P(away > tau) * even_s.

        Ties go to ``even_s``: an away time that was never seen is not ruled out.
        """
        if len(self._recent) < self.ENOUGH:
            return even_s
        if self._new >= self.ENOUGH:
            self._new, self._sorted = 0, sorted(self._recent)
            self._sums = [0.0, *accumulate(self._sorted)]
        number, total = bisect_right(self._sorted, even_s), len(self._sorted)
        step = max(1, number // self.POINTS)
        taus = self._sorted[step - 1 : number : step]
        waited, later = self._sums[step : number + 1 : step], range(total - step, total - number - 1, -step)
        costs = [self._cost(number, even_s + even_s), self._cost(0, even_s)]
        costs += [sum_s + left * (tau + even_s) for sum_s, left, tau in zip(waited, later, taus, strict=True)]
        tau_s = (even_s, 0.0, *taus)[costs.index(min(costs))]
        return min(even_s, tau_s * self.MARGIN)

    def cost(self, even_s: float) -> Callable[[float], float] | None:
        """E[min(away, tau)] + P(away > tau) * even_s as a function of tau; None: too few samples."""
        if len(self._recent) < self.ENOUGH:
            return None
        return lambda tau_s: self._cost(bisect_right(self._sorted, tau_s), tau_s + even_s) / len(self._sorted)

    def _cost(self, within: int, beyond_s: float) -> float:
        """Cost over all samples: the shortest ``within`` are waited for, each of the others costs ``beyond_s``."""
        return self._sums[within] + (len(self._sorted) - within) * beyond_s
