"""``infercept-v4``: InferCept as arXiv 2511.02230 v4 describes the baseline that it measured."""

from __future__ import annotations

import math
from typing import ClassVar

from continuum_server.policy.base import Options, Policy
from continuum_server.policy.estimate import Moments
from continuum_server.policy.facts import NO_HOLD, Hold, Machine, TurnFinish, TurnState
from continuum_server.policy.tool_statistics import UNKNOWN_TOOL, ToolSamples


class InferCeptV4(Policy):
    """Requests run in order of arrival. KV is held until the program returns if its tool is expected to take less time
    than reloading the KV at the tier's bandwidth (without a tier, than computing it again). This is decided once, when
    the turn ends."""

    name: ClassVar[str] = "infercept-v4"

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self._tools = ToolSamples(Moments)

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self._tools.note_return(turn, now_s)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        times = self._tools.get(finish.tool or UNKNOWN_TOOL, finish.turn.program.namespace) or self._tools.all
        token_s = self.machine.swap_token_s
        tokens = finish.context_tokens
        lost_s = self.machine.prefill.seconds(tokens) if token_s is None else tokens * token_s
        return Hold(math.inf) if times.count and times.mean < lost_s else NO_HOLD
