"""``thunderagent``: programs are paused between turns while the active ones would not fit into memory together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from continuum_server.policy.base import Options, Policy, Rank
from continuum_server.policy.facts import NO_HOLD, NO_ORDERS, Hold, Machine, Orders, ProgramState, Step, TurnFinish
from continuum_server.policy.facts import TurnState as Turn
from continuum_server.policy.limits import Count, Range, Seconds


@dataclass(frozen=True, slots=True)
class ThunderAgentOptions(Options):
    """Options of ``thunderagent``."""

    interval_s: Annotated[float, Range(1e-3, 1e9)] = 5.0
    """Seconds between checks."""
    half_life_s: Seconds = 1.0
    """An acting program's tokens count half after this long, a quarter after twice as long; 0: always in full."""
    buffer_tokens: Count = 100
    """Counted on top for every active program."""
    patience_s: Seconds = 1800.0
    """A request held back for this long is let in whatever memory says."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A program as the gate sees it."""

    program: ProgramState
    tokens: int = 0
    paused: bool = False
    marked: bool = False
    """To be paused at its turn's end."""
    held: list[Turn] = field(default_factory=list)
    """Its requests that are held back."""

    @property
    def reasoning(self) -> bool:
        return self.program.requests_in_engine > 0

    @property
    def active(self) -> bool:
        """Counted as in memory."""
        return not self.paused and not self.marked


class ThunderAgent(Policy):
    """Nothing is held in memory; instead programs are kept out of it."""

    name: ClassVar[str] = "thunderagent"
    options_type: ClassVar[type] = ThunderAgentOptions
    stock_order: ClassVar[bool] = False
    steps: ClassVar[bool] = True
    options: ThunderAgentOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self._entries: dict[str, _Entry] = {}
        self._let_go: list[Turn] = []
        """Requests that were held back when their program's entry went: they take their place at the next step."""
        self._paused = 0
        self._full_tokens = 0
        """What active programs, buffers included, would take if none of them decayed."""
        self._places = 0
        self._next_check_s = self.options.interval_s

    # --------------------------------------------------------------------------------- the gate

    def turn_arrived(self, turn: Turn, now_s: float) -> None:
        program = turn.program
        entry = self._entry(program)
        if entry is None:
            fits = self._paused == 0 and turn.prompt_tokens + self.options.buffer_tokens <= self._room(now_s)
            self._drop(program.program_id)
            entry = self._entries[program.program_id] = _Entry(program)
            self._count(entry, 1)
            self._change(entry, paused=not fits)
        self._change(entry, tokens=turn.prompt_tokens)
        if entry.paused:
            entry.held.append(turn)
        self._place(turn)

    def _entry(self, program: ProgramState) -> _Entry | None:
        """Not one of an earlier or later program with the same id."""
        entry = self._entries.get(program.program_id)
        return entry if entry is not None and entry.program is program else None

    def _place(self, turn: Turn) -> None:
        self._places += 1
        turn.policy_state = self._places

    def rank(self, turn: Turn) -> Rank | None:
        entry = self._entry(turn.program)
        return None if entry is not None and turn in entry.held else (turn.policy_state,)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        entry = self._entry(finish.turn.program)
        if entry is not None:
            self._change(entry, tokens=finish.context_tokens, paused=entry.paused or entry.marked, marked=False)
        return NO_HOLD

    def turn_lost(self, turn: Turn) -> None:
        """A program of which nothing is left in the engine no longer counts; a later turn of it counts anew."""
        entry = self._entry(turn.program)
        if entry is None:
            return
        entry.held = [held for held in entry.held if held is not turn]
        if not entry.reasoning:
            self._drop(turn.program.program_id)

    def program_finished(self, program: ProgramState) -> None:
        if self._entry(program) is not None:
            self._drop(program.program_id)

    def _drop(self, program_id: str) -> None:
        entry = self._entries.pop(program_id, None)
        if entry is not None:
            self._count(entry, -1)
            self._let_go += entry.held

    def _change(self, entry: _Entry, **facts: Any) -> None:
        """The one place where an entry changes: the sums follow."""
        self._count(entry, -1)
        for name, value in facts.items():
            setattr(entry, name, value)
        self._count(entry, 1)

    def _count(self, entry: _Entry, sign: int) -> None:
        self._paused += sign * entry.paused
        if entry.active:
            self._full_tokens += sign * (entry.tokens + self.options.buffer_tokens)

    # ------------------------------------------------------------------------------------ memory

    def _weight(self, entry: _Entry, now_s: float) -> float:
        """Tokens the program counts for: in full while it reasons, ever less while it acts."""
        tokens = float(entry.tokens)
        since_s = entry.program.last_finish_s
        if not entry.reasoning and since_s is not None and self.options.half_life_s > 0.0:
            tokens *= 2.0 ** (-(now_s - since_s) / self.options.half_life_s)
        return tokens + self.options.buffer_tokens

    def _active(self) -> Iterable[_Entry]:
        return [entry for entry in self._entries.values() if entry.active]

    def _room(self, now_s: float) -> float:
        return self.machine.kv_tokens - sum(self._weight(entry, now_s) for entry in self._active())

    # -------------------------------------------------------------------------------- each check

    def step(self, step: Step) -> Orders:
        if step.now_s > self._next_check_s:
            self._check(step.now_s)
        turns, self._let_go = [turn for turn in self._let_go if not turn.gone], []
        for turn in turns:
            self._place(turn)
        return Orders(rank_again=turns) if turns else NO_ORDERS

    def _check(self, now_s: float) -> None:
        interval_s = self.options.interval_s
        self._next_check_s = math.floor(now_s / interval_s + 1.0) * interval_s
        for name in [name for name, entry in self._entries.items() if entry.program.ended]:
            self._drop(name)
        resumed = self._resume(now_s)
        self._pause(now_s)
        for entry in resumed:
            self._let_go += entry.held
            entry.held = []

    def _resume(self, now_s: float) -> list[_Entry]:
        """Requests that wait first, then new programs, then acting ones; the smallest of each that fit."""
        room, out = self._room(now_s), list[_Entry]()
        for entry in sorted((entry for entry in self._entries.values() if entry.paused), key=self._resume_order):
            size = entry.tokens + self.options.buffer_tokens
            if size <= room or self._impatient(entry, now_s):
                room -= size
                self._change(entry, paused=False)
                out.append(entry)
        return out

    def _resume_order(self, entry: _Entry) -> tuple[int, int, int]:
        group = 1 if entry.program.turns_finished == 0 else 0 if entry.reasoning else 2
        return group, entry.tokens, entry.program.sequence

    def _impatient(self, entry: _Entry, now_s: float) -> bool:
        return any(now_s - turn.arrival_s > self.options.patience_s for turn in entry.held)

    def _pause(self, now_s: float) -> None:
        """Acting programs first, the smallest first; then reasoning ones, from their turn's end on."""
        excess = -self._room(now_s)
        for entry in sorted(self._active(), key=lambda entry: (entry.reasoning, entry.tokens, entry.program.sequence)):
            if excess <= 0.0:
                break
            excess -= self._weight(entry, now_s)
            self._change(entry, paused=not entry.reasoning, marked=entry.reasoning)

    def next_event_s(self) -> float | None:
        """The next check, where one can find anything to do."""
        idle = self._paused == 0 and self._full_tokens <= self.machine.kv_tokens
        return None if idle else self._next_check_s
