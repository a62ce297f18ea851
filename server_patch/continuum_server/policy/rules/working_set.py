"""``working-set``: admit a program if it adds more throughput than recomputation; hold KV up to its break-even time.

A program is *inside* once it is admitted. Until then it is *outside*: its requests are held back. A program inside
keeps its *place* while one of its requests is in the engine, and after a turn for as long as its KV is held. A program
that returns later has no place, but its request is not held back again.

Admission and holds compare seconds of engine time. Memory has a *worth*: the relative gain in the engine's speed per
relative gain in memory. Holding a share s of the KV pool for t seconds costs s * worth * t seconds. Recomputing the KV
costs a prefill. If a tier has the KV, losing it from the GPU costs the memory of the reload, and the program's wait.

Predicted tool times change the length of a hold (``hints.Predictions``). Programs whose task was run before move in
line by their expected work (``forecasts.Forecasts``). docs/policies/working-set.md lists the rules in order.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Annotated, Any, ClassVar, cast

from continuum_server.policy.base import Options, Rank, Yielding
from continuum_server.policy.blocks import Contexts
from continuum_server.policy.estimate import Footprints, RecentMean
from continuum_server.policy.facts import (
    NO_HOLD,
    NO_ORDERS,
    Hold,
    Machine,
    Orders,
    PrefillCurve,
    ProgramState,
    Step,
    Stored,
    TurnFinish,
    TurnStart,
    TurnState,
)
from continuum_server.policy.forecasts import Forecasts, Objective, Progress
from continuum_server.policy.hints import Predictions
from continuum_server.policy.limits import Range, Seconds
from continuum_server.policy.rules.program_fcfs import ProgramFcfs
from continuum_server.policy.tool_statistics import read_tasks, with_tasks
from continuum_server.policy.tool_times import AwayTimes


@dataclass(frozen=True, slots=True)
class WorkingSetOptions(Options):
    """Options of ``working-set``."""

    share: Annotated[float, Range(0.0, 1000.0)] = 1.0
    """Share of the KV pool that programs inside may fill; 0: every program is admitted at once."""
    memory_worth: Annotated[float, Range(1e-9, 1e6)] | None = None
    """Relative gain in the engine's speed per relative gain in memory, above 0; None: from its decode steps."""
    patience_s: Seconds = 600.0
    """At least one program is admitted this often, even if memory is full. After a program inside lost KV to the
    others, growth of contexts is forecast for this long."""
    footprints: Annotated[int, Range(1, 1_000_000)] = 256
    """Most recently finished programs from whose final contexts growth is forecast."""
    tool_times: Annotated[int, Range(0, 1_000_000)] = 1024
    """Most recent times between turns from which a hold is shortened; 0: nothing is learned from tool times."""
    tasks: Annotated[int, Range(0, 1_000_000)] = 4096
    """Number of tasks whose sizes are remembered (named by the ``task`` hint, or by the first prompt); 0: none."""
    objective: Objective = "mean"
    """How programs with known tasks move in line: less expected work moves a program forward. makespan: a program that
    the end of all programs will wait for comes before the others, for an early end of the last program of a batch."""
    overtaking: Annotated[float, Range(0.0, 1e6)] = 100.0
    """Seconds by which a program moves forward in line for each second of work that it is expected to need less than
    the average program, and back for each second more; 0: order of arrival."""
    statistics: str | None = None
    """Files of statistics from earlier runs to start from, separated by commas."""


USUAL_WORTH = 0.27
"""Worth of memory if decode times are unknown: about that of Llama-3.1-8B with 440K tokens on an A100 or an H100."""
USUAL_PREFILL = PrefillCurve(1.5e-9, 5.5e-5, 0.0, "Llama-3.1-8B on an A100")
"""Prefill times if no profile was measured. Recomputation is never free, and learned tool times shorten long holds."""
RECENT = 256
"""Number of turns over which times are averaged."""


def _worth_of(machine: Machine) -> float:
    """Return the worth of memory on this machine, which is above 0."""
    worth = machine.decode.memory_worth(machine.kv_tokens) if machine.decode is not None else 0.0
    return worth or USUAL_WORTH


