"""The estimates behind a TTL: tool times, queueing delay T, memoryfulness eta (SPEC 3)."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque


class ToolTimes:
    """Recorded tool times, the most recent ``window`` of them, kept sorted.

    O(log n) to find, O(n) moves of machine words to insert.
    """

    def __init__(self, window: int) -> None:
        self.count = 0
        """Samples ever seen, forgotten ones included."""
        self._window = window
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        self.count += 1
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > self._window:
            oldest = self._recent.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]

    def __len__(self) -> int:
        return len(self._sorted)

    def best_ttl(self, gain_s: float) -> float:
        """argmax over tau in {0} and the recorded times of P(tau) * gain - tau; ties go to the smaller tau."""
        samples = self._sorted
        if not samples or gain_s <= 0.0:
            return 0.0
        per_sample = gain_s / len(samples)
        best_value, best_s = 0.0, 0.0
        # P never exceeds 1, so no tau at or beyond the gain can be worth holding for.
        for index in range(bisect_left(samples, gain_s)):
            value = (index + 1) * per_sample - samples[index]
            if value > best_value:
                best_value, best_s = value, samples[index]
        return best_s


class ToolStatistics:
    """Tool times by tool and pooled, with the paper's cold start (|S| and |S[f]| against K)."""

    def __init__(self, cold_samples: int, window: int) -> None:
        self._cold = cold_samples
        self._window = window
        self._all = ToolTimes(window)
        self._by_tool: dict[str, ToolTimes] = {}

    def add(self, tool: str, seconds: float) -> None:
        self._all.add(seconds)
        times = self._by_tool.get(tool)
        if times is None:
            times = self._by_tool[tool] = ToolTimes(self._window)
        times.add(seconds)

    @property
    def is_cold(self) -> bool:
        return self._all.count <= self._cold

    def times_for(self, tool: str) -> ToolTimes:
        """The tool's own times once there are more than K, all tools' before."""
        own = self._by_tool.get(tool)
        return self._all if own is None or own.count <= self._cold else own

    def counts(self) -> dict[str, int]:
        return {tool: times.count for tool, times in self._by_tool.items()}


class Moments:
    """Count, mean and variance of all values seen, in constant memory (Welford's recurrence)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self._squares += before * (value - self.mean)

    @property
    def variance(self) -> float:
        """Of the sample (n - 1); 0 for a single value."""
        return self._squares / (self.count - 1) if self.count > 1 else 0.0


def cold_start_ttl(gain_s: float) -> float:
    """The TTL for tool times ~ Exp(mean 1 s): ln(gain) where the gain exceeds 1 s, else 0."""
    return math.log(gain_s) if gain_s > 1.0 else 0.0


class QueueDelay:
    """T: mean queueing delay of the last ``window`` returning turns whose KV had been evicted; starts at 0."""

    def __init__(self, window: int) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        if len(self._recent) == self._recent.maxlen:
            self._sum -= self._recent[0]
        self._recent.append(seconds)
        self._sum += seconds

    @property
    def mean_s(self) -> float:
        return max(0.0, self._sum / len(self._recent)) if self._recent else 0.0


class Memoryfulness:
    """eta = -corr(k, N-k) over k = 1..N of every finished program of N turns, from exact integer sums.

    1 where all programs have the same length, 0 where lengths are memoryless; may be negative. 1 while undefined.
    """

    def __init__(self) -> None:
        self._pairs = self._k = self._rest = self._kk = self._rest2 = self._k_rest = 0

    def add(self, turns: int) -> None:
        n = turns
        sum_k, sum_kk = n * (n + 1) // 2, n * (n + 1) * (2 * n + 1) // 6
        self._pairs += n
        self._k += sum_k
        self._kk += sum_kk
        self._rest += n * (n - 1) // 2
        self._rest2 += (n - 1) * n * (2 * n - 1) // 6
        self._k_rest += n * sum_k - sum_kk

    @property
    def eta(self) -> float:
        n = self._pairs
        var_k = n * self._kk - self._k * self._k
        var_rest = n * self._rest2 - self._rest * self._rest
        if var_k <= 0 or var_rest <= 0:
            return 1.0
        return -(n * self._k_rest - self._k * self._rest) / math.sqrt(var_k * var_rest)
