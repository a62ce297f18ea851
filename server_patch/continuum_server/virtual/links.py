"""Modelled links between tiers. A link has one direction, a bandwidth and a latency, and serves transfers in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf


class Link:
    """Runs one transfer after another. A transfer's latency delays its end, but not the next transfer.

    Args:
        bytes_s: bytes per second; may be infinite.
        latency_s: seconds from a transfer's start to its first byte.
    """

    def __init__(self, bytes_s: float, latency_s: float) -> None:
        self.bytes_s, self.latency_s = bytes_s, latency_s
        self.moved_bytes = 0
        self.busy_s = 0.0
        self._free_s = 0.0

    def send(self, now_s: float, size_bytes: int) -> float:
        """Start a transfer, now or when the link is free, and return the time at which it ends."""
        start_s = max(now_s, self._free_s)
        seconds = size_bytes / self.bytes_s
        self._free_s = start_s + seconds
        self.moved_bytes += size_bytes
        self.busy_s += seconds
        return self._free_s + self.latency_s


class Links:
    """The two links of a tier, and the transfers that run on them, by the time at which they end.

    Args:
        clock: returns the time.
        read: the link from the tier.
        write: the link to the tier.
    """

    def __init__(self, clock: Callable[[], float], read: Link, write: Link) -> None:
        self._clock, self.read, self.write = clock, read, write
        self._ends: list[tuple[float, int]] = []

    def start(self, job: int, link: Link, size_bytes: int) -> None:
        """Start a transfer. One of no bytes ends at once."""
        now_s = self._clock()
        heapq.heappush(self._ends, (link.send(now_s, size_bytes) if size_bytes else now_s, job))

    def next_s(self) -> float:
        """Return the time at which the first transfer ends; infinite if none is running."""
        return self._ends[0][0] if self._ends else inf

    def end_of(self, jobs: set[int]) -> float:
        """Return the time at which the last of these transfers ends; 0 if none of them is running."""
        return max((end_s for end_s, job in self._ends if job in jobs), default=0.0)

    def ended(self) -> list[int]:
        """Remove and return the transfers that have ended, in the order in which they ended."""
        now_s, jobs = self._clock(), list[int]()
        while self._ends and self._ends[0][0] <= now_s:
            jobs.append(heapq.heappop(self._ends)[1])
        return jobs