@dataclass(slots=True, eq=False)
class Member:
    """Policy state of a program, inside or outside."""

    tokens: int
    """Context in tokens: the last prompt, and after the turn also its output."""
    progress: Progress
    """The program's work so far, and its place in line."""
    blocks: Sequence[Hashable] | None = None
    """Block hashes of the prompt in the engine; None: unknown, or no request is in the engine."""
    held: list[TurnState] | None = field(default_factory=list)
    """Requests that are held back while the program is outside; None: the program was admitted."""
    since_s: float = math.inf
    """When the program's last turn ended; inf while one of its requests is in the engine."""
    until_s: float = math.inf
    """When the program loses its place unless it returns."""
    gave_way: bool = False
    """The program lost its place to a program outside. When it returns, it waits to be admitted again."""
    gone_s: float = math.inf
    """When the program counts as finished unless it returns; -inf: it counts as finished now."""
    unhinted_s: float = math.inf
    """The hold after the last turn if the client had sent no hints; inf: it sent none. After a hint, at most this much
    of the time away is recorded, so that no hint changes the worth of memory for other programs."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Policy state of a turn."""

    had_place: bool
    """The program was inside when the turn arrived."""


def _member(program: ProgramState) -> Member | None:
    """Return the program's state; None: the program is new, or was forgotten."""
    return cast("Member | None", program.policy_state)


def _place(program: ProgramState) -> Rank:
    """Return the program's place in line: the smallest comes first. Without a forecast it is the order of arrival."""
    member = _member(program)
    return (program.arrival_s if member is None else member.progress.place_s, program.sequence)


