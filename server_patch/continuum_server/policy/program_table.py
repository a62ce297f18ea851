"""The table of programs, their turns and their pins, and all decisions about them.

The scheduler owns the real KV blocks. It calls the table when a turn arrives, starts, finishes or is aborted, and
carries out the decisions that the table returns. The table has no clock, file or log: the caller passes the time.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Annotated, Literal

from continuum_server.policy.base import Policy, Yielding
from continuum_server.policy.blocks import DistinctBlocks
from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import (
    NO_HOLD,
    Hold,
    Orders,
    ProgramState,
    Step,
    Stored,
    TurnFinish,
    TurnStart,
    TurnState,
)
from continuum_server.policy.limits import Count, Range, check_fields
from continuum_server.policy.one_offs import OneOffs
from continuum_server.policy.programs import Programs, kept_of, marks_of
from continuum_server.policy.recognise import Prompt
from continuum_server.policy.returns import Returns
from continuum_server.policy.tool_statistics import hinted

RECENT = 16
"""Number of first turns over which their waits are averaged."""
ENDED = 32
"""Number of ended programs that ``ProgramTable.programs`` remembers."""
PinsYieldTo = Literal["policy", Yielding]
"""``policy``: the policy's own ``pins_yield_to``."""
OneOffsOrder = Literal["first", "fcfs"]


@dataclass(frozen=True, slots=True)
class Guards:
    """Limits that no policy can exceed.

    Raises:
        LimitError: a value of the wrong type or out of range.
    """

    max_ttl_s: float = 600.0
    """Longest hold of any turn."""
    max_pinned_share: Annotated[float, Range(0.0, 1.0)] = 0.95
    """Share of the KV pool that pins may hold. A block that several pins share counts once."""
    max_pins_per_client: Count | None = None
    """Number of pins that requests with one API key may hold at once; None: no such limit."""
    max_programs: Annotated[int, Range(1, 1_000_000_000)] = 100_000
    """Number of idle programs that are remembered. The programs that were idle for longest are forgotten first."""
    max_overtake_s: float = 1800.0
    """A request that has waited this long runs before all later requests, and pins are released for it."""
    first_token_s: Annotated[float, Range(0.0, 1e9, above=True)] | None = None
    """Target for the first token of a program. A first turn that would miss it, as expected from its prefill and from
    the recent waits of such turns, runs before all later requests; None: no target."""
    one_offs: OneOffsOrder = "first"
    """Requests that continue no conversation run before programs, within their share (first), or in the policy's order
    (fcfs, as in the papers)."""
    pins_yield_to: PinsYieldTo = "policy"
    """Which pins a waiting request may release while other requests run (``Yielding``).

    Every pin may be released if no request runs, or if a running request would otherwise be preempted.
    """

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(slots=True)
class Pin:
    """A finished turn's KV that is held for its program's next turn."""

    program: ProgramState
    turn_index: int
    since_s: float
    deadline_s: float
    tokens: int
    """Tokens in its blocks, shared or not."""
    blocks: Sequence[Hashable] = ()
    client: str = ""
    soft_until_s: float = -math.inf
    """Until when the KV is kept as a soft hold after the deadline."""


