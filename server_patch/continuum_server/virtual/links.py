"""A modelled link: one direction, first come first served, a bandwidth and a latency."""

from __future__ import annotations

import heapq
from math import inf


class Link:
    """Transfers one after another; a transfer's latency delays its end, not the transfer behind it.

    Args:
        bytes_s: bytes a second; may be infinite.
        latency_s: from a transfer's start to its first byte.
    """

    def __init__(self, bytes_s: float, latency_s: float) -> None:
        self.bytes_s, self.latency_s = bytes_s, latency_s
        self.moved_bytes = 0
        self.busy_s = 0.0
        self._free_s = 0.0

    def send(self, now_s: float, size_bytes: int) -> float:
        """When a transfer that is asked for now will have ended."""
        start_s = max(now_s, self._free_s)
        seconds = size_bytes / self.bytes_s
        self._free_s = start_s + seconds
        self.moved_bytes += size_bytes
        self.busy_s += seconds
        return self._free_s + self.latency_s


class InFlight:
    """Transfers by when they end."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []

    def add(self, end_s: float, job: int) -> None:
        heapq.heappush(self._ends, (end_s, job))

    def next_s(self) -> float:
        """When the first of them ends; infinite where nothing is on its way."""
        return self._ends[0][0] if self._ends else inf

    def end_of(self, jobs: set[int]) -> float | None:
        """When the last of these ends; None: none of them is on its way."""
        return max((end_s for end_s, job in self._ends if job in jobs), default=None)

    def ended(self, now_s: float) -> list[int]:
        """Those that have ended, in that order; they are forgotten."""
        jobs: list[int] = []
        while self._ends and self._ends[0][0] <= now_s:
            jobs.append(heapq.heappop(self._ends)[1])
        return jobs
