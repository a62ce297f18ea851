"""``concur``: a window limits the number of admitted programs, as in TCP (CONCUR, arXiv 2601.22705)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.facts import Machine, Orders, ProgramState, Step, TurnStart, TurnState
from continuum_server.policy.limits import Range
from continuum_server.policy.rules.papers.gate import Gate

Share = Annotated[float, Range(0.0, 1.0)]


@dataclass(frozen=True, slots=True)
class ConcurOptions(Options):
    """Options of ``concur``."""

    add: Annotated[int, Range(1, 1_000_000)] = 2
    """Number of programs by which the window grows; also the first window."""
    cut: Annotated[float, Range(0.0, 1.0, above=True, below=True)] = 0.5
    """Factor by which the window shrinks."""
    low: Share = 0.2
    """The window grows while running requests use less than this share of the KV pool."""
    high: Share = 0.5
    """The window shrinks if running requests use more than this share and too few prompt tokens are in the cache."""
    hit_low: Share = 0.2
    """Cached prompt tokens are too few below this share, over the turns that started since the last check."""
    interval_s: Annotated[float, Range(1e-3, 1e9)] = 5.0
    """Seconds between checks."""


class Concur(Gate):
    """Requests run in order of arrival. A window limits the number of programs inside: it grows while running requests
    use little KV memory, and is halved when they use much and few prompt tokens are in the cache."""

    name: ClassVar[str] = "concur"
    options_type: ClassVar[type] = ConcurOptions
    gauges: ClassVar[Mapping[str, str]] = {
        "programs_window": "Programs that may be inside at once",
        "programs_alive": "Programs inside and outside",
    }
    options: ConcurOptions

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self._window = self.options.add
        self._alive: dict[ProgramState, None] = {}
        """The programs in order of arrival. The first ``_window`` are inside."""
        self._changed = False
        """A program arrived or left, or the window grew, since programs were last admitted."""
        self._check_s: float | None = None
        """The next check; None: no check can change the window."""
        self._hit_tokens = self._prompt_tokens = 0
        """Sums over the turns that started since the last check."""

    # --------------------------------------------------------------------------------- the window

    def lets_in(self, turn: TurnState, now_s: float) -> bool:
        if turn.program not in self._alive:
            self.leave_ended(self._alive)
            self._alive[turn.program] = None
        self._plan_check(now_s)
        return turn.program in islice(self._alive, self._window)

    def turn_started(self, start: TurnStart) -> None:
        super().turn_started(start)
        self._hit_tokens += start.hit_tokens
        self._prompt_tokens += start.turn.prompt_tokens
        self._plan_check(start.now_s)

    def leave(self, program: ProgramState) -> None:
        self.held.pop(program, None)
        if program in self._alive:
            del self._alive[program]
            self._changed = True

    # -------------------------------------------------------------------------------- each check

    def step(self, step: Step) -> Orders:
        if self._check_s is not None and step.now_s > self._check_s:
            self._check(step.batch_tokens() / self.machine.kv_tokens)
            self._check_s = None
            self._plan_check(step.now_s)
        if self._changed:
            self._changed = False
            for program in list(islice(self._alive, self._window)):
                self.admit(program)
        return self.admissions()

    def _plan_check(self, now_s: float) -> None:
        """Plan a check at the next multiple of the interval, if the window may change then."""
        if self._check_s is None and (self._prompt_tokens or len(self._alive) > self._window):
            interval_s = self.options.interval_s
            self._check_s = math.floor(now_s / interval_s + 1.0) * interval_s

    def _check(self, usage: float) -> None:
        options, hits, prompts = self.options, self._hit_tokens, self._prompt_tokens
        self._hit_tokens = self._prompt_tokens = 0
        if usage < options.low:
            if len(self._alive) > self._window:  # the window grows only while a program is outside
                self._window += options.add
                self._changed = True
        elif usage > options.high and prompts and hits < options.hit_low * prompts:
            self._window = max(1, int(self._window * options.cut))

    def next_event_s(self) -> float | None:
        return self._check_s

    def state(self) -> dict[str, Any]:
        return {"programs_window": self._window, "programs_alive": len(self._alive)}
