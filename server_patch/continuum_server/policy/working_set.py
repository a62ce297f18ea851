"""``working-set``: programs are let in while what they will need fits, and those inside keep their KV."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field

from continuum_server.policy.base import Rank
from continuum_server.policy.facts import NO_ORDERS, Hold, Machine, Orders, ProgramState, Step, TurnFinish, TurnState
from continuum_server.policy.ttl import Continuum, ContinuumOptions


@dataclass(frozen=True, slots=True)
class WorkingSetOptions(ContinuumOptions):
    """Options of ``working-set``, beside those of ``continuum``."""

    share: float = 0.85
    """Share of the KV pool that the programs inside may be expected to need; 0: everybody is let in at once."""
    growth: float = 0.5
    """Part of the growth still expected of each program that is counted beside its present context, 0 to 1."""
    hold_s: float = 60.0
    """Seconds an unfinished program's KV is held at least and its place kept, where nobody needs the room."""
    patience_s: float = 600.0
    """At least one new program is let in this often, whatever memory says."""
    yields: int = 2
    window: int = 256
    """Most recent finished programs whose footprints are averaged."""

    def __post_init__(self) -> None:
        if self.growth > 1.0 or self.window < 1:
            raise ValueError("growth must be at most 1, window at least 1")


@dataclass(slots=True, eq=False)
class _Member:
    """A program inside, or one that waits to be let in."""

    program: ProgramState
    tokens: int
    """Its context: the last prompt, prompt and output once the turn ended."""
    until_s: float = math.inf
    """When it loses its place; never while a request of it is in the engine."""
    yields_s: float = math.inf
    """From when on its KV may be taken by whoever waits."""
    held: list[TurnState] | None = field(default_factory=list)
    """Requests held back; None: it has been let in."""


class WorkingSet(Continuum):
    """New programs wait outside until there is room for all they will need; those inside are held."""

    name = "working-set"
    options_type = WorkingSetOptions
    steps = True
    soft_pins = True
    options: WorkingSetOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self._limit_tokens = self.options.share * machine.kv_tokens
        self._inside: dict[str, _Member] = {}
        self._outside: deque[_Member] = deque()
        self._instants: list[float] = []
        """When a place is lost or a pin begins to yield; some no longer matter."""
        self._head_since_s = 0.0
        """When the first of those outside became the first."""
        self._footprints: deque[int] = deque(maxlen=self.options.window)
        self._footprints_sum = 0
        self._now_s = 0.0
        self._changed = False
        """Something happened since it was last asked who may come in."""

    # ------------------------------------------------------------------------------ what happens

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        super().turn_arrived(turn, now_s)
        program, self._changed = turn.program, True
        member: _Member | None = program.memo
        if member is None:
            member = program.memo = _Member(program, turn.prompt_tokens)
            if self._may_pass(turn) or (not self._outside and self._fits(member)):
                member.held = None
            else:
                self._head_since_s = self._head_since_s if self._outside else now_s
                self._outside.append(member)
        member.tokens, member.until_s, member.yields_s = turn.prompt_tokens, math.inf, math.inf
        if member.held is None:
            self._inside[program.program_id] = member
        else:
            member.held.append(turn)

    def _may_pass(self, turn: TurnState) -> bool:
        """Never held back: who names no program, who works for a program inside, who was here before."""
        return not turn.tagged or turn.program.family is not None or turn.index > 0 or self.options.share <= 0.0

    def turn_finished(self, finish: TurnFinish) -> Hold:
        hold, member = super().turn_finished(finish), finish.turn.program.memo
        ttl_s = max(0.0, hold.ttl_s)
        member.tokens, self._changed = finish.context_tokens, True
        if finish.turn.program.requests_in_engine == 0:
            member.yields_s = finish.now_s + ttl_s
            member.until_s = finish.now_s + max(ttl_s, self.options.hold_s)
            for instant in {member.yields_s, member.until_s}:
                heapq.heappush(self._instants, instant)
        return Hold(max(ttl_s, self.options.hold_s), hold.delay_estimate_s, hold.eta)

    def turn_left(self, turn: TurnState) -> None:
        program, self._changed = turn.program, True
        if program.requests_in_engine == 0:
            self._inside.pop(program.program_id, None)

    def program_finished(self, program: ProgramState) -> None:
        super().program_finished(program)
        self._changed = True
        self._inside.pop(program.program_id, None)
        if len(self._footprints) == self._footprints.maxlen:
            self._footprints_sum -= self._footprints[0]
        self._footprints.append(program.context_tokens)
        self._footprints_sum += program.context_tokens

    # -------------------------------------------------------------------------------- who comes in

    def rank(self, turn: TurnState) -> Rank | None:
        member: _Member = turn.program.memo
        return super().rank(turn) if member.held is None else None

    def step(self, step: Step) -> Orders:
        self._now_s = step.now_s
        while self._instants and self._instants[0] < step.now_s:
            heapq.heappop(self._instants)
            self._changed = True
        impatient = bool(self._outside) and self._head_since_s + self.options.patience_s < step.now_s
        if not (self._changed or impatient):
            return NO_ORDERS
        self._changed = False
        turns = self._let_in(step.now_s) if self._outside else []
        return Orders(rank_again=turns) if turns else NO_ORDERS

    def _let_in(self, now_s: float) -> list[TurnState]:
        """Those outside, in the order they came, while they fit."""
        turns: list[TurnState] = []
        for program_id in [name for name, member in self._inside.items() if member.until_s < now_s]:
            del self._inside[program_id]
        while self._outside:
            first = self._outside[0]
            waiting = [turn for turn in first.held or () if not turn.gone]
            impatient = self._head_since_s + self.options.patience_s < now_s
            if waiting and not impatient and not self._fits(first):
                break
            self._outside.popleft()
            first.held, self._head_since_s = None, now_s
            if waiting:
                self._inside[first.program.program_id] = first
                turns += waiting
        return turns

    def _fits(self, new: _Member) -> bool:
        """Nobody is inside, or what all of them and the new one need is within the share."""
        if not self._inside:
            return True
        final = self._footprints_sum / len(self._footprints) if self._footprints else 0.0
        growth = self.options.growth
        need = max(new.tokens, final)
        for member in self._inside.values():
            tokens = member.tokens
            need += tokens + growth * (final - tokens) if tokens < final else tokens
            if need > self._limit_tokens:
                return False
        return True

    def wake_s(self) -> float | None:
        instants = self._instants[:1]
        if self._outside:
            instants.append(self._head_since_s + self.options.patience_s)
        return min(instants) if instants else None

    # ------------------------------------------------------------------------------ who gives way

    def victim_rank(self, program: ProgramState) -> Rank:
        """Past the TTL first, then the latest program."""
        return (not self._past(program), -program.sequence)

    def may_take(self, asker: TurnState, program: ProgramState) -> bool:
        y = self.options.yields
        return (y >= 1 and self._past(program)) or (y >= 2 and program.sequence > asker.program.sequence)

    def _past(self, program: ProgramState) -> bool:
        member: _Member = program.memo
        return member.yields_s < self._now_s
