"""``lease-gate``: programs count at their full context. When room is needed, the program idle for longest is paused.

After the ``thunder-agent`` plugin of llm-d-router (pull request 3076), with one pod.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
    TurnStart,
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

    program: ProgramState
    committed: int = 0
    """Prompt plus output of the last finished turn, in tokens."""
    prompt_tokens: int = 0
    """Prompt of the program's request in the engine, in tokens; 0: there is none, or it is held back."""
    inside: bool = False
    paused: bool = False
    """The program was inside and gave up its room."""
    idle_since_s: float = math.inf
    held: TurnState | None = None
    """The program's request, if it is held back."""

    @property
    def size(self) -> int:
        """Tokens for which the program counts: the larger of the two, because a prompt repeats the turn before it."""
        return max(self.committed, self.prompt_tokens)

    @property
    def wanted(self) -> int:
        """The program's size once its request is admitted."""
        return max(self.committed, self.held.prompt_tokens if self.held is not None else 0)


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
        self._inside: dict[str, _Session] = {}
        self._waiting: dict[str, _Session] = {}
        """Programs whose request is held back, in order of arrival."""
        self._changed = False
        self._event_s = math.inf
        """When a lease ends or a request becomes impatient, so that another program may be admitted."""

    # ------------------------------------------------------------------------------- what happens

    def knock(self, turn: TurnState, now_s: float) -> None:
        session = self._session(turn.program)
        if session.inside:
            self._note_request(session, turn)
            self.enqueue(turn)
            self._make_room(0.0, self._idle(now_s, 0.0))
        else:
            session.held = turn
            self._waiting[turn.program.program_id] = session
            self._changed = True

    def _session(self, program: ProgramState) -> _Session:
        if program.policy_state is None:
            inside = self._inside.items()
            for name in [name for name, other in inside if other.program.ended and not other.prompt_tokens]:
                del self._inside[name]  # forgotten
            program.policy_state = _Session(program)
        return cast(_Session, program.policy_state)

    def _note_request(self, session: _Session, turn: TurnState) -> None:
        session.prompt_tokens = turn.prompt_tokens
        session.idle_since_s = math.inf

    def turn_started(self, start: TurnStart) -> None:
        session = cast("_Session | None", start.turn.program.policy_state)
        if session is not None and start.turn is session.held:  # overdue: admitted even if memory is full
            self._admit(session)
            self._changed = True

    def turn_finished(self, finish: TurnFinish) -> Hold:
        session = self._session(finish.turn.program)
        session.committed, session.prompt_tokens = finish.context_tokens, 0
        session.idle_since_s = finish.now_s
        self._changed = True
        return NO_HOLD

    def leave(self, program: ProgramState) -> None:
        self._changed = True
        self._inside.pop(program.program_id, None)
        self._waiting.pop(program.program_id, None)
        program.policy_state = None

    # ------------------------------------------------------------------------------------ memory

    def _room(self) -> float:
        return self._capacity - sum(session.size for session in self._inside.values())

    def _idle(self, now_s: float, lease_s: float) -> list[_Session]:
        """Return the programs inside that have been idle for more than ``lease_s``, the longest idle first."""
        over = [session for session in self._inside.values() if session.idle_since_s + lease_s < now_s]
        return sorted(over, key=lambda session: (session.idle_since_s, session.program.sequence))

    def _make_room(self, tokens: float, idle: list[_Session]) -> None:
        """Pause programs of ``idle`` until there is room for ``tokens`` more tokens."""
        room = self._room() if idle else 0.0
        for session in idle:
            if room >= tokens:
                break
            room += session.size
            session.inside, session.paused = False, True
            del self._inside[session.program.program_id]

    # --------------------------------------------------------------------------------- admission

    def step(self, step: Step) -> Orders:
        if not (self._changed or (self._waiting and step.now_s > self._event_s)):
            return NO_ORDERS
        self._changed = False
        while (best := self._next(step.now_s)) is not None:
            self._make_room(min(best.wanted, self._capacity), self._idle(step.now_s, self.options.lease_s))
            self._admit(best)
        self._event_s = min(self._instants(step.now_s), default=math.inf)
        return self.admissions()

    def _next(self, now_s: float) -> _Session | None:
        """Return the program to admit next: one that has waited for ``patience_s``, or else one that fits.

        Of programs that fit, a paused one is preferred to a new one, then a smaller one, then the longest waiting one.
        """
        if not self._waiting:
            return None
        room = self._room() + sum(session.size for session in self._idle(now_s, self.options.lease_s))
        waiting = self._waiting.values()
        starving = [program for program in waiting if self._since_s(program) + self.options.patience_s < now_s]
        if starving:
            return min(starving, key=self._since_s)
        fitting = [program for program in waiting if min(program.wanted, self._capacity) <= room]
        return min(fitting, key=lambda fit: (not fit.paused, fit.wanted, self._since_s(fit)), default=None)

    def _since_s(self, session: _Session) -> float:
        return cast(TurnState, session.held).arrival_s

    def _admit(self, session: _Session) -> None:
        session.inside, session.paused = True, False
        self._inside[session.program.program_id] = session
        self._waiting.pop(session.program.program_id, None)
        if session.held is not None:
            self._note_request(session, session.held)
            self.admit(session.held)
            session.held = None

    def _instants(self, now_s: float) -> Iterator[float]:
        """Yield the times at which a lease ends or a request becomes impatient."""
        lease_s, patience_s = self.options.lease_s, self.options.patience_s
        ends = (session.idle_since_s + lease_s for session in self._inside.values() if session.idle_since_s < math.inf)
        yield from (end for end in ends if end >= now_s)
        yield from (self._since_s(session) + patience_s for session in self._waiting.values())

    def next_event_s(self) -> float | None:
        return self._event_s if self._waiting and self._event_s < math.inf else None

    def state(self) -> dict[str, Any]:
        return {"programs_inside": len(self._inside), "programs_outside": len(self._waiting)}
