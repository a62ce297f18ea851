"""Bounds: policies that know the future. Yardsticks, never products; a server refuses them."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

from continuum_server.policy.base import Rank
from continuum_server.policy.facts import NO_HOLD, Hold, Machine, ProgramState, TurnFinish, TurnState
from continuum_server.policy.rules.ttl import Continuum
from continuum_server.policy.rules.working_set import WorkingSet


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
        turn.program.policy_state = self.future.remaining_s(turn.request_id)

    def rank(self, turn: TurnState) -> Rank:
        return (self.future.remaining_s(turn.request_id), turn.sequence)

    def victim_rank(self, program: ProgramState) -> Rank:
        return (-float(program.policy_state or 0.0), -program.sequence)


class OracleWorkingSet(WorkingSet):
    """``working-set`` with tool times and each program's remaining work known: the least goes first, and inside."""

    name: ClassVar[str] = "oracle-working-set"
    label: ClassVar[str] = "bound"

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self._left_s: dict[str, float] = {}
        """Engine seconds each program still takes, as of its last arrival."""

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        before = len(self._outside)
        self._left_s[turn.program.program_id] = self.future.work_s(turn.request_id)
        super().turn_arrived(turn, now_s)
        if len(self._outside) > before:
            self._outside = deque(sorted(self._outside, key=self._work_s))

    def _work_s(self, program: ProgramState) -> float:
        held = program.policy_state.held
        return self.future.work_s(held[0].request_id) if held else 0.0

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """It goes out between two turns where one outside has less left, a rebuild of this one counted."""
        hold = super().turn_finished(finish)
        program = finish.turn.program
        if not self._outside or program.requests_in_engine > 0:
            return hold
        first, left_s = self._outside[0], self.future.work_after_s(finish.turn.request_id)
        sooner = self._work_s(first) + self.machine.prefill.marginal_prefill_s(finish.context_tokens) < left_s
        if not sooner or self._fits(first.policy_state, finish.now_s):
            return hold
        self._leave(program)
        program.policy_state = None
        return NO_HOLD

    def _hold_s(self, finish: TurnFinish, even_s: float) -> float:
        tool_s = self.future.tool_s(finish.turn.request_id)
        return tool_s if tool_s <= even_s else 0.0

    def rank(self, turn: TurnState) -> Rank | None:
        inside = super().rank(turn) is not None
        return (self.future.work_s(turn.request_id), turn.sequence) if inside else None

    def victim_rank(self, program: ProgramState) -> Rank:
        return (-self._left_s.get(program.program_id, 0.0), -program.sequence)
