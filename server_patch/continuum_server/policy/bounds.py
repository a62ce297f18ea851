"""Bounds: policies that know the future. Yardsticks, never products; a server refuses them."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from continuum_server.policy.base import Rank
from continuum_server.policy.facts import NO_HOLD, Hold, ProgramState, TurnFinish, TurnState
from continuum_server.policy.ttl import Continuum
from continuum_server.policy.working_set import WorkingSet


class OracleTtl(Continuum):
    """``continuum`` with each tool's time known: held to the instant of the return, or not at all."""

    name: ClassVar[str] = "oracle-ttl"
    label: ClassVar[str] = "bound"

    def turn_finished(self, finish: TurnFinish) -> Hold:
        delay_s, eta = self.delay.mean_s, self.memory.eta
        gain_s = delay_s * eta + self.machine.rebuild_s(finish.context_tokens, finish.stored)
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


class OracleWorkingSet(WorkingSet):
    """``working-set`` with each program's remaining model time known: the least goes first and is let in first."""

    name: ClassVar[str] = "oracle-working-set"
    label: ClassVar[str] = "bound"

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        before = len(self._outside)
        super().turn_arrived(turn, now_s)
        if len(self._outside) > before:
            self._outside = deque(sorted(self._outside, key=self._remaining_s))

    def _remaining_s(self, program: ProgramState) -> float:
        held = program.memo.held
        return self.future.remaining_s(held[0].request_id) if held else 0.0

    def rank(self, turn: TurnState) -> Rank | None:
        inside = super().rank(turn) is not None
        return (self.future.remaining_s(turn.request_id), turn.sequence) if inside else None
