"""``infercept``: keep, drop or swap a waiting program's KV, whichever wastes least memory over time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from continuum_server.policy.base import Options
from continuum_server.policy.facts import (
    NO_ORDERS,
    Hold,
    Machine,
    Orders,
    ProgramState,
    Step,
    Stored,
    TurnFinish,
    TurnState,
)
from continuum_server.policy.limits import Count, Range
from continuum_server.policy.order import ProgramFcfs


@dataclass(frozen=True, slots=True)
class InferCeptOptions(Options):
    """Options of ``infercept``."""

    chunk_tokens: Count | None = None
    """Tokens recomputed in one step; none: the engine's chunk; 0: all at once (the paper's plain discard)."""
    swap_stalls: Annotated[int, Range(0, 1)] = 0
    """1: the paper's swap, for which the batch stands still twice; 0: transfers run beside it."""


@dataclass(slots=True)
class _Interception:
    """A program whose tool runs, its KV preserved."""

    program: ProgramState
    since_s: float
    context_tokens: int
    stored: Stored | None = None


class InferCept(ProgramFcfs):
    """Preserve while the waste so far is below that of dropping; judged again at every step (estimator arm)."""

    name: ClassVar[str] = "infercept"
    options_type: ClassVar[type] = InferCeptOptions
    steps: ClassVar[bool] = True
    wants_batch: ClassVar[bool] = True
    options: InferCeptOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        given = self.options.chunk_tokens
        self._chunk_tokens = machine.chunk_tokens if given is None else given
        self._preserved: dict[str, _Interception] = {}
        self._others = 0
        """Context of the running requests at the last step: who would wait for a recomputation."""

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self._preserved.pop(turn.program.program_id, None)

    def program_finished(self, program: ProgramState) -> None:
        self._preserved.pop(program.program_id, None)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """At its beginning an interception's estimated length, the time since the call, is 0: preserve."""
        program = finish.turn.program
        self._preserved[program.program_id] = _Interception(program, finish.now_s, finish.context_tokens, finish.stored)
        return Hold(math.inf)

    # ------------------------------------------------------------------- wastes, in token seconds

    def discard_waste(self, context: int, others: int) -> float:
        """Memory filled again for nothing new, and everybody else's that stands by meanwhile."""
        whole_s = self.machine.prefill.seconds(context)
        if not 0 < self._chunk_tokens < context:
            return whole_s * (context + others)
        chunks = math.ceil(context / self._chunk_tokens)
        chunk_s = self.machine.prefill.seconds(math.ceil(context / chunks))
        return whole_s * context / 2.0 + chunks * chunk_s * others

    def swap_waste(self, context: int, batch: int, stored: Stored | None) -> float:
        """Its memory idle on its way back, what no tier holds computed again; infinite without a tier to swap to.

        Where swaps stall, the paper's: the batch standing still, out and in.
        """
        load_s = self.machine.reload_s(stored)
        if stored is None or math.isinf(load_s):
            return math.inf
        moved = 2.0 * load_s * batch if self.options.swap_stalls else load_s * context
        return moved + self.machine.rest_s(context, stored) * (context + batch)

    def _worth_s(self, context: int, stored: Stored | None) -> float:
        """Seconds for which preserving wastes no more than the best alternative."""
        if context <= 0:
            return 0.0
        swap = self.swap_waste(context, self._others, stored)
        return min(self.discard_waste(context, self._others), swap) / context

    # -------------------------------------------------------------------------------- each step

    def step(self, step: Step) -> Orders:
        self._others = step.batch_tokens
        if not self._preserved:
            return NO_ORDERS
        over = [
            kept
            for kept in self._preserved.values()
            if step.now_s - kept.since_s > self._worth_s(kept.context_tokens, kept.stored)
        ]
        for kept in over:
            del self._preserved[kept.program.program_id]
        return Orders(release=[kept.program for kept in over])

    def next_event_s(self) -> float | None:
        """The first end of a preservation, if the batch stays as it is; while it only decodes, ends move later."""
        ends = [kept.since_s + self._worth_s(kept.context_tokens, kept.stored) for kept in self._preserved.values()]
        return min(ends) - 1e-6 if ends else None


class InferCeptOracle(InferCept):
    """The oracle arm: the interception's length is known, so one judgement at its beginning suffices."""

    name: ClassVar[str] = "infercept-oracle"
    label: ClassVar[str] = "bound"

    def turn_finished(self, finish: TurnFinish) -> Hold:
        tool_s = self.future.tool_s(finish.turn.request_id)
        return Hold(tool_s if tool_s <= self._worth_s(finish.context_tokens, finish.stored) else 0.0)
