"""``infercept-oracle``: the paper's oracle arm, a bound."""

from __future__ import annotations

from typing import ClassVar, Literal

from continuum_server.policy.facts import Hold, TurnFinish
from continuum_server.policy.rules.infercept import InferCept


class InferCeptOracle(InferCept):
    """``infercept`` with the length of each interception known, so one decision at its beginning suffices."""

    name: ClassVar[str] = "infercept-oracle"
    label: ClassVar[Literal["policy", "bound"]] = "bound"

    def turn_finished(self, finish: TurnFinish) -> Hold:
        tool_s = self.future.tool_s(finish.turn.request_id)
        return Hold(tool_s if tool_s <= self._worth_s(finish.context_tokens, finish.stored) else 0.0)
