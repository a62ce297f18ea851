"""``lease-gate``: programs count at their full context. When room is needed, the program idle for longest is paused.

After the ``thunder-agent`` plugin of llm-d-router (pull request 3076), with one pod.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, ClassVar, cast

from continuum_server.policy.base import Options
from continuum_server.policy.facts import (
    NO_HOLD,
    NO_ORDERS,
    Hold,
    Machine,
    Orders,
    ProgramState,
    Step,
    TurnFinish,
    TurnState,
)
from continuum_server.policy.gate import Gate
from continuum_server.policy.limits import Range, Seconds


@dataclass(frozen=True, slots=True)
class LeaseGateOptions(Options):
    """Options of ``lease-gate``."""

    lease_s: Seconds = 30.0
    """Seconds after a turn during which a program inside keeps its room, even if programs outside wait."""
    share: Annotated[float, Range(1e-3, 1000.0)] = 1.0
    """Share of the KV pool that programs inside may fill."""
    patience_s: Seconds = 1800.0
    """Seconds after which a request that is held back is admitted even if memory is full."""


@dataclass(slots=True, eq=False)
class _Session:
    """Policy state of a program."""

    committed: int = 0
    """Prompt plus output of the last finished turn, in tokens."""
    prompt_tokens: int = 0
    """Prompt of the program's request in the engine, in tokens; 0: there is none, or it is held back."""
    paused: bool = False
    """The program was inside and gave up its room."""
    idle_since_s: float = math.inf

    @property
    def size(self) -> int:
        """Tokens for which the program counts: the larger of the two, because a prompt repeats the turn before it."""
        return max(self.committed, self.prompt_tokens)

    def runs(self, turn: TurnState) -> None:
        self.prompt_tokens, self.idle_since_s = turn.prompt_tokens, math.inf


class LeaseGate(Gate):
    """Requests run in order of arrival. Admitted programs count at their full context. When another program needs room,
    the program that has been idle for longest is paused, if its lease after its last turn is over. No KV is held."""

    name: ClassVar[str] = "lease-gate"
    options_type: ClassVar[type] = LeaseGateOptions
    test_options: ClassVar[Mapping[str, Any]] = {"lease_s": 0.3, "patience_s": 20.0}
    gauges: ClassVar[Mapping[str, str]] = {
        "programs_inside": "Programs that the gate has admitted",
        "programs_outside": "Programs with a request that is held back",
    }
    options: LeaseGateOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self._capacity = self.options.share * machine.kv_tokens
        self._inside: dict[ProgramState, _Session] = {}
        self._changed = False
        self._event_s = math.inf
        """When a lease ends or a request becomes impatient, so that another program may be admitted."""

    # ------------------------------------------------------------------------------- what happens

    def lets_in(self, turn: TurnState, now_s: float) -> bool:
        session = self._session(turn.program)
        if turn.program not in self._inside:
            self._changed = True
            return False
        session.runs(turn)
        self._make_room(0.0, self._idle(now_s, 0.0))
        return True

    def _session(self, program: ProgramState) -> _Session:
        if program.policy_state is None:
            self.leave_ended(self._inside)
            program.policy_state = _Session()
        return cast(_Session, program.policy_state)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        session = self._session(finish.turn.program)
        session.committed, session.prompt_tokens = finish.context_tokens, 0
        session.idle_since_s = finish.now_s
        self._changed = True
        return NO_HOLD

    def leave(self, program: ProgramState) -> None:
        self._changed = True
        self._inside.pop(program, None)
        self.held.pop(program, None)
        program.policy_state = None

    # ------------------------------------------------------------------------------------ memory

    def _room(self) -> float:
        return self._capacity - sum(session.size for session in self._inside.values())

    def _idle(self, now_s: float, lease_s: float) -> list[ProgramState]:
        """Return the programs inside that have been idle for more than ``lease_s``, the longest idle first."""
        idle = [(known.idle_since_s, program.sequence, program) for program, known in self._inside.items()]
        return [program for since_s, _, program in sorted(idle, key=itemgetter(0, 1)) if since_s + lease_s < now_s]

    def _make_room(self, tokens: float, idle: list[ProgramState]) -> None:
        """Pause programs of ``idle`` until there is room for ``tokens`` more tokens."""
        room = self._room() if idle else 0.0
        for program in idle:
            if room >= tokens:
                break
            session = self._inside.pop(program)
            session.paused = True
            room += session.size

    # --------------------------------------------------------------------------------- admission

    def step(self, step: Step) -> Orders:
        if not (self._changed or (self.held and step.now_s > self._event_s)):
            return NO_ORDERS
        while (best := self._next(step.now_s)) is not None:
            self._make_room(min(self._wanted(best), self._capacity), self._idle(step.now_s, self.options.lease_s))
            self.admit(best)
        self._changed = False
        self._event_s = min(self._instants(step.now_s), default=math.inf)
        return self.admissions()

    def _next(self, now_s: float) -> ProgramState | None:
        """Return the program to admit next: one that has waited for ``patience_s``, or else one that fits.

        Of programs that fit, a paused one is preferred to a new one, then a smaller one, then the longest waiting one.
        """
        if not self.held:
            return None
        waiting = [(turn.arrival_s, program) for program, turn in self.held.items()]
        since_s, longest = min(waiting, key=itemgetter(0))
        if since_s + self.options.patience_s < now_s:
            return longest
        room = self._room() + sum(self._inside[idle].size for idle in self._idle(now_s, self.options.lease_s))
        ranked = [(not self._session(each).paused, self._wanted(each), at_s, each) for at_s, each in waiting]
        fitting = [row for row in ranked if min(row[1], self._capacity) <= room]
        return min(fitting, key=itemgetter(0, 1, 2))[3] if fitting else None

    def _wanted(self, program: ProgramState) -> int:
        """Return the program's size once its request is admitted."""
        return max(self._session(program).committed, self.held[program].prompt_tokens)

    def admit(self, program: ProgramState) -> None:
        session = self._inside[program] = self._session(program)
        session.paused, self._changed = False, True
        session.runs(self.held[program])
        super().admit(program)

    def _instants(self, now_s: float) -> Iterator[float]:
        """Yield the times at which a lease ends or a request becomes impatient."""
        lease_s, patience_s = self.options.lease_s, self.options.patience_s
        ends = (session.idle_since_s + lease_s for session in self._inside.values())
        yield from (end for end in ends if now_s <= end < math.inf)
        yield from (turn.arrival_s + patience_s for turn in self.held.values())

    def next_event_s(self) -> float | None:
        return self._event_s if self.held and self._event_s < math.inf else None

    def state(self) -> dict[str, Any]:
        return {"programs_inside": len(self._inside), "programs_outside": len(self.held)}
