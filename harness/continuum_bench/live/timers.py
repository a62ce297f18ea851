"""Waiting for instants, with a limit on the time in which no request is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


class Timers:
    """Waits until instants.

    Args:
        now_s: the clock on which the instants are.
        max_idle_all_s: the longest time without an open request, while somebody waits. Then all waits become shorter by
            what is left of the first one. None: there is no limit.
    """

    def __init__(self, now_s: Callable[[], float], max_idle_all_s: float | None) -> None:
        self.skipped_s = 0.0
        """By how much all waits became shorter in sum."""
        self._now_s, self._max_idle_all_s = now_s, max_idle_all_s
        self._open = 0
        self._instants: dict[object, float] = {}
        """When each wait ends, on a clock that each skip moves forward by the seconds that are skipped."""
        self._moved = asyncio.Event()
        """Set when the waits became shorter; then another event takes its place."""
        self._alarm: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Note that the run begins, without an open request."""
        if self._max_idle_all_s is not None:
            self._alarm = asyncio.get_running_loop().call_later(self._max_idle_all_s, self._skip)

    @contextmanager
    def open_request(self) -> Iterator[None]:
        """A request is open in this block."""
        self._open += 1
        if self._alarm is not None:
            self._alarm.cancel()
        try:
            yield
        finally:
            self._open -= 1
            if not self._open:
                self.begin()

    async def until(self, instant_s: float) -> float:
        """Wait until the instant, or an earlier one if idle time is skipped; return it. Timers of an event loop may
        fire a millisecond early, so the sleep is repeated."""
        wait, at_s = object(), instant_s + self.skipped_s
        self._instants[wait] = at_s
        try:
            while (left_s := at_s - self.skipped_s - self._now_s()) > 0:
                await self._sleep(max(left_s, 0.001))
        finally:
            del self._instants[wait]
        return at_s - self.skipped_s

    async def _sleep(self, seconds: float) -> None:
        if self._max_idle_all_s is None:
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), seconds)

    def _skip(self) -> None:
        left_s = min(self._instants.values(), default=0.0) - self.skipped_s - self._now_s()
        if left_s > 0:
            self.skipped_s += left_s
            self._moved.set()
            self._moved = asyncio.Event()
