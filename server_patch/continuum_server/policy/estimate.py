"""Estimates from finished turns and programs: queueing delay, memoryfulness, means, growth of contexts."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from itertools import accumulate


class Moments:
    """Count, mean and variance of all values, in constant memory (Welford's recurrence)."""

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
        """Sample variance (n - 1); 0 for a single value."""
        return self._squares / (self.count - 1) if self.count > 1 else 0.0


class RecentMean:
    """Moving average in which the last ``window`` values count most. 0 before the first value."""

    def __init__(self, window: int) -> None:
        self._window, self.count = window, 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.count = min(self.count + 1, self._window)
        self.value += (value - self.value) / self.count


class RecentShare:
    """The share of trials that succeed, in which the last ``window`` trials count most."""

    def __init__(self, window: int, trials: float = 0.0, successes: float = 0.0) -> None:
        self._keep = 1.0 - 1.0 / window
        self.trials, self.successes = trials, successes

    def add(self, trial: bool, success: bool) -> None:
        """Add a trial, or the success of an earlier one."""
        if trial:
            self.trials, self.successes = self._keep * self.trials + 1.0, self._keep * self.successes
        if success:
            self.successes += 1.0


def cold_start_ttl(gain_s: float) -> float:
    """Return the best TTL for tool times ~ Exp(mean 1 s): ln(gain) if the gain exceeds 1 s, else 0."""
    return math.log(gain_s) if gain_s > 1.0 else 0.0


class QueueDelay:
    """The papers' T: mean queueing delay of the last ``window`` returning turns whose KV was evicted. 0 at first."""

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
    """The papers' eta = -corr(k, N-k) over k = 1..N of every finished program of N turns, from exact integer sums.

    eta is 1 if all programs have the same length, and 0 if lengths are memoryless. It may be negative. It is 1 while it
    is undefined.
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

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, f"_{name}") for name in _SUMS}

    def from_json(self, sums: Mapping[str, int]) -> None:
        """Add the programs of another run."""
        for name in _SUMS:
            setattr(self, f"_{name}", getattr(self, f"_{name}") + sums.get(name, 0))

    @property
    def eta(self) -> float:
        n = self._pairs
        var_k = n * self._kk - self._k * self._k
        var_rest = n * self._rest2 - self._rest * self._rest
        if var_k <= 0 or var_rest <= 0:
            return 1.0
        eta = -(n * self._k_rest - self._k * self._rest) / math.sqrt(var_k * var_rest)
        return max(-1.0, min(1.0, eta))  # sums from a file may be those of no programs at all


_SUMS = ("pairs", "k", "rest", "kk", "rest2", "k_rest")


class Footprints:
    """Final contexts of recently finished programs in tokens, from which the growth of contexts is forecast."""

    def __init__(self, window: int) -> None:
        self._recent: deque[int] = deque(maxlen=window)
        self._sorted: list[int] | None = None
        self._sums: list[int] = [0]

    def add(self, tokens: int) -> None:
        self._recent.append(tokens)
        self._sorted = None

    def final_tokens(self, tokens: int) -> float:
        """Return the mean final context of the programs that grew beyond ``tokens``; ``tokens`` if none did."""
        if self._sorted is None:
            self._sorted = sorted(self._recent)
            self._sums = [0, *accumulate(self._sorted)]
        first = bisect_right(self._sorted, tokens)
        beyond = len(self._sorted) - first
        return (self._sums[-1] - self._sums[first]) / beyond if beyond else float(tokens)
