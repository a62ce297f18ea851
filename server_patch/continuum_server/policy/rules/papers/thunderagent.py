"""``thunderagent``: programs are paused between turns while the active programs together do not fit into memory.

After the public router (ThunderAgent-org/ThunderAgent, ``scheduler/router.py``), with one backend and with decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.facts import (
    NO_HOLD,
    Hold,
    Machine,
    Orders,
    ProgramState,
    Step,
    TurnFinish,
    TurnState,
)
from continuum_server.policy.limits import Count, Range, Seconds
from continuum_server.policy.rules.papers.gate import Gate


@dataclass(frozen=True, slots=True)
class ThunderAgentOptions(Options):
    """Options of ``thunderagent``."""

    interval_s: Annotated[float, Range(1e-3, 1e9)] = 5.0
    """Seconds between checks."""
    half_life_s: Seconds = 1.0
    """When programs are resumed, the tokens of a program whose tool has run this long count half, after twice as long a
    quarter; 0: always in full."""
    buffer_tokens: Count = 100
    """Tokens counted on top for every active program."""
    first_estimate: Annotated[float, Range(0.01, 100.0)] = 1.0
    """Share of a prompt's tokens that count until the first answer. The public router knows only characters until then,
    and takes 5 of them for a token."""
    patience_s: Seconds = 1800.0
    """A request that was held back for this long is admitted even if memory is full."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A program that is active, paused, or about to be paused."""

    program: ProgramState
    tokens: int = 0
    paused: bool = False
    marked: bool = False
    """The program is paused when its turn ends."""

    @property
    def reasoning(self) -> bool:
        """Whether a request of the program waits or runs. Otherwise the program is acting: its tool runs."""
        return self.program.turn is not None


class ThunderAgent(Gate):
    """Requests run in order of arrival. Programs are paused between turns, so that the contexts of active programs fit
    into memory together. No KV is held."""

    name: ClassVar[str] = "thunderagent"
    options_type: ClassVar[type] = ThunderAgentOptions
    options: ThunderAgentOptions

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self._entries: dict[ProgramState, _Entry] = {}
        self._paused = 0
        """Number of paused programs."""
        self._full_tokens = 0
        """Tokens of all active programs, with buffers and without decay."""
        self._prompt_share = self.options.first_estimate
        """Share of a prompt's tokens that is known when it arrives."""
        self._next_check_s = self.options.interval_s

    # --------------------------------------------------------------------------------- the gate

    def lets_in(self, turn: TurnState, now_s: float) -> bool:
        program = turn.program
        entry, tokens = self._entries.get(program), int(self._prompt_share * turn.prompt_tokens)
        if entry is None:
            fits = self._paused == 0 and tokens + self.options.buffer_tokens <= -self._excess
            entry = self._entries[program] = _Entry(program)
            self._count(entry, 1)
            self._change(entry, paused=not fits)
        self._change(entry, tokens=tokens)
        return not entry.paused

    def turn_finished(self, finish: TurnFinish) -> Hold:
        self._prompt_share = 1.0
        entry = self._entries.get(finish.turn.program)
        if entry is not None:
            self._change(entry, tokens=finish.context_tokens, paused=entry.paused or entry.marked, marked=False)
        return NO_HOLD

    def leave(self, program: ProgramState) -> None:
        entry = self._entries.pop(program, None)
        if entry is not None:
            self._count(entry, -1)
        self.admit(program)

    def _change(self, entry: _Entry, **facts: Any) -> None:
        """Set fields of an entry, and update the sums. No other code may set these fields."""
        self._count(entry, -1)
        for name, value in facts.items():
            setattr(entry, name, value)
        self._count(entry, 1)

    def _count(self, entry: _Entry, sign: int) -> None:
        self._paused += sign * entry.paused
        if not entry.paused:
            self._full_tokens += sign * (entry.tokens + self.options.buffer_tokens)

    # ------------------------------------------------------------------------------------ memory

    def _weight(self, entry: _Entry, now_s: float) -> float:
        """Return the tokens for which the program counts: all while it reasons, ever fewer while it acts."""
        tokens = float(entry.tokens)
        since_s = entry.program.last_finish_s
        if not entry.reasoning and since_s is not None and self.options.half_life_s > 0.0:
            tokens *= 2.0 ** (-(now_s - since_s) / self.options.half_life_s)
        return tokens + self.options.buffer_tokens

    def _active(self) -> list[_Entry]:
        return [entry for entry in self._entries.values() if not entry.paused]

    def _room(self, now_s: float) -> float:
        """Return the free tokens if acting programs lose their KV bit by bit."""
        return self.machine.kv_tokens - sum(self._weight(entry, now_s) for entry in self._active())

    @property
    def _excess(self) -> int:
        """By how much the full contexts of the active programs exceed the pool."""
        return self._full_tokens - self.machine.kv_tokens

    # -------------------------------------------------------------------------------- each check

    def step(self, step: Step) -> Orders:
        if step.now_s > self._next_check_s:
            self._check(step.now_s)
        return self.admissions()

    def _check(self, now_s: float) -> None:
        interval_s = self.options.interval_s
        self._next_check_s = math.floor(now_s / interval_s + 1.0) * interval_s
        self.leave_ended(self._entries)
        resumed = self._resume(now_s)
        self._pause()
        for entry in resumed:
            self.admit(entry.program)

    def _resume(self, now_s: float) -> list[_Entry]:
        """Resume paused programs that fit: first those with a waiting turn, then new ones, then acting ones.

        The smallest of each group comes first.
        """
        room, out = self._room(now_s), list[_Entry]()
        for entry in sorted((entry for entry in self._entries.values() if entry.paused), key=self._resume_order):
            size = entry.tokens + self.options.buffer_tokens
            if size <= room or self._impatient(entry, now_s):
                room -= size
                self._change(entry, paused=False)
                out.append(entry)
        return out

    def _resume_order(self, entry: _Entry) -> tuple[int, int, float]:
        group = 1 if entry.program.turns_finished == 0 else 0 if entry.reasoning else 2
        return group, entry.tokens, entry.program.sequence

    def _impatient(self, entry: _Entry, now_s: float) -> bool:
        held = self.held.get(entry.program)
        return held is not None and now_s - held.arrival_s > self.options.patience_s

    def _pause(self) -> None:
        """Pause acting programs, the smallest first. If the others do not fit either, mark all of them, to be paused
        when their turn ends: until then a marked program counts in full, so marking some frees nothing."""
        for entry in sorted(self._active(), key=lambda entry: (entry.reasoning, entry.tokens, entry.program.sequence)):
            if self._excess <= 0:
                break
            self._change(entry, paused=not entry.reasoning, marked=entry.reasoning)

    def next_event_s(self) -> float | None:
        """Return the time of the next check; None: no check would change anything."""
        idle = self._paused == 0 and self._excess <= 0
        return None if idle else self._next_check_s
