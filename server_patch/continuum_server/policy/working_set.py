"""``working-set``: programs are let in while what they will need fits, and those inside keep their KV."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from continuum_server.policy.base import Rank
from continuum_server.policy.facts import NO_ORDERS, Hold, Machine, Orders, ProgramState, Step, TurnFinish, TurnState
from continuum_server.policy.ttl import Continuum, ContinuumOptions


@dataclass(frozen=True, slots=True)
class WorkingSetOptions(ContinuumOptions):
    """Options of ``working-set``, beside those of ``continuum``."""

    share: float = 1.0
    """Share of the KV pool that the programs inside may be expected to need at their peak; 0: everybody is let in."""
    hold_s: float = 60.0
    """Seconds for which an unfinished program's KV is held, and its place kept, where its TTL is not longer; past its
    TTL the KV yields to whoever waits."""
    patience_s: float = 600.0
    """At least one program that waits outside is let in this often, whatever memory says."""
    footprints: int = 256
    """Most recently finished programs from whose final contexts growth is forecast."""

    def __post_init__(self) -> None:
        if self.footprints < 1:
            raise ValueError(f"footprints = {self.footprints}: must be at least 1")


class Footprints:
    """Final contexts of recently finished programs, in tokens."""

    def __init__(self, window: int) -> None:
        self._recent: deque[int] = deque(maxlen=window)
        self._sorted: list[int] | None = None
        self._sums: list[int] = [0]

    def add(self, tokens: int) -> None:
        self._recent.append(tokens)
        self._sorted = None

    def final(self, tokens: int) -> float:
        """Mean final context of those that grew beyond ``tokens``; where none did: no growth is expected."""
        if self._sorted is None:
            self._sorted = sorted(self._recent)
            self._sums = [0, *accumulate(self._sorted)]
        first = bisect_right(self._sorted, tokens)
        beyond = len(self._sorted) - first
        return (self._sums[-1] - self._sums[first]) / beyond if beyond else float(tokens)

    def peak(self, contexts: Iterable[int]) -> float:
        """Most tokens that programs of these contexts will need together, if all grow at one pace to their end."""
        growing = sorted(((self.final(tokens) - tokens, tokens) for tokens in contexts), reverse=True)
        together, peak = 0.0, 0.0
        for number, (growth, tokens) in enumerate(growing, 1):  # those still there when this one ends
            together += tokens
            peak = max(peak, together + number * growth)
        return peak


@dataclass(slots=True, eq=False)
class _Member:
    """A program inside, or one that waits to be let in."""

    tokens: int
    """Its context: of the last prompt; with the output once the turn ended."""
    held: list[TurnState] | None = field(default_factory=list)
    """Requests held back; None: it has been let in."""
    until_s: float = math.inf
    """When it loses its place; never while a request of it is in the engine."""
    yields_s: float = math.inf
    """From when on its KV yields to whoever waits: the end of its TTL."""


class WorkingSet(Continuum):
    """New programs wait outside while those inside will need the room; those inside are held."""

    name = "working-set"
    options_type = WorkingSetOptions
    steps = True
    soft_pins = True
    options: WorkingSetOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self.footprints = Footprints(self.options.footprints)
        self._limit_tokens = self.options.share * machine.kv_tokens
        self._inside: dict[str, _Member] = {}
        self._outside: deque[ProgramState] = deque()
        """Programs that wait to be let in, in the order they came."""
        self._instants: list[float] = []
        """When a place is lost or a pin begins to yield; some no longer matter."""
        self._first_since_s = 0.0
        """When the first of those outside became the first."""
        self._now_s = 0.0
        self._changed = False
        """Something happened since it was last asked who may come in."""

    # ------------------------------------------------------------------------------- what happens

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        super().turn_arrived(turn, now_s)
        program, self._changed = turn.program, True
        member: _Member | None = program.memo
        if member is None:
            member = program.memo = _Member(turn.prompt_tokens)
            if self._passes(turn) or (not self._outside and self._fits(turn.prompt_tokens)):
                member.held = None
            else:
                self._first_since_s = self._first_since_s if self._outside else now_s
                self._outside.append(program)
        member.tokens, member.until_s, member.yields_s = turn.prompt_tokens, math.inf, math.inf
        if member.held is not None:
            member.held.append(turn)
        elif turn.tagged:
            self._inside[program.program_id] = member

    def _passes(self, turn: TurnState) -> bool:
        """Never held back: who names no program, who works for a program that is inside already."""
        return not turn.tagged or turn.program.family is not None or self.options.share <= 0.0

    def turn_finished(self, finish: TurnFinish) -> Hold:
        hold, program = super().turn_finished(finish), finish.turn.program
        member: _Member = program.memo
        member.tokens, self._changed = finish.context_tokens, True
        longest_s = max(hold.ttl_s, self.options.hold_s)
        if program.requests_in_engine == 0:
            member.yields_s, member.until_s = finish.now_s + max(0.0, hold.ttl_s), finish.now_s + longest_s
            heapq.heappush(self._instants, member.yields_s)
            heapq.heappush(self._instants, member.until_s)
        return Hold(longest_s, hold.delay_estimate_s, hold.eta)

    def turn_lost(self, turn: TurnState) -> None:
        self._changed = True
        if turn.program.requests_in_engine == 0:
            self._inside.pop(turn.program.program_id, None)

    def program_finished(self, program: ProgramState) -> None:
        super().program_finished(program)
        self.footprints.add(program.context_tokens)
        self._inside.pop(program.program_id, None)
        self._changed = True

    # ------------------------------------------------------------------------------- who comes in

    def rank(self, turn: TurnState) -> Rank | None:
        member: _Member = turn.program.memo
        return super().rank(turn) if member.held is None else None

    def step(self, step: Step) -> Orders:
        self._now_s = step.now_s
        while self._instants and self._instants[0] < step.now_s:
            heapq.heappop(self._instants)
            self._changed = True
        if not self._outside or not (self._changed or self._impatient(step.now_s)):
            return NO_ORDERS
        self._changed = False
        for name in [name for name, member in self._inside.items() if member.until_s < step.now_s]:
            del self._inside[name]
        return Orders(rank_again=self._let_in(step.now_s))

    def _let_in(self, now_s: float) -> list[TurnState]:
        """Requests of those outside, in the order they came, while they fit."""
        turns: list[TurnState] = []
        while self._outside:
            program = self._outside[0]
            member: _Member = program.memo
            waiting = [turn for turn in member.held or () if not turn.gone]
            if waiting and not self._impatient(now_s) and not self._fits(member.tokens):
                break
            self._outside.popleft()
            self._first_since_s, member.held = now_s, None
            if waiting:
                self._inside[program.program_id] = member
                turns += waiting
            else:  # it went away; should it come back, it is new
                program.memo = None
        return turns

    def _impatient(self, now_s: float) -> bool:
        return self._first_since_s + self.options.patience_s < now_s

    def _fits(self, tokens: int) -> bool:
        """Nobody is inside, or a program of so many tokens beside all of them needs no more than the share."""
        if not self._inside:
            return True
        contexts = [member.tokens for member in self._inside.values()]
        return self.footprints.peak([*contexts, tokens]) <= self._limit_tokens

    def wake_s(self) -> float | None:
        instants = self._instants[:1]
        if self._outside:
            instants.append(self._first_since_s + self.options.patience_s)
        return min(instants) if instants else None

    # ------------------------------------------------------------------------------- who gives way

    def victim_rank(self, program: ProgramState) -> Rank:
        """Past the TTL first, then the latest program."""
        return (not self._past_ttl(program), -program.sequence)

    def may_take(self, asker: TurnState, program: ProgramState) -> bool:
        return self._past_ttl(program)

    def _past_ttl(self, program: ProgramState) -> bool:
        member: _Member = program.memo
        return member.yields_s < self._now_s
