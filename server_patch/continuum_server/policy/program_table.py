"""The table of programs, their turns and their pins, and all decisions about them. It needs no engine.

The scheduler, which owns the real KV blocks, reports facts (arrive, start, finish, abort) and carries out the answers.
There is no clock, file or log in here: every call says what time it is.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, get_args

from continuum_server.policy.base import Policy, Rank, Yielding
from continuum_server.policy.blocks import DistinctBlocks
from continuum_server.policy.facts import Hold, Orders, ProgramState, Step, Stored, TurnFinish, TurnStart, TurnState
from continuum_server.policy.hints import Wishes
from continuum_server.policy.programs import Programs, Prompt, TurnNumbers, mark_of
from continuum_server.policy.tool_statistics import told

PinsYieldTo = Literal["policy", Yielding]
"""``policy``: what the policy itself chose."""


class GuardError(ValueError):
    """A guard has a value that is not allowed: its name, the value, and what is allowed."""

    def __init__(self, name: str, given: Any, allowed: str) -> None:
        super().__init__(name, given, allowed)
        self.name, self.given, self.allowed = name, given, allowed

    def __str__(self) -> str:
        return f"{self.name} = {self.given!r}: {self.allowed}"


@dataclass(frozen=True, slots=True)
class Guards:
    """Limits that no policy can exceed.

    Raises:
        GuardError: a value of the wrong type or out of range.
    """

    max_ttl_s: float = 600.0
    """Longest hold of any turn."""
    max_pinned_share: float = 0.95
    """Share of the KV pool that pins may hold; a block that several pins share counts once."""
    max_pins_per_client: int | None = None
    """Pins that requests with one API key may hold at once; None: no such limit."""
    max_programs: int = 100_000
    """Idle programs remembered; the programs that were idle for longest are forgotten first."""
    max_overtake_s: float = 1800.0
    """A request that has waited this long runs before all later requests, and pins are released for it."""
    pins_yield_to: PinsYieldTo = "policy"
    """Which pins a waiting request may release while other requests run (``Yielding``).

    Every pin may be released if no request runs, or if a running request would otherwise be preempted.
    """

    def __post_init__(self) -> None:
        if not (_is_number(self.max_ttl_s) and 0 <= self.max_ttl_s < math.inf):
            raise GuardError("max_ttl_s", self.max_ttl_s, "must be a number of seconds, 0 or more and finite")
        if not (_is_number(self.max_overtake_s) and self.max_overtake_s >= 0):
            raise GuardError("max_overtake_s", self.max_overtake_s, "must be a number of seconds, 0 or more")
        if not (_is_number(self.max_pinned_share) and 0 <= self.max_pinned_share <= 1):
            raise GuardError("max_pinned_share", self.max_pinned_share, "must be a number from 0 to 1")
        per_client = self.max_pins_per_client
        if per_client is not None and not (_is_whole(per_client) and per_client >= 0):
            raise GuardError("max_pins_per_client", per_client, "must be a whole number, 0 or more; none: no limit")
        if not (_is_whole(self.max_programs) and self.max_programs >= 1):
            raise GuardError("max_programs", self.max_programs, "must be a whole number, at least 1")
        if self.pins_yield_to not in get_args(PinsYieldTo):
            raise GuardError("pins_yield_to", self.pins_yield_to, f"there are {', '.join(get_args(PinsYieldTo))}")


def _is_number(value: Any) -> bool:
    """Settings come as JSON, which holds text and truth values too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(slots=True)
class Pin:
    """A finished turn's KV, held for its program's next turn."""

    program: ProgramState
    turn_index: int
    since_s: float
    deadline_s: float
    tokens: int
    """Tokens of its blocks, shared or not."""
    blocks: Sequence[Hashable] = ()
    client: str = ""


