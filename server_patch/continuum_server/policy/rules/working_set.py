"""``working-set``: programs are let in while what they will need fits; KV is held while that saves engine time."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import Annotated, Any, ClassVar

from continuum_server.policy.base import Options, Rank, Yielding
from continuum_server.policy.blocks import Contexts
from continuum_server.policy.facts import (
    NO_ORDERS,
    Hold,
    Machine,
    Orders,
    PrefillCurve,
    ProgramState,
    Step,
    TurnFinish,
    TurnStart,
    TurnState,
)
from continuum_server.policy.limits import Range, Seconds
from continuum_server.policy.order import ProgramFcfs


@dataclass(frozen=True, slots=True)
class WorkingSetOptions(Options):
    """Options of ``working-set``."""

    share: Annotated[float, Range(0.0, 1000.0)] = 1.0
    """Share of the KV pool that programs inside may fill; 0: everybody is let in."""
    memory_worth: Annotated[float, Range(1e-9, 1e6)] | None = None
    """Relative gain in the engine's speed per relative gain in memory, above 0; None: from its decode steps."""
    patience_s: Seconds = 600.0
    """At least one program that waits outside is let in this often, whatever memory says; and growth is forecast for so
    long after a program inside lost KV to the others."""
    footprints: Annotated[int, Range(1, 1_000_000)] = 256
    """Most recently finished programs from whose final contexts growth is forecast."""
    tool_times: Annotated[int, Range(0, 1_000_000)] = 1024
    """Most recent times between turns from which a hold is shortened; 0: of tools nothing is learned."""


USUAL_WORTH = 0.27
"""Of Llama-3.1-8B on an A100 with a pool of 440K tokens; 0.28 on an H100."""
USUAL_PREFILL = PrefillCurve(1.5e-9, 5.5e-5, 0.0, "Llama-3.1-8B on an A100")
"""Where nobody measured: a rebuild is never free, and what is seen of tools shortens a hold that is too long."""


def _worth_of(machine: Machine) -> float:
    """What memory is worth on this machine, above 0."""
    worth = machine.decode.memory_worth(machine.kv_tokens) if machine.decode is not None else 0.0
    return worth or USUAL_WORTH


RECENT = 256
"""Turns over which times are averaged."""


class Footprints:
    """Final contexts of programs that finished recently, in tokens."""

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

    def crowded(
        self,
        contexts: Sequence[int],
        limit_tokens: float,
        own: Sequence[int] | None = None,
        together_tokens: int | None = None,
    ) -> float:
        """Share of the last context's way to its end on which all together need more than ``limit_tokens``.

        All grow at one pace and leave at their end; where nothing grows it is now or never: 1 or 0.

        Args:
            contexts: tokens of each program.
            own: of these, what leaves memory with it: what it shares with nobody. None: all.
            together_tokens: tokens of all programs, shared ones counted once. None: the sum of ``contexts``.
        """
        leaving = contexts if own is None else own
        growing = sorted((self.final(tokens) - tokens, left) for tokens, left in zip(contexts, leaving, strict=True))
        way = self.final(contexts[-1]) - contexts[-1]
        together, left = float(sum(contexts) if together_tokens is None else together_tokens), len(growing)
        if way <= 0.0:
            return float(together > limit_tokens)
        grown, crowded = 0.0, 0.0
        for growth, tokens in growing:
            until = min(growth, way)
            full = (limit_tokens - together) / left  # all have grown by so much
            crowded += max(0.0, until - max(grown, full))
            grown, together, left = until, together - tokens, left - 1
            if growth >= way:
                break
        return crowded / way


