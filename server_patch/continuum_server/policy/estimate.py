"""The estimates behind a TTL beside tool times: queueing delay T, memoryfulness eta (SPEC 3), moments."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any


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

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, f"_{name}") for name in _SUMS}

    def from_json(self, sums: Mapping[str, Any]) -> None:
        """Add the programs of another run.

        Raises:
            ValueError: sums that are no whole numbers.
        """
        for name in _SUMS:
            value = sums.get(name, 0)
            if not isinstance(value, int) or value < 0:
                raise ValueError(f"program_lengths: {name}: expected a whole number")
            setattr(self, f"_{name}", getattr(self, f"_{name}") + value)

    @property
    def eta(self) -> float:
        n = self._pairs
        var_k = n * self._kk - self._k * self._k
        var_rest = n * self._rest2 - self._rest * self._rest
        if var_k <= 0 or var_rest <= 0:
            return 1.0
        return -(n * self._k_rest - self._k * self._rest) / math.sqrt(var_k * var_rest)


_SUMS = ("pairs", "k", "rest", "kk", "rest2", "k_rest")