class ProgramTable:
    """One engine's programs, turns and pins under one policy.

    Args:
        kv_tokens: tokens that the KV pool holds.
        block_size: tokens of a KV block.
    """

    def __init__(self, policy: Policy, guards: Guards, kv_tokens: int, block_size: int = 16) -> None:
        self.policy = policy
        self.guards = guards
        self.pins: dict[str, Pin] = {}
        """By ``ProgramState.program_id``."""
        self.block_size = block_size
        self._max_pinned_tokens = guards.max_pinned_share * kv_tokens
        self._pinned = DistinctBlocks()
        self._programs = Programs(guards.max_programs)
        self._turns: dict[str, TurnState] = {}
        self._waiting: OrderedDict[str, TurnState] = OrderedDict()
        """Waiting turns by request id, in the order in which they began to wait."""
        self._deadlines: list[tuple[float, int, Pin]] = []
        self._sequence = 0
        self._acts_soon = False
        self._pins_of_client: Counter[str] = Counter()
        self._wishes = Wishes()

    # ------------------------------------------------------------------------------------ turns

    def program_for(
        self,
        program_id: str,
        now_s: float,
        parent_id: str | None = None,
        prompt: Prompt = Prompt(),  # noqa: B008 - frozen
        namespace: str | None = None,
    ) -> ProgramState:
        """The program that a request with that id continues, or a new program."""
        program = self._programs.find(program_id, prompt, namespace)
        if program is None:
            program = self._programs.add(program_id, now_s, self._sequence + 1, parent_id, namespace)
            for idle in self._programs.superfluous(program):
                if not idle.requests_in_engine and idle.program_id not in self.pins and idle is not program:
                    self._forget(idle)
        return program

    def programs_of(self, program_id: str, namespace: str | None = None) -> list[ProgramState]:
        """All programs that the id stands for."""
        return self._programs.of(program_id, namespace)

    def resume_turns(self, next_turn: Mapping[str, int], numbers: Mapping[str, TurnNumbers]) -> None:
        """After a restart: turn numbers of known ids go on where the record of the engine before ends, and a turn whose
        own id is known keeps its number."""
        self._programs.resume_turns(next_turn, numbers)

    @property
    def program_count(self) -> int:
        return len(self._programs)

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def siblings(self, program: ProgramState) -> list[ProgramState]:
        """All programs that have this one's id, itself too."""
        return self._programs.siblings(program)

    def arrive(self, turn: TurnState, now_s: float) -> None:
        program = turn.program
        turn.index, again = self._programs.note_busy(program, turn.turn_id, turn.prompt)
        if again:  # no tool ran since its last finish
            program.last_finish_s = None
        program.turns_arrived += 1
        program.in_engine.append(turn)
        program.root.family_requests += 1
        program.last_prompt_tokens = turn.prompt_tokens
        self._wishes.returned(program, now_s)
        program.mark = mark_of(turn.blocks, program.shared_blocks or 0)
        self._turns[turn.request_id] = self._waiting[turn.request_id] = turn
        turn.since_s, turn.chain_s = now_s, program.root.served_s
        self.policy.turn_arrived(turn, now_s)
        program.last_finish_s = None  # the gap has ended
        self.act_soon()

    def turn(self, request_id: str) -> TurnState | None:
        return self._turns.get(request_id)

    def start(
        self,
        turn: TurnState,
        now_s: float,
        hit_tokens: int,
        block_size: int,
        reloaded_tokens: int = 0,
        reload_s: float = 0.0,
    ) -> bool:
        """The turn was scheduled. True: for the first time; False: again, after a preemption.

        Args:
            hit_tokens: prompt tokens whose KV was in GPU memory or was reloaded.
            reloaded_tokens: tokens of these that were reloaded from a lower tier, which took ``reload_s``.
        """
        program = turn.program
        self._waiting.pop(turn.request_id, None)
        turn.waited_s = turn.waited(now_s)
        turn.running, turn.since_s = True, now_s
        if program.shared_blocks is None:
            program.shared_blocks = hit_tokens // block_size
            program.mark = mark_of(turn.blocks, program.shared_blocks)
        if turn.start_s is not None:
            return False
        turn.start_s = now_s
        repeated = min(program.prompt_tokens, turn.prompt_tokens)
        enough = (repeated // block_size - 1) * block_size
        evicted, lost = hit_tokens - reloaded_tokens < enough, hit_tokens < enough
        self.policy.turn_started(TurnStart(turn, now_s, hit_tokens, evicted, lost, reloaded_tokens, reload_s))
        return True

    def preempt(self, turn: TurnState, now_s: float) -> None:
        """The running turn was preempted."""
        turn.preemptions += 1
        turn.served_s = turn.served(now_s)
        turn.running, turn.since_s = False, now_s
        self._waiting[turn.request_id] = turn
        self.policy.turn_preempted(turn, now_s)

    def finish(
        self,
        turn: TurnState,
        now_s: float,
        context_tokens: int,
        output_tokens: int,
        tool: str | None,
        stored: Stored | None = None,
        blocks: Callable[[], Sequence[Hashable]] = tuple,
    ) -> Hold | None:
        """The turn ended well. Returns how long to hold its KV; None: not at all.

        Args:
            blocks: gives the identities of the blocks that a hold would keep; equal if two programs share a block.
                It is called only if the policy wants a hold.
        """
        program, root = self._leave(turn), turn.program.root
        program.turns_finished += 1
        program.last_finish_s, program.last_tool = now_s, tool
        program.context_tokens, program.prompt_tokens = context_tokens, turn.prompt_tokens
        root.served_s = max(root.served_s, turn.chain_s + turn.served(now_s))
        root.waited_s += turn.waited(now_s)
        if turn.is_last:
            self._end_program(program)
            return None
        if not turn.tagged:
            self._forget(program)
            return None
        if tool is None and turn.tool_hint is not None:  # for this decision only: it names no sample
            tool = told(turn.tool_hint, program)
        hold = self.policy.turn_finished(TurnFinish(turn, now_s, context_tokens, output_tokens, tool, stored))
        turn.blocks = None  # a policy may remember the turn, but not the memory of its request
        if turn.ttl_wish_s is None or not self.policy.holds:
            return self._allow(hold, blocks, turn.client)
        return self._wished(turn, now_s, hold, blocks)

    def abort(self, turn: TurnState) -> None:
        """The turn was aborted or failed: it is no sample, and none of its KV is held."""
        program = self._leave(turn)
        program.last_finish_s = None
        self._programs.note_failed(program, turn.index, turn.prompt)
        self.policy.turn_lost(turn)
        turn.blocks = None  # as in ``finish``

    def drop(self, turn: TurnState) -> None:
        """Forget the turn after a failure of ours; no KV of its program is held."""
        if turn.request_id in self._turns:
            self._leave(turn)
        turn.program.last_finish_s = None
        self.unpin(turn.program.program_id)
        self.policy.turn_lost(turn)

    def end_program(self, program: ProgramState) -> None:
        """The client says no turn follows."""
        if not program.requests_in_engine and not program.ended:
            self._end_program(program)

    def _leave(self, turn: TurnState) -> ProgramState:
        program = turn.program
        del self._turns[turn.request_id]
        self._waiting.pop(turn.request_id, None)
        turn.gone = True
        program.in_engine.remove(turn)
        program.root.family_requests -= 1
        if not program.in_engine:
            self._programs.note_idle(program)
        self.act_soon()
        return program

    def _end_program(self, program: ProgramState) -> None:
        self._wishes.ended(program)
        self._forget(program)
        self.policy.program_finished(program)

    def _forget(self, program: ProgramState) -> None:
        self._programs.forget(program)

    # ------------------------------------------------------------------------------------- time

    def act_soon(self, always: bool = False) -> None:
        """Something changed that the policy has not seen yet: the next step must not be skipped."""
        self._acts_soon = self.policy.steps or always

    def step(self, step: Step) -> Orders:
        """What the policy wants done before the engine schedules."""
        self._acts_soon = False
        return self.policy.step(step)

    def overdue(self, now_s: float, idle: bool = False) -> list[TurnState]:
        """Turns that no policy may hold back any longer, the longest waiting first.

        Args:
            idle: no other request runs or can run: then the longest waiting turn is overdue at once.
        """
        out: list[TurnState] = []
        for turn in list(islice(self._waiting.values(), 1)) if idle else []:
            out.append(self._waiting.pop(turn.request_id))
        while self._waiting:
            turn = next(iter(self._waiting.values()))
            if turn.since_s + self.guards.max_overtake_s >= now_s:
                break
            out.append(self._waiting.pop(turn.request_id))
        for turn in out:
            turn.overdue = True
        return out

    def next_deadline_s(self) -> float | None:
        """The earliest instant after which a pin expires or the policy may act; None: there is none."""
        if self._acts_soon:
            return -math.inf
        instants = [instant for instant in (self._next_expiry_s(), self.policy.next_event_s()) if instant is not None]
        if self._waiting:
            instants.append(next(iter(self._waiting.values())).since_s + self.guards.max_overtake_s)
        return min(instants) if instants else None

    # ------------------------------------------------------------------------------------- pins

    def _wished(
        self, turn: TurnState, now_s: float, own: Hold, blocks: Callable[[], Sequence[Hashable]]
    ) -> Hold | None:
        """The hold that the turn's client asks for, as far as its wishes are believed, within the guards."""
        hold = replace(own, ttl_s=self._wishes.hold_s(turn, own.ttl_s))
        allowed = self._allow(hold, blocks, turn.client)
        ttl_s = allowed.ttl_s if allowed is not None else 0.0
        wish_s = min(turn.ttl_wish_s or 0.0, self.guards.max_ttl_s)
        if wish_s > own.ttl_s:
            self._wishes.wished(turn.program, now_s, wish_s, own.ttl_s, own.worth_s)
        if ttl_s != own.ttl_s and (allowed is not None or hold.ttl_s < own.ttl_s):
            self.policy.hold_changed(turn, ttl_s, now_s)
        return allowed

    def _allow(self, hold: Hold, blocks: Callable[[], Sequence[Hashable]], client: str | None) -> Hold | None:
        """The hold within the guards."""
        ttl_s = min(hold.ttl_s, self.guards.max_ttl_s)
        if ttl_s <= 0.0:
            return None
        if self.pinned_tokens + self._pinned.new(blocks()) * self.block_size > self._max_pinned_tokens:
            return None
        limit = self.guards.max_pins_per_client
        if limit is not None and self._pins_of_client[client or ""] >= limit:
            return None
        return hold if ttl_s == hold.ttl_s else replace(hold, ttl_s=ttl_s)

    def pin(self, turn: TurnState, now_s: float, ttl_s: float, blocks: Sequence[Hashable]) -> Pin:
        """Record that the scheduler holds these blocks of the turn. The program must not have a pin."""
        tokens = len(blocks) * self.block_size
        pin = Pin(turn.program, turn.index, now_s, now_s + ttl_s, tokens, blocks, turn.client or "")
        self._pins_of_client[pin.client] += 1
        self.pins[turn.program.program_id] = pin
        self._pinned.add(blocks)
        heapq.heappush(self._deadlines, (pin.deadline_s, turn.sequence, pin))
        return pin

    def unpin(self, program_id: str) -> Pin | None:
        pin = self.pins.pop(program_id, None)
        if pin is not None:
            self._pinned.remove(pin.blocks)
            self._pins_of_client[pin.client] -= 1
            if not self._pins_of_client[pin.client]:
                del self._pins_of_client[pin.client]
            pin.blocks = ()  # the pin stays in ``_deadlines`` for a while
        return pin

    def has_pin(self, program_id: str) -> bool:
        return program_id in self.pins

    @property
    def pinned_tokens(self) -> int:
        """Tokens that all pins hold together; a block that several pins share counts once."""
        return len(self._pinned) * self.block_size

    def expired(self, now_s: float) -> list[Pin]:
        """Pins past their deadline. A pin whose program is queued again outlives its deadline."""
        out: list[Pin] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < now_s:
            pin = heapq.heappop(deadlines)[2]
            if self.pins.get(pin.program.program_id) is pin and not pin.program.requests_in_engine:
                out.append(pin)
        return out

    def _next_expiry_s(self) -> float | None:
        """The earliest instant after which ``expired`` may return a pin that it did not return before."""
        deadlines = self._deadlines
        while deadlines and self.pins.get(deadlines[0][2].program.program_id) is not deadlines[0][2]:
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    @property
    def _yielding(self) -> Yielding:
        chosen = self.guards.pins_yield_to
        return self.policy.pins_yield_to if chosen == "policy" else chosen

    def victims(self, asker: TurnState, must_free: bool) -> Iterator[Pin]:
        """Pins that may be released so that ``asker`` fits, in the order in which they are released.

        Args:
            asker: the turn that does not fit.
            must_free: True if the engine would otherwise stand still or preempt a running request.
        """
        allowed = "anyone" if must_free or asker.overdue else self._yielding
        if allowed == "never" or not self.pins:
            return
        own = asker.program.program_id
        ranked: list[tuple[Rank, str]] = [
            (self.policy.victim_rank(pin.program), program_id)
            for program_id, pin in self.pins.items()
            if program_id != own
        ]
        if allowed != "anyone":
            limit = self.policy.victim_rank(asker.program)
            ranked = [(rank, program_id) for rank, program_id in ranked if rank < limit]
        if allowed == "waiting":
            ranked = [(rank, name) for rank, name in ranked if self.pins[name].program.requests_in_engine > 0]
        for _, program_id in sorted(ranked):
            yield self.pins[program_id]
