"""``working-set``: admit a program if it adds more throughput than recomputation; hold KV up to its break-even time.

A program is *inside* once it is admitted. Until then it is *outside*: its request is held back (``admission``). A
program stays inside while its request is in the engine, and after a turn for as long as its KV is held (``holds``). A
program that returns later is not inside, but its request is not held back again.
docs/policies/working-set.md lists the rules.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import count, islice
from typing import Annotated, Any, ClassVar, cast

from continuum_server.policy.admission import Inside
from continuum_server.policy.base import Options, Rank, Yielding
from continuum_server.policy.facts import (
    NO_ORDERS,
    Hold,
    Machine,
    Orders,
    ProgramState,
    Step,
    Stored,
    TurnFinish,
    TurnStart,
    TurnState,
)
from continuum_server.policy.hints import Predictions
from continuum_server.policy.holds import USUAL_PREFILL, Holds
from continuum_server.policy.limits import Range
from continuum_server.policy.rules.program_fcfs import ProgramFcfs

PATIENCE_S = 600.0
"""At least one program is admitted this often, even if memory is full. After a program inside lost KV to the others,
growth of contexts is forecast for this long."""
LOOK_PAST = 32
"""Number of programs outside, from the first on, among which small ones are sought that may pass it."""
AHEAD = 128
"""A program that is small beside the largest one inside counts as if it had come so many requests earlier."""


@dataclass(frozen=True, slots=True)
class WorkingSetOptions(Options):
    """Options of ``working-set``."""

    share: Annotated[float, Range(0.0, 1000.0)] = 1.0
    """Share of the KV pool that programs inside may fill; 0: every program is admitted at once."""
    learn_tool_times: bool = True
    """Shorten holds by the recent times between turns, and count the room that programs need between turns."""


class Phase(Enum):
    """What a program is doing."""

    OUTSIDE = auto()
    """Its request is held back."""
    BUSY = auto()
    """Its request is in the queue or in the batch."""
    HELD = auto()
    """It is between two turns, and its KV is held. It stays inside."""
    RELEASED = auto()
    """Its hold is over, and it is no longer inside."""
    GONE = auto()
    """It did not return for so long that it counts as finished."""


@dataclass(slots=True, eq=False)
class Member:
    """Policy state of a program."""

    phase: Phase = Phase.BUSY
    since_s: float | None = None
    """When its last turn ended; None: its request is in the engine, or was aborted."""
    until_s: float = math.inf
    """When HELD or RELEASED ends, unless the program returns."""
    gone_s: float = math.inf
    """When RELEASED will end."""
    unhinted_s: float | None = None
    """The hold without hints after the last turn; None: the client sent no prediction. After a prediction, at
    most this much of the tool time is recorded, so that it does not change the worth of memory for other programs."""


def _member(program: ProgramState) -> Member | None:
    """Return the program's state; None: the program is new, or was forgotten."""
    return cast("Member | None", program.policy_state)