class ProgramTable:
    """One engine's programs, turns and pins under one policy.

    Args:
        kv_tokens: number of tokens that the KV pool holds.
        block_size: number of tokens per block of the KV pool.
    """

    def __init__(self, policy: Policy, guards: Guards, kv_tokens: int, block_size: int = 16) -> None:
        self.policy = policy
        self.guards = guards
        self.pins: dict[str, Pin] = {}
        """Each program's pin, by ``ProgramState.program_id``."""
        self.soft: dict[str, Pin] = {}
        """Each program's soft hold: KV that its client asked to keep as long as nobody else wants the memory. The
        oldest comes first, and is released first."""
        self.soft_tokens = 0
        """Tokens in the blocks of all soft holds. A block that several share counts several times."""
        self.block_size = block_size
        self._max_pinned_tokens = guards.max_pinned_share * kv_tokens
        self._pinned = DistinctBlocks()
        self.known = Programs(guards.max_programs, policy.machine.block_size)
        """All programs that the engine remembers."""
        self._returns = Returns(guards.max_ttl_s)
        self._turns: dict[str, TurnState] = {}
        self._waiting: OrderedDict[str, TurnState] = OrderedDict()
        """Waiting turns by request id, in the order in which they began to wait."""
        self._deadlines: list[tuple[float, int, Pin]] = []
        self._sequence = 0
        self._ties = count()
        self._acts_soon = False
        self._targets: list[tuple[float, int, TurnState]] = []
        """A heap of the waiting first turns, by the latest instants at which they can start and meet the target."""
        self._urgent_wait_s = RecentMean(RECENT)
        """Mean seconds until such a turn started, once it came before all later requests."""
        self.one_offs = OneOffs(policy.machine, guards.one_offs == "first")
        self._pins_of_client: Counter[str] = Counter()
        self._ended: deque[ProgramState] = deque(maxlen=ENDED)

    # ------------------------------------------------------------------------------------ turns

    def program_for(
        self,
        program_id: str,
        now_s: float,
        parent_id: str | None = None,
        prompt: Prompt = Prompt(),  # noqa: B008 - frozen
        namespace: str | None = None,
    ) -> ProgramState:
        """Return the program that a request with this id continues, or a new program."""
        program = self.known.find(program_id, prompt, namespace)
        if program is None:
            parents = self.known.of(parent_id, namespace) if parent_id is not None else []
            program = self._new_program(program_id, now_s, parents[-1] if parents else None, namespace)
        return program

    def recognise(
        self,
        name: str,
        now_s: float,
        prompt: Prompt,
        namespace: str | None = None,
        session_id: str | None = None,
        is_family: bool = False,
    ) -> ProgramState:
        """Return the program that a request with this prompt continues, or a new program.

        Args:
            name: id of a new program.
            session_id: an id that several programs have. A prompt is compared with theirs only.
            is_family: the first program with the ``session_id`` is named by it, and is the parent of the others.
        """
        scope, prompts = (namespace, session_id), self.known.prompts
        found = prompts.find(scope, prompt)
        if found is not None and found.continues:
            program = found.program
        else:
            first_id = session_id if is_family and session_id is not None else name
            others = self.known.of(first_id, namespace) if is_family else []
            parent = found.program if found is not None else others[0] if others else None
            program = self._new_program(name if others else first_id, now_s, parent, namespace)
        prompts.arrived(scope, program, prompt, found)
        return program

    def _new_program(
        self, program_id: str, now_s: float, parent: ProgramState | None, namespace: str | None
    ) -> ProgramState:
        program = self.known.add(program_id, now_s, self._sequence + 1, parent, namespace)
        for idle in self.known.superfluous(program):
            if idle.turn is None and idle.program_id not in self.pins and idle is not program:
                self.known.forget(idle)
        return program

    def programs(self) -> Iterator[ProgramState]:
        """Yield the programs that run, those that wait, those whose KV is held, all others with the latest first, and
        some that have ended. Lazily, because there may be many."""
        turns = self._turns.values()
        yield from (turn.program for turn in turns if turn.running)
        yield from (turn.program for turn in turns if not turn.running)
        held = (pin.program for pin in chain(self.pins.values(), self.soft.values()))
        yield from (program for program in held if program.turn is None)
        yield from (each for each in self.known.latest() if each.turn is None and not self.holds(each))
        yield from reversed(self._ended)

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def arrive(self, turn: TurnState, now_s: float) -> None:
        program = turn.program
        turn.index, again = self.known.note_busy(program, turn.turn_id, turn.prompt)
        if again:  # no tool ran since its last finish
            program.last_finish_s = None
        turn.one_off = self.one_offs.includes(turn)
        if program.turns_arrived:
            self._compare(turn, now_s)
        if program.turns_arrived == 1:
            self.one_offs.returned(turn)
        self._returns.returned(program, now_s)
        program.turns_arrived += 1
        program.turn = turn
        program.root.family_requests += 1
        program.last_prompt_tokens = turn.prompt_tokens
        program.marks = marks_of(turn.blocks, program.shared_blocks or 0)
        program.head = turn.blocks[0] if turn.blocks else None
        self._turns[turn.request_id] = self._waiting[turn.request_id] = turn
        turn.since_s, turn.chain_s = now_s, program.root.served_s
        if program.turns_arrived == 1 and self.guards.first_token_s is not None:
            lead_s = self.policy.machine.prefill.seconds(turn.prompt_tokens) + self._urgent_wait_s.value
            heapq.heappush(self._targets, (now_s + self.guards.first_token_s - lead_s, next(self._ties), turn))
        self.policy.turn_arrived(turn, now_s)
        program.last_finish_s = None  # the tool time has ended
        self.act_soon()

    def _compare(self, turn: TurnState, now_s: float) -> None:
        """Note how much of the last prompt the turn repeats. The program keeps this share of its seniority."""
        program = turn.program
        kept = kept_of(program, Prompt(turn.prompt_tokens, turn.blocks))
        known = turn.prompt_tokens if kept.blocks < 0 else kept.blocks * self.policy.machine.block_size
        turn.repeated_tokens = min(known, program.prompt_tokens)
        turn.kept_share, turn.compacted = kept.share, kept.compacted
        program.arrival_s += (1.0 - kept.share) * (now_s - program.arrival_s)
        program.sequence += (1.0 - kept.share) * (turn.sequence - program.sequence)

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
        """Note that the turn was scheduled. Return whether this is the first time, and not after a preemption.

        Args:
            hit_tokens: number of prompt tokens whose KV was in GPU memory or was reloaded.
            reloaded_tokens: number of these that were reloaded from a tier, which took ``reload_s``.
        """
        program = turn.program
        self._waiting.pop(turn.request_id, None)
        turn.waited_s = turn.waited(now_s)
        if turn.urgent_s is not None and turn.start_s is None:
            self._urgent_wait_s.add(now_s - turn.urgent_s)
        turn.running, turn.since_s = True, now_s
        if program.shared_blocks is None:
            program.shared_blocks = hit_tokens // self.policy.machine.block_size
            program.marks = marks_of(turn.blocks, program.shared_blocks)
        if turn.start_s is not None:
            return False
        turn.start_s = now_s
        program.hit_share = hit_tokens / max(1, turn.prompt_tokens)
        enough = (turn.repeated_tokens // block_size - 1) * block_size
        evicted, lost = hit_tokens - reloaded_tokens < enough, hit_tokens < enough
        start = TurnStart(turn, now_s, hit_tokens, evicted, lost, reload_s)
        self.one_offs.started(start)
        self.policy.turn_started(start)
        return True

    def preempt(self, turn: TurnState, now_s: float) -> None:
        """Note that the running turn was preempted."""
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
        answer: Sequence[int] = (),
    ) -> Hold | None:
        """Note that the turn finished. Return how to hold its KV; None: not at all.

        Args:
            blocks: returns identities of the blocks that a hold would keep. A block that two programs share has the
                same identity. Called only if the policy wants a hold.
            answer: tokens of the output.
        """
        program, root = self._leave(turn), turn.program.root
        self.known.prompts.finished(program, answer, turn.blocks or (), tool is not None)
        self.one_offs.finished(turn, context_tokens, output_tokens)
        program.turns_finished += 1
        program.last_finish_s, program.last_tool = now_s, tool
        program.context_tokens, program.prompt_tokens = context_tokens, turn.prompt_tokens
        root.served_s = max(root.served_s, turn.chain_s + turn.served(now_s))
        root.waited_s += turn.waited(now_s)
        if turn.one_off and (turn.is_last or not turn.tagged):
            self.known.forget(program)
            return None
        if turn.is_last:
            self._end_program(program)
            return None
        if tool is None and turn.tool_hint is not None:  # for this decision only: it names no sample
            tool = hinted(turn.tool_hint)
        large = program.recognised_by == "prompt" and not self.one_offs.is_small(turn.prompt_tokens)
        hold = NO_HOLD
        if turn.one_off and not large:
            program.policy_state = None  # the policy sees the program's next turn as its first
        elif self._is_side_request(turn, tool, now_s):
            self.policy.turn_lost(turn)
        else:
            share = self._returns.share(program, tool, now_s)
            self._returns.finished(program, tool, now_s)
            finish = TurnFinish(turn, now_s, context_tokens, output_tokens, tool, stored, share)
            hold = self.policy.turn_finished(finish)
        turn.blocks = None  # a policy may remember the turn, but not the memory of its request
        allowed = self._allow(hold, blocks, turn.client)
        soft_s = min(turn.soft_hold_s, self.guards.max_ttl_s)
        if soft_s <= (allowed or NO_HOLD).ttl_s or not self.policy.soft_holds:
            return allowed
        return replace(allowed or NO_HOLD, soft_s=soft_s)

    def _is_side_request(self, turn: TurnState, tool: str | None, now_s: float) -> bool:
        """Whether a request without tags is probably all that its program sends, such as for a title: it continues
        nothing, its answer calls no tool, and few go on after that. Nothing is held then, and nothing learned."""
        tags = turn.program.recognised_by == "tag" or turn.turn_id is not None
        if tags or turn.program.turns_arrived > 1 or tool is not None:
            return False
        return not self._returns.goes_on(turn.program, self.one_offs.is_small(turn.prompt_tokens), now_s)

    def abort(self, turn: TurnState) -> None:
        """Note that the turn was aborted or failed. It gives no sample, and its KV is not held."""
        program = self._leave(turn)
        self.known.prompts.failed(program)
        program.last_finish_s = None
        self.known.note_failed(program, turn.index, turn.prompt)
        self.policy.turn_lost(turn)
        turn.blocks = None  # as in ``finish``

    def drop(self, turn: TurnState) -> None:
        """Forget the turn after an error in the plugin, and release its program's pin."""
        if turn.request_id in self._turns:
            self._leave(turn)
        turn.program.last_finish_s = None
        self.unpin(turn.program.program_id)
        self.policy.turn_lost(turn)

    def end_program(self, program: ProgramState) -> None:
        """Note that the program has ended, because its client said that no turn follows."""
        if program.turn is None and not program.ended:
            self._end_program(program)

    def _leave(self, turn: TurnState) -> ProgramState:
        program = turn.program
        del self._turns[turn.request_id]
        self._waiting.pop(turn.request_id, None)
        turn.gone = True
        program.turn = None
        program.root.family_requests -= 1
        self.known.note_idle(program)
        self.act_soon()
        return program

    def _end_program(self, program: ProgramState) -> None:
        self._returns.ended(program)
        self.known.forget(program)
        self._ended.append(program)
        self.policy.program_finished(program)

    # ------------------------------------------------------------------------------------- time

    def act_soon(self, always: bool = False) -> None:
        """Do not skip the next call of ``step``, because something changed."""
        self._acts_soon = self.policy.steps or always

    def step(self, step: Step) -> Orders:
        """Return the policy's orders for the next scheduling step."""
        self._acts_soon = False
        return self.policy.step(step)

    def overdue(self, now_s: float, idle: bool = False) -> list[TurnState]:
        """Return the turns that no policy may hold back any longer, the longest waiting first.

        Args:
            idle: no request runs or can run. The longest waiting turn is then overdue at once.
        """
        out: list[TurnState] = []
        while self._waiting:
            turn = next(iter(self._waiting.values()))
            if turn.since_s + self.guards.max_overtake_s >= now_s and (out or not idle):
                break
            out.append(self._waiting.pop(turn.request_id))
        while self._next_target_s() < now_s:
            turn = heapq.heappop(self._targets)[2]
            turn.urgent_s = now_s
            out.append(self._waiting.pop(turn.request_id))
        for turn in out:
            turn.overdue = True
        return out

    def _next_target_s(self) -> float:
        """Return when the next first turn will be overdue by the target; infinite: none waits."""
        while self._targets and self._targets[0][2].request_id not in self._waiting:
            heapq.heappop(self._targets)
        return self._targets[0][0] if self._targets else math.inf

    def next_deadline_s(self) -> float | None:
        """Return the earliest time after which a pin expires or the policy may act; None: there is none."""
        if self._acts_soon:
            return -math.inf
        instants = [instant for instant in (self._next_expiry_s(), self.policy.next_event_s()) if instant is not None]
        if self._waiting:
            instants.append(next(iter(self._waiting.values())).since_s + self.guards.max_overtake_s)
            instants.append(self._next_target_s())
        return min(instants) if instants else None

    # ------------------------------------------------------------------------------------- pins

    def _allow(self, hold: Hold, blocks: Callable[[], Sequence[Hashable]], client: str | None) -> Hold | None:
        """Return the hold, limited by the guards; None: no hold."""
        ttl_s = min(hold.ttl_s, self.guards.max_ttl_s)
        if ttl_s <= 0.0:
            return None
        room, wanted = self._max_pinned_tokens - self.pinned_tokens, blocks()
        if len(wanted) * self.block_size > room and self._pinned.new(wanted) * self.block_size > room:
            return None
        limit = self.guards.max_pins_per_client
        if limit is not None and self._pins_of_client[client or ""] >= limit:
            return None
        return hold if ttl_s == hold.ttl_s else replace(hold, ttl_s=ttl_s)

    def pin(self, turn: TurnState, now_s: float, hold: Hold, blocks: Sequence[Hashable]) -> Pin:
        """Add a pin or a soft hold for these blocks, which the scheduler holds. The program must have neither."""
        tokens = len(blocks) * self.block_size
        soft_until_s = now_s + hold.soft_s
        pin = Pin(turn.program, turn.index, now_s, now_s + hold.ttl_s, tokens, blocks, turn.client or "", soft_until_s)
        if hold.ttl_s <= 0.0:
            self.soften(pin)
            return pin
        self._pins_of_client[pin.client] += 1
        self.pins[turn.program.program_id] = pin
        self._pinned.add(blocks)
        heapq.heappush(self._deadlines, (pin.deadline_s, next(self._ties), pin))
        return pin

    def soften(self, pin: Pin) -> None:
        """Continue a hold whose pin has ended as a soft hold."""
        self.soft[pin.program.program_id] = pin
        self.soft_tokens += pin.tokens
        pin.deadline_s, pin.blocks = pin.soft_until_s, ()
        heapq.heappush(self._deadlines, (pin.deadline_s, next(self._ties), pin))

    def holds(self, program: ProgramState) -> bool:
        """Whether the program's KV is held, by a pin or softly."""
        return program.program_id in self.pins or program.program_id in self.soft

    def unpin(self, program_id: str) -> Pin | None:
        """End the program's pin or its soft hold. Return its pin."""
        soft, pin = self.soft.pop(program_id, None), self.pins.pop(program_id, None)
        if soft is not None:
            self.soft_tokens -= soft.tokens
        if pin is not None:
            self._pinned.remove(pin.blocks)
            self._pins_of_client[pin.client] -= 1
            if not self._pins_of_client[pin.client]:
                del self._pins_of_client[pin.client]
            pin.blocks = ()  # the pin stays in ``_deadlines`` for a while
        return pin

    def goes_first(self, turn: TurnState) -> bool:
        """Whether the turn now runs before those of programs."""
        return turn.one_off and self.one_offs.first

    def pinned(self, turn: TurnState) -> bool:
        """Whether the turn comes before turns without a pin: its program's pin has what its prompt repeats."""
        return turn.program.program_id in self.pins and turn.kept_share >= 1.0

    @property
    def pinned_tokens(self) -> int:
        """Number of tokens in all pinned blocks. A block that several pins share counts once."""
        return len(self._pinned) * self.block_size

    def expired(self, now_s: float) -> list[Pin]:
        """Return the pins and soft holds past their deadline. None expires while a request waits for its KV."""
        out: list[Pin] = []
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] < now_s:
            pin = heapq.heappop(deadlines)[2]
            waits = pin.program.turn is not None and pin.program.turn.kept_share >= 1.0
            if self._is_current(pin) and not waits:
                out.append(pin)
        return out

    def _is_current(self, pin: Pin) -> bool:
        program_id = pin.program.program_id
        return self.pins.get(program_id) is pin or self.soft.get(program_id) is pin

    def _next_expiry_s(self) -> float | None:
        """Return the earliest time after which ``expired`` may return another pin."""
        deadlines = self._deadlines
        while deadlines and not self._is_current(deadlines[0][2]):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def victims(self, asker: TurnState, must_free: bool) -> list[Pin]:
        """Return the pins that may be released so that ``asker`` fits, in the order in which they are released.

        Args:
            asker: the turn that does not fit.
            must_free: without a release no request could run, or a running request would be preempted.
        """
        allowed = self.policy.pins_yield_to if self.guards.pins_yield_to == "policy" else self.guards.pins_yield_to
        if must_free or asker.overdue or self.goes_first(asker):
            allowed = "anyone"
        if allowed == "never" or not self.pins:
            return []
        pins = [pin for pin in self.pins.values() if pin.program is not asker.program]
        if allowed == "waiting":
            pins = [pin for pin in pins if pin.program.turn is not None]
        ranked = [(self.policy.victim_rank(pin.program), pin.program.program_id) for pin in pins]
        if allowed != "anyone":
            limit = self.policy.victim_rank(asker.program)
            ranked = [(rank, program_id) for rank, program_id in ranked if rank < limit]
        return [self.pins[program_id] for _, program_id in sorted(ranked)]