class ToolTimes:
    """Seconds that programs stayed away lately, and how long to hold for the next."""

    ENOUGH: ClassVar[int] = 32
    """With fewer nothing is known of their distribution."""
    POINTS: ClassVar[int] = 64
    """Tried as holds, evenly among the times."""
    MARGIN: ClassVar[float] = 1.25
    """A hold is so much longer than the time it is for: the next one like it may be a little later."""

    def __init__(self, window: int) -> None:
        self._recent: deque[float] = deque(maxlen=window)
        self._new = 0
        self._sorted: list[float] = []
        self._sums: list[float] = [0.0]

    def add(self, away_s: float) -> None:
        self._recent.append(away_s)
        self._new += 1

    def best_hold_s(self, even_s: float) -> float:
        """The tau up to the break-even time ``even_s`` with the least E[min(away, tau)] + P(away > tau) * even_s.

        The break-even itself where that costs no more: what was not seen yet is not ruled out.
        """
        if len(self._recent) < self.ENOUGH:
            return even_s
        if self._new >= self.ENOUGH:
            self._new, self._sorted = 0, sorted(self._recent)
            self._sums = [0.0, *accumulate(self._sorted)]
        number = bisect_right(self._sorted, even_s)
        step = max(1, number // self.POINTS)
        tried = [(number, even_s), (0, 0.0)]
        tried += [(index + 1, self._sorted[index]) for index in range(step - 1, number, step)]
        _, tau_s = min(tried, key=lambda point: self._cost(point[0], point[1] + even_s))
        return min(even_s, tau_s * self.MARGIN)

    def _cost(self, within: int, beyond_s: float) -> float:
        """Of all times together: those ``within`` the tau are waited for, each of the others costs ``beyond_s``."""
        return self._sums[within] + (len(self._sorted) - within) * beyond_s


class RecentMean:
    """Mean in which the last ``window`` values count most; 0 before the first."""

    def __init__(self, window: int) -> None:
        self._window, self._count = window, 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self._count = min(self._count + 1, self._window)
        self.value += (value - self.value) / self._count


@dataclass(slots=True, eq=False)
class _Member:
    """A program inside, or one that waits to be let in."""

    tokens: int
    """Its context: of the last prompt; with the output once the turn ended."""
    blocks: Sequence[Hashable] | None = None
    """Block hashes of the prompt that is in the engine; None: unknown, or its tool runs."""
    held: list[TurnState] | None = field(default_factory=list)
    """Requests held back; None: it has been let in."""
    since_s: float = math.inf
    """Since when it is away; inf while a request of it is in the engine."""
    until_s: float = math.inf
    """When it loses its place."""
    gone_s: float = math.inf
    """When it counts as finished."""


class WorkingSet(ProgramFcfs):
    """New programs wait outside while those inside will need the room; KV is held for the break-even time."""

    name: ClassVar[str] = "working-set"
    options_type: ClassVar[type] = WorkingSetOptions
    steps: ClassVar[bool] = True
    pins_yield_to: ClassVar[Yielding] = "waiting"
    options: WorkingSetOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        measured = machine.prefill.seconds(1) > 0.0
        super().__init__(machine if measured else replace(machine, prefill=USUAL_PREFILL), options)
        self.footprints = Footprints(self.options.footprints)
        self.tool_times = ToolTimes(self.options.tool_times)
        self._held_s, self._served_s = RecentMean(RECENT), RecentMean(RECENT)
        """Seconds a turn's place was kept after it, and seconds it was in the batch."""
        self._limit_tokens = self.options.share * max(machine.kv_tokens, machine.tier_tokens)
        """Beyond it KV is lost: tiers keep a copy of what leaves the GPU."""
        self._worth = self.options.memory_worth or _worth_of(machine)
        self._inside: dict[str, _Member] = {}
        self._contexts = Contexts()
        """Of those inside."""
        self._outside: deque[ProgramState] = deque()
        """Programs that wait to be let in, in the order they came."""
        self._ends: list[tuple[float, int, ProgramState]] = []
        """When places are lost; some no longer matter."""
        self._ties = count()
        self._first_since_s = 0.0
        """When the first of those outside became the first."""
        self._changed = False
        """Something happened since it was last asked who may come in."""
        self._lost_s = -math.inf
        """When a program inside last lost KV to the others."""

    # ------------------------------------------------------------------------------- what happens

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        program, self._changed = turn.program, True
        turn.policy_state = program.program_id in self._inside
        member: _Member | None = program.policy_state
        if member is None:
            member = program.policy_state = _Member(turn.prompt_tokens, turn.blocks)
            if self._passes(turn) or (not self._outside and self._fits(member, now_s)):
                member.held = None
            else:
                self._first_since_s = self._first_since_s if self._outside else now_s
                self._outside.append(program)
        if member.since_s <= now_s:
            self.tool_times.add(now_s - member.since_s)
            if turn.policy_state:
                self._held_s.add(now_s - member.since_s)
        member.tokens, member.blocks = turn.prompt_tokens, turn.blocks
        member.since_s = member.until_s = member.gone_s = math.inf
        if member.held is not None:
            member.held.append(turn)
        elif turn.tagged:
            self._enter(program, member)

    def _passes(self, turn: TurnState) -> bool:
        """Never held back: a request that names no program, and one for which a program inside waits.

        Of a family one request at a time passes so; what else it sends comes in as any new program does.
        """
        root = turn.program.root
        called = root is not turn.program and root.program_id in self._inside and root.family_requests == 1
        return not turn.tagged or called or self.options.share <= 0.0

    def _enter(self, program: ProgramState, member: _Member) -> None:
        self._inside[program.program_id] = member
        self._contexts.put(program.program_id, member.blocks or ())

    def _leave(self, program: ProgramState) -> None:
        if self._inside.pop(program.program_id, None) is not None:
            self._contexts.drop(program.program_id)

    def turn_started(self, start: TurnStart) -> None:
        program, had_its_place = start.turn.program, start.turn.policy_state
        if start.kv_was_lost and had_its_place:
            self._lost_s = start.now_s
        member: _Member | None = program.policy_state
        if member is not None and member.held is not None:  # it was overdue: it is in, whatever memory says
            self._outside.remove(program)
            self._first_since_s, member.held = start.now_s, None
            self._enter(program, member)

    def turn_preempted(self, turn: TurnState, now_s: float) -> None:
        self._lost_s = now_s

    def turn_finished(self, finish: TurnFinish) -> Hold:
        self._served_s.add(finish.turn.served(finish.now_s))
        program = finish.turn.program
        member: _Member = program.policy_state
        member.tokens, member.blocks, self._changed = finish.context_tokens, None, True
        if program.program_id in self._inside and finish.turn.blocks is not None:
            self._contexts.put(program.program_id, finish.turn.blocks)
        even_s = self._break_even_s(finish.context_tokens, self._shared_tokens(program.program_id))
        ttl_s = self._hold_s(finish, even_s)
        if program.requests_in_engine == 0:
            member.since_s = finish.now_s
            member.until_s, member.gone_s = finish.now_s + ttl_s, finish.now_s + even_s
            heapq.heappush(self._ends, (member.until_s, next(self._ties), program))
        return Hold(min(ttl_s, self._reload_even_s(finish)))

    def _shared_tokens(self, program_id: str) -> int:
        """Leading tokens of a program inside that another one inside has too."""
        return self._contexts.shared(program_id) * self.machine.block_size

    def _hold_s(self, finish: TurnFinish, even_s: float) -> float:
        return self.tool_times.best_hold_s(even_s)

    def _reload_even_s(self, finish: TurnFinish) -> float:
        """The same where a tier holds its KV: the way back takes only its memory, what the tier lacks the engine."""
        stored, tokens = finish.stored, finish.context_tokens
        if stored is None or stored.tokens <= 0:
            return math.inf
        worth = tokens / self.machine.kv_tokens * self._worth_now()
        return self.machine.reload_s(stored) + self.machine.rest_s(tokens, stored) / worth

    def _break_even_s(self, tokens: int, shared_tokens: int = 0) -> float:
        """A rebuild takes all of the engine, a hold only what its share of memory is worth: when both cost the same.

        What others share is theirs to keep: no rebuild computes it again, and no hold takes memory for it.
        """
        own = max(tokens - shared_tokens, self.machine.block_size)
        prefill = self.machine.prefill
        rebuild_s = prefill.marginal_prefill_s(tokens) - prefill.marginal_prefill_s(tokens - own)
        return rebuild_s / (own / self.machine.kv_tokens * self._worth_now())

    def _worth_now(self) -> float:
        """In decoding, and in programs inside that do not wait for their tools."""
        served_s = self._served_s.value
        learned = self.options.tool_times > 0 and served_s > 0.0
        return self._worth + (self._held_s.value / served_s if learned else 0.0)

    def turn_lost(self, turn: TurnState) -> None:
        self._changed = True
        member: _Member | None = turn.program.policy_state
        if member is not None:
            member.blocks = None
        if turn.program.requests_in_engine == 0:
            self._leave(turn.program)

    def program_finished(self, program: ProgramState) -> None:
        if program.context_tokens > 0:
            self.footprints.add(program.context_tokens)
        self._leave(program)
        self._changed = True
        if program.policy_state is not None:
            program.policy_state.until_s = program.policy_state.gone_s = math.inf

    # ------------------------------------------------------------------------------- who comes in

    def rank(self, turn: TurnState) -> Rank | None:
        member: _Member = turn.program.policy_state
        return super().rank(turn) if member.held is None else None

    def step(self, step: Step) -> Orders:
        while self._ends and self._ends[0][0] < step.now_s:
            self._end_place(heapq.heappop(self._ends)[2], step.now_s)
        if not self._outside or not (self._changed or self._impatient(step.now_s)):
            return NO_ORDERS
        self._changed = False
        return Orders(rank_again=self._let_in(step.now_s))

    def _end_place(self, program: ProgramState, now_s: float) -> None:
        """It did not come back in time. Later it counts as finished: many clients never say which turn is the last."""
        member: _Member | None = program.policy_state
        if member is None or member.until_s >= now_s:
            return
        if self._inside.get(program.program_id) is member:
            self._leave(program)
            self._held_s.add(member.until_s - member.since_s)
            self._changed = True
        if member.gone_s < now_s:
            self.program_finished(program)
        else:
            member.until_s = member.gone_s
            heapq.heappush(self._ends, (member.gone_s, next(self._ties), program))

    def _let_in(self, now_s: float) -> list[TurnState]:
        """Requests of those outside, in the order they came, while they fit."""
        turns: list[TurnState] = []
        while self._outside:
            program = self._outside[0]
            member: _Member = program.policy_state
            waiting = [turn for turn in member.held or () if not turn.gone]
            if waiting and not self._impatient(now_s) and not self._fits(member, now_s):
                break
            self._outside.popleft()
            self._first_since_s, member.held = now_s, None
            if waiting:
                self._enter(program, member)
                turns += waiting
            else:  # it went away; should it come back, it is new
                program.policy_state = None
        return turns

    def _impatient(self, now_s: float) -> bool:
        return self._first_since_s + self.options.patience_s < now_s

    def _fits(self, newcomer: _Member, now_s: float) -> bool:
        """Nobody is inside, or the newcomer brings more than it costs beside those who are.

        It is admitted if the throughput it adds per turn, 1/n of what memory is worth with n programs, is at least the
        recomputation that it is expected to cause: on the part of its way where all together need more memory than
        there is, one rebuild a turn. While memory has been enough, only what is there counts: a forecast of growth that
        came true would have shown. Tokens that several share count once.
        """
        if not self._inside:
            return True
        size = self.machine.block_size
        shared = self._contexts.common(newcomer.blocks or ()) * size
        contexts = [*(member.tokens for member in self._inside.values()), newcomer.tokens]
        together = sum(contexts) - self._contexts.repeats * size - shared
        scarce = now_s <= self._lost_s + self.options.patience_s
        if not scarce:
            return together <= self._limit_tokens
        own = [member.tokens - self._shared_tokens(name) for name, member in self._inside.items()]
        own.append(newcomer.tokens - shared)
        middle = int(newcomer.tokens + self.footprints.final(newcomer.tokens)) // 2
        rebuild_s = self.machine.prefill.marginal_prefill_s(middle) - self.machine.prefill.marginal_prefill_s(shared)
        gain_s = self._worth_now() * self._served_s.value / len(contexts)
        return self.footprints.crowded(contexts, self._limit_tokens, own, together) * rebuild_s <= gain_s

    def next_event_s(self) -> float | None:
        instants = [self._ends[0][0]] if self._ends else []
        if self._outside:
            instants.append(self._first_since_s + self.options.patience_s)
        return min(instants) if instants else None

    def state(self) -> dict[str, Any]:
        return {"programs_inside": len(self._inside), "programs_outside": len(self._outside)}
