"""The table of programs, their turns and their pins, and all decisions about them.

The scheduler owns the real KV blocks. It calls the table when a turn arrives, starts, finishes or is aborted, and
carries out the decisions that the table returns. The table has no clock, file or log: the caller passes the time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from continuum_server.policy.base import Policy
from continuum_server.policy.facts import (
    NO_HOLD,
    Hold,
    Orders,
    ProgramState,
    Step,
    ToolEvent,
    TurnFinish,
    TurnStart,
    TurnState,
)
from continuum_server.policy.fitting import Fitting
from continuum_server.policy.identity import Identity
from continuum_server.policy.limits import Count, Range, check_fields
from continuum_server.policy.mechanism import Mechanism
from continuum_server.policy.one_offs import OneOffs
from continuum_server.policy.order import Order, PinsYieldTo
from continuum_server.policy.overdue import WaitingTurns
from continuum_server.policy.pins import Pins
from continuum_server.policy.returns import Returns
from continuum_server.policy.tenants import Tenants
from continuum_server.policy.tool_statistics import hinted

ENDED = 32
"""Number of ended programs that ``ProgramTable.programs`` remembers."""
OneOffsOrder = Literal["first", "fcfs"]
FairBetween = Literal["keys", "none"]


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
    """Which pins yield to waiting requests that are placed before their programs' next ones (``Yielding``).

    Every pin may be released if no request runs, or if a running request would otherwise be preempted.
    """
    fair: FairBetween = "keys"
    """With two or more API keys: whether each of them has a fair share of the engine and of the KV pool (keys), or the
    order of requests does not depend on keys (none)."""
    key_lag: Annotated[float, Range(0.0, 1e9)] = 1.0
    """By how much requests of one API key may be ahead of those of another that wait, in times to fill the KV pool with
    prompts of 8,192 tokens."""

    def __post_init__(self) -> None:
        check_fields(self)


class ProgramTable:
    """One engine's programs, turns and pins under one policy.

    Args:
        kv_tokens: number of tokens that the KV pool holds.
        block_tokens: number of tokens of ``kv_tokens`` per block of the KV pool.
        context_tokens, seats: see ``Tenants``.
    """

    def __init__(
        self,
        policy: Policy,
        guards: Guards,
        kv_tokens: int,
        block_tokens: float = 16,
        context_tokens: Callable[[TurnState], int] = lambda turn: turn.prompt_tokens,
        seats: int = 1024,
    ) -> None:
        self.policy = policy
        self.guards = guards
        self.block_tokens = block_tokens
        limits = guards.max_pinned_share * kv_tokens, guards.max_ttl_s, guards.max_pins_per_client
        self.pins = Pins(block_tokens, *limits)
        """Each program's pin."""
        self.identity = Identity(guards.max_programs, policy.machine.block_size, self.pins)
        lag = guards.key_lag if guards.fair == "keys" else math.inf
        self.tenants = Tenants(policy.machine, self.pins, lag, context_tokens, seats)
        self.one_offs = OneOffs(policy.machine, guards.one_offs == "first" and policy.one_offs_first)
        self.order = Order(policy, self.pins, self.one_offs, self.tenants, guards.pins_yield_to)
        self._returns = Returns(guards.max_ttl_s)
        self.fitting = Fitting(policy.machine)
        self._turns: dict[str, TurnState] = {}
        self._waiting = WaitingTurns(policy.machine.prefill, guards.max_overtake_s, guards.first_token_s)
        in_order = self.tenants, self._waiting, self.one_offs, self.identity, self._returns, self.fitting
        self._mechanisms: tuple[Mechanism, ...] = in_order
        """The order counts: one-offs read the program's last prompt before ``identity`` replaces it, and ``identity``
        takes the tool time from a retry before others read it."""
        self._acts_soon = False
        self._ended: deque[ProgramState] = deque(maxlen=ENDED)

    # ------------------------------------------------------------------------------------ turns

    def programs(self) -> Iterator[ProgramState]:
        """Yield the programs that run, those that wait, those whose KV is held, all others with the latest first, and
        some that have ended. Lazily, because there may be many."""
        turns = self._turns.values()
        yield from (turn.program for turn in turns if turn.running)
        yield from (turn.program for turn in turns if not turn.running)
        yield from (pin.program for pin in self.pins.values() if pin.program.turn is None)
        others = (program for program in self.identity.programs.latest() if program.program_id not in self.pins)
        yield from (program for program in others if program.turn is None)
        yield from reversed(self._ended)

    def arrive(self, turn: TurnState, now_s: float) -> None:
        program = turn.program
        self._turns[turn.request_id] = turn
        for mechanism in self._mechanisms:
            mechanism.arrived(turn, now_s)
        program.turns_arrived += 1
        program.turn = turn
        turn.since_s, turn.chain_s = now_s, program.root.served_s
        self.policy.turn_arrived(turn, now_s)
        program.last_finish_s = None  # the tool time has ended
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
        """Note that the turn was scheduled. Return whether this is the first time, and not after a preemption.

        Args:
            hit_tokens: number of prompt tokens whose KV was in GPU memory or was reloaded.
            reloaded_tokens: number of these that were reloaded from a tier, which took ``reload_s``.
        """
        self.order.keep_place(turn)
        for mechanism in self._mechanisms:
            mechanism.started(turn, now_s, hit_tokens)
        turn.waited_s = turn.waited(now_s)
        turn.running, turn.since_s = True, now_s
        if turn.start_s is not None:
            return False
        turn.start_s = now_s
        turn.program.hit_share = hit_tokens / max(1, turn.prompt_tokens)
        enough = (turn.repeated_tokens // block_size - 1) * block_size
        evicted = hit_tokens - reloaded_tokens < enough
        self.policy.turn_started(TurnStart(turn, now_s, hit_tokens, evicted, reload_s))
        return True

    def preempt(self, turn: TurnState, now_s: float) -> None:
        """Note that the running turn was preempted."""
        for mechanism in self._mechanisms:
            mechanism.preempted(turn, now_s)
        turn.preemptions += 1
        turn.served_s = turn.served(now_s)
        turn.running, turn.since_s = False, now_s
        self.policy.turn_preempted(turn, now_s)

    def finish(
        self,
        finish: TurnFinish,
        blocks: Callable[[], Sequence[Hashable]] = tuple,
        answer: Sequence[int] = (),
    ) -> Hold | None:
        """Note that a turn finished. Return how to hold its KV; None: not at all.

        Args:
            finish: its ``tool`` is the one that the output calls.
            blocks: returns identities of the blocks that a hold would keep. A block that two programs share has the
                same identity. Called only if the policy wants a hold.
            answer: tokens of the output.
        """
        turn = finish.turn
        self._leave(turn, finish.now_s)
        for mechanism in self._mechanisms:
            mechanism.finished(finish, answer)
        self._note_finish(finish)
        if turn.tags.is_last_step or (turn.one_off and not turn.tagged):
            self._end_of_last(turn)
            return None
        hold = self._decide(finish)
        turn.blocks = None  # a policy may remember the turn, but not the memory of its request
        soft_s = turn.tags.kv_ttl_s if self.policy.soft_holds else None
        return self.pins.allowed(hold, soft_s or 0.0, blocks, turn.client)

    def _note_finish(self, finish: TurnFinish) -> None:
        """Note in the program that its turn finished."""
        turn, program, now_s = finish.turn, finish.turn.program, finish.now_s
        program.turns_finished += 1
        program.last_finish_s, program.last_tool = now_s, finish.tool
        program.context_tokens, program.prompt_tokens = finish.context_tokens, turn.prompt_tokens
        program.root.served_s = max(program.root.served_s, turn.chain_s + turn.served(now_s))
        program.root.waited_s += turn.waited(now_s)

    def _end_of_last(self, turn: TurnState) -> None:
        """End the program of a turn after which none follows. A policy never knew that of a one-off."""
        if turn.one_off:
            self.identity.programs.forget(turn.program)
        else:
            self._end_program(turn.program)

    def _decide(self, finish: TurnFinish) -> Hold:
        """Return the policy's hold."""
        turn, program, tool = finish.turn, finish.turn.program, finish.tool
        if tool is None and turn.tags.pred_tool is not None:  # for this decision only: it names no sample
            tool = hinted(turn.tags.pred_tool)
        large = program.recognised_by == "prompt" and not self.one_offs.is_small(turn.prompt_tokens)
        if turn.one_off and not large:
            program.policy_state = None  # the policy sees the program's next turn as its first
            return NO_HOLD
        share = self._returns.share(program, tool, finish.now_s)
        self._returns.answered(program, tool, finish.now_s)
        return self.policy.turn_finished(replace(finish, tool=tool, return_share=share))

    def tool_event(self, program: ProgramState, event: ToolEvent, now_s: float) -> None:
        """Note what a client says of the program's tool, and move the deadline of the program's pin.

        While the program's turn runs, its answer may already have called the tool. The event is then its prediction.
        """
        if program.turn is not None:
            if program.turn.running and event.predicted_s is not None:
                tags = program.turn.tags
                tags.pred_tool_s, tags.pred_tool_p90_s = event.predicted_s, event.p90_s
            return
        pin = self.pins.firm(program)
        ttl_s = None if pin is None else self.policy.predictions.told(program, event, now_s)
        if pin is not None and ttl_s is not None:
            self.pins.move(pin, ttl_s)

    def abort(self, turn: TurnState, context_tokens: int = 0, output_tokens: int = 0, now_s: float = -math.inf) -> None:
        """Note that the turn was aborted or failed. It gives no sample, and its KV is not held.

        A program of which no turn finished is forgotten if it got a part of an answer: otherwise a client that aborts
        and asks again would keep its place in the queue, and be served for ever without ending a turn.
        """
        program = self._leave(turn, now_s)
        for mechanism in self._mechanisms:
            mechanism.lost(turn, context_tokens, output_tokens)
        program.last_finish_s = None
        self.policy.turn_lost(turn)
        turn.blocks = None  # as in ``finish``
        if output_tokens and not program.turns_finished:
            self.identity.programs.forget(program)

    def drop(self, turn: TurnState) -> None:
        """Forget the turn after an error in the plugin, and release its program's pin."""
        if turn.request_id in self._turns:
            self._leave(turn)
        turn.program.last_finish_s = None
        self.pins.end(turn.program.program_id)
        self.policy.turn_lost(turn)

    def end_program(self, program: ProgramState) -> None:
        """Note that the program has ended, because its client said that no turn follows."""
        if program.turn is None and not program.ended:
            self._end_program(program)

    def _leave(self, turn: TurnState, now_s: float = -math.inf) -> ProgramState:
        program = turn.program
        for mechanism in self._mechanisms:
            mechanism.left(turn, now_s)
        del self._turns[turn.request_id]
        turn.gone = True
        program.turn = None
        self.act_soon()
        return program

    def _end_program(self, program: ProgramState) -> None:
        self._returns.ended(program)
        self.identity.programs.forget(program)
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
        self._acts_soon = False
        self.tenants.tick(now_s)
        return self._waiting.overdue(now_s, idle)

    def next_deadline_s(self) -> float | None:
        """Return the earliest time after which a pin expires or the policy may act; None: there is none."""
        if self._acts_soon:
            return -math.inf
        instants = (self.pins.next_expiry_s(), self.policy.next_event_s(), self._waiting.next_s(), self.tenants.next_s)
        first_s = min((instant for instant in instants if instant is not None), default=math.inf)
        return first_s if first_s < math.inf else None