class WorkingSet(ProgramFcfs):
    """A new program waits until admitting it is worth more than the cache that it would push out. KV is held until
    holding it has cost as much as recomputing it would."""

    name: ClassVar[str] = "working-set"
    options_type: ClassVar[type] = WorkingSetOptions
    gauges: ClassVar[Mapping[str, str]] = {
        "programs_inside": "Programs that the policy has admitted",
        "programs_outside": "Programs that wait to be admitted",
    }
    steps: ClassVar[bool] = True
    pins_yield_to: ClassVar[Yielding] = "waiting"
    options: WorkingSetOptions

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        measured = machine.prefill.seconds(1) > 0.0
        super().__init__(machine if measured else replace(machine, prefill=USUAL_PREFILL), options)
        self._holds = Holds(self.machine, self.options.learn_tool_times)
        self._inside = Inside(self.options.share * machine.kv_tokens, machine.block_size)
        self.predictions = Predictions()
        self._line: list[ProgramState] = []
        """The programs outside, in program order."""
        self._ends: list[tuple[float, int, Phase, ProgramState]] = []
        """A heap of the times at which phases end. Entries of programs that returned are skipped."""
        self._ties = count()
        self._first_since_s = 0.0
        """When the first program outside became the first."""
        self._changed = False
        """An event happened since admission was last decided."""
        self._lost_s = -math.inf
        """When a program inside last lost KV to other programs."""

    def position(self, program: ProgramState) -> Rank:
        """Return the program's position in program order: the smallest comes first."""
        return (program.sequence,)

    # ------------------------------------------------------------------------------- what happens

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        program, member, self._changed = turn.program, _member(turn.program), True
        self.predictions.returned(turn, now_s)
        turn.policy_state = was_inside = program.program_id in self._inside.tokens
        if member is None:
            member = program.policy_state = Member()
            outside = bool(self._line) or not self._fits(turn, now_s)
        else:
            self._note_return(member, was_inside, now_s)
            outside = turn.kept_share < 1.0 and self._behind(program)
        if outside and not self._passes(turn):
            self._wait_outside(program, member, now_s)
        else:
            self._enter(turn, member)

    def _note_return(self, member: Member, was_inside: bool, now_s: float) -> None:
        """Learn from the tool time that ends now."""
        if member.since_s is None:
            return
        tool_s, member.since_s = now_s - member.since_s, None
        self._holds.tool_times.add(tool_s)
        if member.unhinted_s is not None:
            self._holds.kept_s.add(min(tool_s, member.unhinted_s))
        elif was_inside:
            self._holds.kept_s.add(tool_s)

    def _behind(self, program: ProgramState) -> bool:
        """Whether a program that returns with another prompt stands behind the first program outside."""
        return bool(self._line) and self.position(program) > self.position(self._line[0])

    def _passes(self, turn: TurnState) -> bool:
        """Whether the turn is never held back: it has no program id, or a program inside waits for it (a sub-agent).

        Only one request of a family at a time passes. The others must be admitted as those of any new program.
        """
        root = turn.program.root
        called = root is not turn.program and root.program_id in self._inside.tokens and root.family_requests == 1
        return turn.one_off or called or self.options.share <= 0.0

    def _wait_outside(self, program: ProgramState, member: Member, now_s: float) -> None:
        self._inside.drop(program.program_id)
        member.phase = Phase.OUTSIDE
        if not self._line:
            self._first_since_s = now_s
        insort(self._line, program, key=self.position)

    def _enter(self, turn: TurnState, member: Member) -> None:
        member.phase = Phase.BUSY
        if not turn.one_off:
            self._inside.put(turn.program.program_id, turn.prompt_tokens, turn.blocks or ())

    def turn_started(self, start: TurnStart) -> None:
        program = start.turn.program
        if start.kv_was_evicted:
            self._holds.back_s.add(start.now_s - start.turn.arrival_s)
            self._holds.in_tier.add(float(not start.kv_was_lost))
            if start.turn.policy_state:
                self._lost_s = start.now_s
        if self._is_outside(program):  # overdue: it starts even if memory is full
            self._admit(program, start.now_s)

    def turn_preempted(self, turn: TurnState, now_s: float) -> None:
        self._lost_s = now_s

    def turn_finished(self, finish: TurnFinish) -> Hold:
        self._holds.served_s.add(finish.turn.served(finish.now_s))
        self._changed = True
        program, tokens = finish.turn.program, finish.context_tokens
        program_id, member = program.program_id, cast(Member, program.policy_state)
        if program_id in self._inside.tokens:
            self._inside.put(program_id, tokens, finish.turn.blocks)
        shared = self._inside.shared_tokens(program_id)
        even_s = self._holds.break_even_s(tokens, shared, len(self._inside.tokens), finish.stored)
        lost_s = self._holds.break_even_s(tokens, shared, len(self._inside.tokens))
        learned_s = self._holds.tool_times.best_hold_s(even_s, finish.return_share)
        ttl_s = self.hold_s(finish, even_s, learned_s)
        member.unhinted_s = None if finish.turn.tool_hint_s is None else learned_s
        member.since_s, member.gone_s = finish.now_s, finish.now_s + max(even_s, lost_s)
        self._begin(Phase.HELD, program, member, finish.now_s + ttl_s)
        return Hold(ttl_s)

    def hold_s(self, finish: TurnFinish, even_s: float, learned_s: float) -> float:
        """Return the hold after a turn, of at most the break-even time. ``learned_s``: without a prediction."""
        return self.predictions.hold_s(finish.turn, finish.now_s, even_s, learned_s)

    def turn_lost(self, turn: TurnState) -> None:
        self._changed = True
        program, member = turn.program, _member(turn.program)
        if self._is_outside(program):  # if it returns, it is a new program
            self._leave_line(program)
            program.policy_state = None
        elif member is not None:
            member.phase = Phase.RELEASED
        self._inside.drop(program.program_id)

    def _is_outside(self, program: ProgramState) -> bool:
        member = _member(program)
        return member is not None and member.phase is Phase.OUTSIDE

    def program_finished(self, program: ProgramState) -> None:
        member = _member(program)
        if member is not None:
            member.phase = Phase.GONE
        self._count_finished(program)

    def _count_finished(self, program: ProgramState) -> None:
        if program.context_tokens > 0:
            self._inside.footprints.add(program.context_tokens)
        self._inside.drop(program.program_id)
        self._changed = True

    # ------------------------------------------------------------------------------------ phases

    def _begin(self, phase: Phase, program: ProgramState, member: Member, until_s: float) -> None:
        member.phase, member.until_s = phase, until_s
        heapq.heappush(self._ends, (until_s, next(self._ties), phase, program))

    def step(self, step: Step) -> Orders:
        while self._ends and self._ends[0][0] < step.now_s:
            until_s, _, phase, program = heapq.heappop(self._ends)
            member = _member(program)
            if member is not None and (member.phase, member.until_s) == (phase, until_s):
                self._end(program, member)
        if not self._line or not (self._changed or self._impatient(step.now_s)):
            return NO_ORDERS
        self._changed = False
        return Orders(rank_again=self._admit_all(step.now_s))

    def _end(self, program: ProgramState, member: Member) -> None:
        """End the phase of a program that did not return in time. Many clients never mark the last turn."""
        if member.phase is Phase.RELEASED:
            member.phase = Phase.GONE
            self._count_finished(program)
            return
        if self._inside.drop(program.program_id) and member.unhinted_s is None and member.since_s is not None:
            self._holds.kept_s.add(member.until_s - member.since_s)
        self._changed = True
        self._begin(Phase.RELEASED, program, member, member.gone_s)

    def next_event_s(self) -> float | None:
        instants = [self._ends[0][0]] if self._ends else []
        if self._line:
            instants.append(self._first_since_s + PATIENCE_S)
        return min(instants) if instants else None

    # ---------------------------------------------------------------------------------- admission

    def rank(self, turn: TurnState) -> Rank | None:
        if self._is_outside(turn.program):
            return None
        first, *rest = self.position(turn.program)
        ahead = AHEAD if self._small(turn, self._inside.largest_tokens()) else 0
        return (first - ahead, *rest, turn.sequence)

    def victim_rank(self, program: ProgramState) -> Rank:
        return tuple(-part for part in self.position(program))

    def _admit_all(self, now_s: float) -> list[TurnState]:
        """Admit programs while one may be, and return their turns."""
        turns: list[TurnState] = []
        while self._line and (program := self._next(now_s)) is not None:
            self._admit(program, now_s)
            turns.append(cast(TurnState, program.turn))
        return turns

    def _next(self, now_s: float) -> ProgramState | None:
        """Return the program outside to admit now: the first in program order if it fits, or else a small one that
        fits and does not delay the first; None: nobody."""
        first = self.tenants.first(self._line)
        if self._impatient(now_s) or self._fits(cast(TurnState, first.turn), now_s):
            return first
        if not self._inside.small_beside(0, cast(TurnState, first.turn).prompt_tokens):
            return None  # what is expected of a program grows with its prompt, so nobody is small
        return next((each for each in islice(self._line, LOOK_PAST) if self._may_pass(each, first, now_s)), None)

    def _may_pass(self, program: ProgramState, first: ProgramState, now_s: float) -> bool:
        """Whether a program is admitted before the first one outside. It has the same API key."""
        turn, first_tokens = cast(TurnState, program.turn), cast(TurnState, first.turn).prompt_tokens
        return (
            program.namespace == first.namespace
            and self._small(turn, first_tokens)
            and not self._inside.delays(turn.prompt_tokens, first_tokens)
            and self._fits(turn, now_s)
        )

    def _small(self, turn: TurnState, beside_tokens: int) -> bool:
        """Whether a turn may come before those of a program with a context of ``beside_tokens``, because its program
        is small. One-offs have a line of their own instead."""
        return not turn.one_off and self._inside.small_beside(turn.prompt_tokens, beside_tokens)

    def _admit(self, program: ProgramState, now_s: float) -> None:
        if program is self._line[0]:
            self._first_since_s = now_s
        self._leave_line(program)
        self._enter(cast(TurnState, program.turn), cast(Member, program.policy_state))

    def _leave_line(self, program: ProgramState) -> None:
        del self._line[self._line.index(program, bisect_left(self._line, self.position(program), key=self.position))]

    def _impatient(self, now_s: float) -> bool:
        return self._first_since_s + PATIENCE_S < now_s

    def _fits(self, turn: TurnState, now_s: float) -> bool:
        """Whether the throughput that a program adds per turn is at least the recomputation that it may cause.

        With n programs inside, another program adds 1/n of the worth of memory to each turn. While the pool overflows,
        each turn of the newcomer is expected to cost one more prefill. As long as no program has lost KV, nothing is
        forecast, and it is enough that all contexts fit now. A program always fits if no other program is inside.
        """
        inside, tokens = self._inside, turn.prompt_tokens
        number = len(inside.tokens)
        if not number:
            return True
        common = inside.common_tokens(turn.blocks)
        if now_s > self._lost_s + PATIENCE_S:
            return inside.fit_now(tokens, common)
        middle = int(tokens + inside.footprints.final_tokens(tokens)) // 2
        stored = Stored(middle) if self.machine.swap_token_s is not None else None
        rebuild_s = self._holds.loss_s(middle, middle - common, number, stored)
        gain_s = self._holds.worth() * self._holds.served_s.value / (number + 1)
        return inside.overflow_share(tokens, common) * rebuild_s <= gain_s

    def state(self) -> dict[str, Any]:
        return {"programs_inside": len(self._inside.tokens), "programs_outside": len(self._line)}
