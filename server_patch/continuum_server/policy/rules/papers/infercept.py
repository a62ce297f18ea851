"""``infercept``: KV of a program whose tool runs is preserved, discarded or swapped, whichever wastes least memory."""

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
from continuum_server.policy.rules.program_fcfs import ProgramFcfs


@dataclass(frozen=True, slots=True)
class InferCeptOptions(Options):
    """Options of ``infercept``."""

    chunk_tokens: Count | None = None
    """Tokens recomputed in one step; none: the engine's chunk; 0: all at once (the paper's plain discard)."""
    swap_stalls: Annotated[int, Range(0, 1)] = 0
    """1: the paper's swap, for which the batch stands still twice; 0: transfers run beside the batch."""


class InferCept(ProgramFcfs):
    """KV is held while that has wasted less memory than recomputing or swapping it would."""

    name: ClassVar[str] = "infercept"
    options_type: ClassVar[type] = InferCeptOptions
    steps: ClassVar[bool] = True
    options: InferCeptOptions

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        chunk_tokens = self.options.chunk_tokens
        self._chunk_tokens = machine.max_num_batched_tokens if chunk_tokens is None else chunk_tokens
        self._preserved: dict[str, TurnFinish] = {}
        """The last turns of the programs whose tools run and whose KV is preserved."""
        self._others = 0
        """Context tokens of the requests that ran at the last step, which would wait for a recomputation."""

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self._preserved.pop(turn.program.program_id, None)

    def program_finished(self, program: ProgramState) -> None:
        self._preserved.pop(program.program_id, None)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """Preserve the KV at first: an interception is assumed to last as long as it has lasted so far, which is 0."""
        self._preserved[finish.turn.program.program_id] = finish
        return Hold(math.inf)

    # ------------------------------------------------------------------- wastes, in token seconds

    def discard_waste(self, context: int, others: int) -> float:
        """Return the waste of a recomputation: the memory that it fills, and the memory of others that idles."""
        whole_s = self.machine.prefill.seconds(context)
        if not 0 < self._chunk_tokens < context:
            return whole_s * (context + others)
        chunks = math.ceil(context / self._chunk_tokens)
        chunk_s = self.machine.prefill.seconds(math.ceil(context / chunks))
        return whole_s * context / 2.0 + chunks * chunk_s * others

    def swap_waste(self, context: int, batch: int, stored: Stored | None) -> float:
        """Return the memory that idles during the reload, plus the recomputation of tokens that no tier has.

        Infinite if no tier has any token. With ``swap_stalls``, the batch idles while KV is moved out and in.
        """
        load_s = self.machine.reload_s(stored)
        if stored is None or math.isinf(load_s):
            return math.inf
        moved = 2.0 * load_s * batch if self.options.swap_stalls else load_s * context
        return moved + self.machine.rest_s(context, stored) * (context + batch)

    def _worth_s(self, context: int, stored: Stored | None) -> float:
        """Return the seconds for which preserving wastes no more than the better of discarding and swapping."""
        if context <= 0:
            return 0.0
        swap = self.swap_waste(context, self._others, stored)
        return min(self.discard_waste(context, self._others), swap) / context

    # -------------------------------------------------------------------------------- each step

    def step(self, step: Step) -> Orders:
        self._others = step.batch_tokens()
        if not self._preserved:
            return NO_ORDERS
        over = [
            kept.turn.program
            for kept in self._preserved.values()
            if step.now_s - kept.now_s > self._worth_s(kept.context_tokens, kept.stored)
        ]
        for program in over:
            del self._preserved[program.program_id]
        return Orders(release=over)

    def next_event_s(self) -> float | None:
        """Return the first end of a preservation with this batch. Ends move later while the batch only decodes."""
        ends = [kept.now_s + self._worth_s(kept.context_tokens, kept.stored) for kept in self._preserved.values()]
        return min(ends) - 1e-6 if ends else None