class WorkingSet(ProgramFcfs):
    """Order as ``static-ttl``. A new program is admitted when the throughput it adds is at least the recomputation it
    is expected to cause. KV is held until holding it has cost as much as recomputing it would; a program whose next
    request is queued gives up its pinned KV to programs that arrived earlier."""

    name: ClassVar[str] = "working-set"
    options_type: ClassVar[type] = WorkingSetOptions
    test_options: ClassVar[Mapping[str, Any]] = {"memory_worth": 0.5, "patience_s": 5.0}
    gauges: ClassVar[Mapping[str, str]] = {
        "programs_inside": "Programs that the policy has admitted",
        "programs_outside": "Programs that wait to be admitted",
        "tasks_known": "Tasks whose sizes the policy remembers",
    }
    steps: ClassVar[bool] = True
    holds: ClassVar[bool] = True
    pins_yield_to: ClassVar[Yielding] = "waiting"
    options: WorkingSetOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        measured = machine.prefill.seconds(1) > 0.0
        super().__init__(machine if measured else replace(machine, prefill=USUAL_PREFILL), options)
        self.footprints = Footprints(self.options.footprints)
        self.away_times = AwayTimes(self.options.tool_times)
        self.predictions = Predictions()
        chosen = self.options
        self.forecasts = Forecasts(self.machine, chosen.tasks, chosen.objective, chosen.overtaking, self._turn_s)
        self._held_s, self._served_s = RecentMean(RECENT), RecentMean(RECENT)
        """Means: seconds for which a program keeps its place after a turn, and seconds of a turn in the batch."""
        self._limit_tokens = self.options.share * machine.kv_tokens
        """Most context tokens in the batch. Tiers do not change this limit."""
        self._back_s, self._kept = RecentMean(RECENT), RecentMean(RECENT)
        """Means over turns whose KV had left the GPU: seconds until the turn started, and share with KV in a tier."""
        self._worth = self.options.memory_worth or _worth_of(machine)
        self._inside: dict[str, Member] = {}
        self._contexts = Contexts()
        """The contexts of the programs inside."""
        self._outside: deque[ProgramState] = deque()
        """The programs outside, in the order of their places."""
        self._ends: list[tuple[float, int, ProgramState]] = []
        """A heap of the times at which programs lose their places. Entries of programs that returned are skipped."""
        self._ties = count()
        self._first_since_s = 0.0
        """When the first program outside became the first."""
        self._changed = False
        """An event happened since admission was last decided."""
        self._lost_s = -math.inf
        """When a program inside last lost KV to other programs."""

    # ------------------------------------------------------------------------------- what happens

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        program, self._changed = turn.program, True
        had_place = program.program_id in self._inside
        turn.policy_state = _Arrival(had_place)
        self.predictions.returned(turn, now_s)
        member = _member(program)
        if member is None or member.gave_way:
            member = program.policy_state = self._newcomer(turn, member, now_s)
            if self._passes(turn) or (not self._outside and self._fits(member, now_s)):
                member.held = None
            else:
                self._first_since_s = self._first_since_s if self._outside else now_s
                insort(self._outside, program, key=_place)
        elif member.held is None:
            self.forecasts.turn_arrived(member.progress, turn)
        if member.since_s <= now_s:
            away_s = now_s - member.since_s
            self.away_times.add(away_s)
            if had_place or member.unhinted_s < math.inf:
                self._held_s.add(min(away_s, member.unhinted_s))
        member.tokens, member.blocks = turn.prompt_tokens, turn.blocks
        member.since_s = member.until_s = member.gone_s = math.inf
        if member.held is not None:
            member.held.append(turn)
        elif turn.tagged:
            self._enter(program, member)

    def _newcomer(self, turn: TurnState, before: Member | None, now_s: float) -> Member:
        """Return the state of a program that is new, or that returns after it gave way."""
        if before is None:
            return Member(turn.prompt_tokens, self.forecasts.begin(turn), turn.blocks)
        self.away_times.add(now_s - before.since_s)
        self.forecasts.turn_arrived(before.progress, turn)
        return Member(turn.prompt_tokens, before.progress, turn.blocks)

    def _passes(self, turn: TurnState) -> bool:
        """Whether the turn is never held back: it has no program id, or a program inside waits for it (a sub-agent).

        Only one request of a family at a time passes. The others must be admitted as those of any new program.
        """
        root = turn.program.root
        called = root is not turn.program and root.program_id in self._inside and root.family_requests == 1
        return not turn.tagged or called or self.options.share <= 0.0

    def _enter(self, program: ProgramState, member: Member) -> None:
        self._inside[program.program_id] = member
        self._contexts.put(program.program_id, member.blocks or ())

    def _leave(self, program: ProgramState) -> None:
        if self._inside.pop(program.program_id, None) is not None:
            self._contexts.drop(program.program_id)

    def turn_started(self, start: TurnStart) -> None:
        program = start.turn.program
        if start.kv_was_evicted:
            self._back_s.add(start.now_s - start.turn.arrival_s)
            self._kept.add(float(not start.kv_was_lost))
            if start.turn.policy_state == _Arrival(had_place=True):
                self._lost_s = start.now_s
        member = _member(program)
        if member is not None and member.held is not None:  # overdue: admitted even if memory is full
            self._outside.remove(program)
            self._first_since_s, member.held = start.now_s, None
            self._enter(program, member)

    def turn_preempted(self, turn: TurnState, now_s: float) -> None:
        self._lost_s = now_s

    def turn_finished(self, finish: TurnFinish) -> Hold:
        self._served_s.add(finish.turn.served(finish.now_s))
        program = finish.turn.program
        member = cast(Member, program.policy_state)
        member.tokens, member.blocks, self._changed = finish.context_tokens, None, True
        self.forecasts.turn_ended(member.progress, finish.turn.prompt_tokens, finish.context_tokens)
        if program.program_id in self._inside and finish.turn.blocks is not None:
            self._contexts.put(program.program_id, finish.turn.blocks)
        shared_tokens = self._shared_tokens(program.program_id)
        even_s = self._break_even_s(finish.context_tokens, shared_tokens, finish.stored)
        learned_s = self.away_times.best_hold_s(even_s)
        ttl_s = self._hold_s(finish, even_s, learned_s)
        hinted = finish.turn.tool_hint_s is not None or finish.turn.ttl_wish_s is not None
        member.unhinted_s = learned_s if hinted else math.inf
        if program.requests_in_engine == 0:
            lost_s = even_s if finish.stored is None else self._break_even_s(finish.context_tokens, shared_tokens)
            gone_s = max(even_s, lost_s)
            member.since_s = finish.now_s
            member.until_s, member.gone_s = finish.now_s + ttl_s, finish.now_s + gone_s
            heapq.heappush(self._ends, (member.until_s, next(self._ties), program))
        return NO_HOLD if self._gives_way(finish) else Hold(ttl_s, worth_s=even_s)

    def _gives_way(self, finish: TurnFinish) -> bool:
        """Whether the program loses its place, because the first program outside is so far ahead that a rebuild pays.

        Only a program that a forecast has moved back in line can lose its place in this way.
        """
        program = finish.turn.program
        member = cast(Member, program.policy_state)
        if not self._outside or program.requests_in_engine > 0 or program.program_id not in self._inside:
            return False
        rebuild_s = self.machine.prefill.marginal_prefill_s(finish.context_tokens)
        if not self.forecasts.passes(_place(self._outside[0])[0], member.progress, rebuild_s):
            return False
        if self._fits(cast(Member, self._outside[0].policy_state), finish.now_s):
            return False
        self._leave(program)
        member.gave_way = True
        return True

    def hold_changed(self, turn: TurnState, hold_s: float, now_s: float) -> None:
        """The program keeps its place for as long as its KV is held."""
        member = _member(turn.program)
        if member is not None and turn.program.requests_in_engine == 0:
            member.until_s = now_s + hold_s
            member.gone_s = max(member.gone_s, member.until_s)
            heapq.heappush(self._ends, (member.until_s, next(self._ties), turn.program))

    def _shared_tokens(self, program_id: str) -> int:
        """Return the number of leading tokens of a program's context that another program inside has too."""
        return self._contexts.shared(program_id) * self.machine.block_size

    def _hold_s(self, finish: TurnFinish, even_s: float, learned_s: float) -> float:
        if finish.turn.tool_hint_s is None:
            return learned_s
        cost = self.away_times.cost(even_s)
        return self.predictions.hold_s(finish.turn, finish.now_s, even_s, learned_s, cost)

    def _break_even_s(self, tokens: int, shared_tokens: int = 0, stored: Stored | None = None) -> float:
        """Return the time after which a hold has cost as much engine time as losing the KV would.

        Tokens that other programs inside share do not count, because those programs keep them in memory anyway.
        """
        own = max(tokens - shared_tokens, self.machine.block_size)
        return self._loss_s(tokens, own, stored) / (own / self.machine.kv_tokens * self._worth_now())

    def _loss_s(self, tokens: int, own: int, stored: Stored | None) -> float:
        """Return the engine seconds that it costs to lose the last ``own`` tokens of a context.

        Tokens that no tier has at the return are computed again. A reload takes memory, but not engine time. The
        program waits until there is room and its KV is loaded. With n programs inside, this costs 1/n of the engine.
        """
        prefill = self.machine.prefill
        rebuild_s = prefill.marginal_prefill_s(tokens) - prefill.marginal_prefill_s(tokens - own)
        if stored is None:
            return rebuild_s
        there = min(max(stored.tokens, tokens - own), tokens)
        rest_s = prefill.marginal_prefill_s(tokens) - prefill.marginal_prefill_s(there)
        load_s = self.machine.reload_s(stored) if stored.tokens > 0 else 0.0
        reload_s = own / self.machine.kv_tokens * self._worth_now() * load_s + rest_s
        wait_s = self._back_s.value / max(1, len(self._inside))
        return rebuild_s - self._kept.value * max(0.0, rebuild_s - reload_s - wait_s)

    def _worth_now(self) -> float:
        """Return the worth of memory: faster decoding, plus room for programs that run while the tools of others run.

        The second part is the time for which a place is idle after a turn, per time that the turn was in the batch.
        """
        served_s = self._served_s.value
        learned = self.options.tool_times > 0 and served_s > 0.0
        return self._worth + (self._held_s.value / served_s if learned else 0.0)

    def _turn_s(self) -> float:
        """Return the mean time from the start of a turn until its program loses its place or its next turn arrives."""
        return self._served_s.value + self._held_s.value

    def turn_lost(self, turn: TurnState) -> None:
        self._changed = True
        member = _member(turn.program)
        if member is not None:
            member.blocks = None
            if turn.program.requests_in_engine == 0:
                self.forecasts.program_left(member.progress)
        if turn.program.requests_in_engine == 0:
            self._leave(turn.program)

    def program_finished(self, program: ProgramState) -> None:
        self._learn(program)
        self._count_finished(program)
        member = _member(program)
        if member is not None:
            member.until_s = member.gone_s = math.inf

    def _count_finished(self, program: ProgramState) -> None:
        if program.context_tokens > 0:
            self.footprints.add(program.context_tokens)
        self._leave(program)
        self._changed = True

    def _learn(self, program: ProgramState) -> None:
        """Add the size of a program that ended to its task's. Its last turn had no ``turn_finished``."""
        member = _member(program)
        if member is None:
            return
        if member.progress.turns < program.turns_finished:
            self.forecasts.turn_ended(member.progress, program.prompt_tokens, program.context_tokens)
        self.forecasts.program_ended(member.progress)
        self._place_again(member.progress.task)

    def _place_again(self, task: str | None) -> None:
        """Update the places of programs outside with this task, because another run of the task ended."""
        again = [program for program in self._outside if cast(Member, program.policy_state).progress.task == task]
        if task is None or not again:
            return
        for program in again:
            self.forecasts.place(cast(Member, program.policy_state).progress)
        self._outside = deque(sorted(self._outside, key=_place))

    # ---------------------------------------------------------------------------------- admission

    def rank(self, turn: TurnState) -> Rank | None:
        member = cast(Member, turn.program.policy_state)
        return (*_place(turn.program), turn.sequence) if member.held is None else None

    def victim_rank(self, program: ProgramState) -> Rank:
        return tuple(-part for part in _place(program))

    def step(self, step: Step) -> Orders:
        while self._ends and self._ends[0][0] < step.now_s:
            self._end_place(heapq.heappop(self._ends)[2], step.now_s)
        if not self._outside or not (self._changed or self._impatient(step.now_s)):
            return NO_ORDERS
        self._changed = False
        return Orders(rank_again=self._admit(step.now_s))

    def _end_place(self, program: ProgramState, now_s: float) -> None:
        """End the place of a program that did not return in time.

        If the program is away even longer, it counts as finished, because many clients never mark the last turn. After
        ``patience_s`` without a return, its size is added to its task's.
        """
        member = _member(program)
        if member is None or member.until_s >= now_s:
            return
        if self._inside.get(program.program_id) is member:
            self._leave(program)
            if member.unhinted_s == math.inf:
                self._held_s.add(member.until_s - member.since_s)
            self._changed = True
        if member.gone_s >= now_s:
            self._look_again(program, member, member.gone_s)
        elif member.gone_s > -math.inf:
            self._count_finished(program)
            self._look_again(program, member, max(now_s, member.since_s + self.options.patience_s))
            member.gone_s = -math.inf
        else:
            self._learn(program)

    def _look_again(self, program: ProgramState, member: Member, instant_s: float) -> None:
        member.until_s = instant_s
        heapq.heappush(self._ends, (instant_s, next(self._ties), program))

    def _admit(self, now_s: float) -> list[TurnState]:
        """Admit programs in the order of their places while they fit, and return their requests."""
        turns: list[TurnState] = []
        while self._outside:
            program = self._outside[0]
            member = cast(Member, program.policy_state)
            waiting = [turn for turn in member.held or () if not turn.gone]
            if waiting and not self._impatient(now_s) and not self._fits(member, now_s):
                break
            self._outside.popleft()
            self._first_since_s, member.held = now_s, None
            if waiting:
                self._enter(program, member)
                turns += waiting
            else:  # its requests were aborted; if it returns, it is a new program
                self.forecasts.program_left(member.progress)
                program.policy_state = None
        return turns

    def _impatient(self, now_s: float) -> bool:
        return self._first_since_s + self.options.patience_s < now_s

    def _fits(self, newcomer: Member, now_s: float) -> bool:
        """Whether the throughput that a program adds per turn is at least the recomputation that it may cause.

        With n programs inside, another program adds 1/n of the worth of memory to each turn. While the pool overflows,
        each turn of the newcomer is expected to cost one more prefill. ``Footprints.overflow_share`` forecasts during
        which share of its growth the pool overflows. As long as no program has lost KV, nothing is forecast, and it is
        enough that all contexts fit now. Tokens that several programs share count once. A program always fits if no
        other program is inside.
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
        finals = [*(self._final_tokens(member) for member in self._inside.values()), self._final_tokens(newcomer)]
        middle = int(newcomer.tokens + finals[-1]) // 2
        stored = Stored(middle) if self.machine.swap_token_s is not None else None
        rebuild_s = self._loss_s(middle, middle - shared, stored)
        gain_s = self._worth_now() * self._served_s.value / len(contexts)
        over = self.footprints.overflow_share(contexts, self._limit_tokens, own, together, finals)
        return over * rebuild_s <= gain_s

    def _final_tokens(self, member: Member) -> float:
        """Return the expected final context of a program: from its task, or else from all finished programs."""
        known = self.forecasts.final_tokens(member.progress, member.tokens)
        return self.footprints.final_tokens(member.tokens) if known is None else known

    def next_event_s(self) -> float | None:
        instants = [self._ends[0][0]] if self._ends else []
        if self._outside:
            instants.append(self._first_since_s + self.options.patience_s)
        return min(instants) if instants else None

    def state(self) -> dict[str, Any]:
        return {
            "programs_inside": len(self._inside),
            "programs_outside": len(self._outside),
            "tasks_known": len(self.forecasts.tasks),
        }

    def export_statistics(self) -> dict[str, Any]:
        return with_tasks(self.forecasts.tasks)

    def import_statistics(self, statistics: dict[str, Any]) -> None:
        read_tasks(statistics, self.forecasts.tasks)
