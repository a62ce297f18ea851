"""``oracle-hold``: shows how much ``working-set`` could gain from knowing tool times."""

from __future__ import annotations

from typing import ClassVar, Literal

from continuum_server.policy.facts import TurnFinish
from continuum_server.policy.rules.working_set import WorkingSet


class OracleHold(WorkingSet):
    """``working-set`` with every tool time known: a turn is held until its program returns, or not at all."""

    name: ClassVar[str] = "oracle-hold"
    label: ClassVar[Literal["policy", "bound"]] = "bound"

    def hold_s(self, finish: TurnFinish, even_s: float, learned_s: float) -> float:
        tool_s = self.future.tool_s(finish.turn.request_id)
        return tool_s if tool_s <= even_s else 0.0
