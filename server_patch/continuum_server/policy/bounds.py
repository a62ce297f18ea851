"""Bounds: policies that know the future. Yardsticks, never products; a server refuses them."""

from __future__ import annotations

from typing import ClassVar

from continuum_server.policy.base import Rank
from continuum_server.policy.facts import NO_HOLD, Hold, ProgramState, TurnFinish, TurnState
from continuum_server.policy.ttl import Continuum


class OracleTtl(Continuum):
    """``continuum`` with each tool's time known: held to the instant of the return, or not at all."""

    name: ClassVar[str] = "oracle-ttl"
    label: ClassVar[str] = "bound"

    def turn_finished(self, finish: TurnFinish) -> Hold:
        delay_s, eta = self.delay.mean_s, self.memory.eta
        gain_s = delay_s * eta + self.machine.prefill.seconds(finish.context_tokens)
        tool_s = self.future.tool_s(finish.turn.request_id)
        return Hold(tool_s, delay_s, eta) if tool_s < gain_s else NO_HOLD


class OracleSrpt(OracleTtl):
    """The program with the least model time left goes first; KV is held as by ``oracle-ttl``."""

    name: ClassVar[str] = "oracle-srpt"

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        super().turn_arrived(turn, now_s)
        turn.program.memo = self.future.remaining_s(turn.request_id)

    def rank(self, turn: TurnState) -> Rank:
        return (self.future.remaining_s(turn.request_id), turn.sequence)

    def victim_rank(self, program: ProgramState) -> Rank:
        return (-float(program.memo or 0.0), -program.sequence)
