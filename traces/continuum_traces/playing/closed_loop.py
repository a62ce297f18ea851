"""Closed loops: a program starts when others have ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lanes:
    """A closed loop of ``number`` programs at a time."""

    number: int
    ramp_s: float = 0.0
    """The first programs start at equal intervals over this time. Not with ``in_steps``."""
    in_steps: bool = False
    """False: a program starts when another one, and all that it started, have ended. True: the next ``number`` programs
    start together, ``pause_s`` after all of the ones before have ended, as the roll-outs of a training step."""
    pause_s: float = 0.0


class ClosedLoop(Generic[T]):
    """Decides which program starts when.

    Args:
        programs: all programs in the order in which they start.
        lanes: the loop.
    """

    def __init__(self, programs: Iterable[T], lanes: Lanes) -> None:
        self._left = iter(programs)
        self._lanes = lanes
        self._running = 0
        self._last_end_s = 0.0

    def begin(self, now_s: float = 0.0) -> list[tuple[T, float]]:
        """Return the first programs, each with the second at which it starts."""
        lanes = self._lanes
        step_s = lanes.ramp_s / lanes.number
        return [(each, now_s + place * step_s) for place, (each, _) in enumerate(self._next(lanes.number, 0.0))]

    def ended(self, now_s: float) -> list[tuple[T, float]]:
        """Return the programs that start because a program ended at ``now_s``, each with the second at which it
        starts. Ends of one step may be told in any order."""
        self._running -= 1
        if not self._lanes.in_steps:
            return self._next(1, now_s)
        self._last_end_s = max(now_s, self._last_end_s)
        return [] if self._running else self._next(self._lanes.number, self._last_end_s + self._lanes.pause_s)

    def _next(self, number: int, start_s: float) -> list[tuple[T, float]]:
        starts = [(each, start_s) for each in islice(self._left, number)]
        self._running += len(starts)
        return starts
