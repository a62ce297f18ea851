"""``oracle-ttl``: a bound on what any choice of TTL can reach."""

from __future__ import annotations

from typing import ClassVar, Literal

from continuum_server.policy.facts import NO_HOLD, Hold, TurnFinish
from continuum_server.policy.rules.continuum import Continuum


class OracleTtl(Continuum):
    """``continuum`` with every tool time known: a turn is held until its program returns, or not at all."""

    name: ClassVar[str] = "oracle-ttl"
    label: ClassVar[Literal["policy", "bound"]] = "bound"

    def turn_finished(self, finish: TurnFinish) -> Hold:
        delay_s, eta = self.delay.mean_s, self.memory.eta
        gain_s = delay_s * eta + self.machine.rebuild_s(finish.context_tokens, finish.stored)
        tool_s = self.future.tool_s(finish.turn.request_id)
        return Hold(tool_s, delay_s, eta) if tool_s < gain_s else NO_HOLD
