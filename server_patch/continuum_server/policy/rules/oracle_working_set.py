"""``oracle-working-set``: a bound on what any order and admission of programs can reach."""

from __future__ import annotations

from collections import deque
from typing import ClassVar, Literal, cast

from continuum_server.policy.base import Rank
from continuum_server.policy.facts import NO_HOLD, Hold, Machine, ProgramState, TurnFinish, TurnState
from continuum_server.policy.forecasts import Forecasts
from continuum_server.policy.rules.working_set import Member, WorkingSet


class OracleWorkingSet(WorkingSet):
    """``working-set`` with the future known: the program with the least remaining work is admitted and runs first."""

    name: ClassVar[str] = "oracle-working-set"
    label: ClassVar[Literal["policy", "bound"]] = "bound"
    holds: ClassVar[bool] = False

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self.forecasts = Forecasts(self.machine, 0, "mean", 0.0)
        self._left_s: dict[str, float] = {}
        """Each program's remaining engine seconds when its last turn arrived."""

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        before = len(self._outside)
        self._left_s[turn.program.program_id] = self.future.work_s(turn.request_id)
        super().turn_arrived(turn, now_s)
        if len(self._outside) > before:
            self._outside = deque(sorted(self._outside, key=self._work_s))

    def _work_s(self, program: ProgramState) -> float:
        held = cast(Member, program.policy_state).held
        return self.future.work_s(held[0].request_id) if held else 0.0

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """End the program's place at once if a program outside has less work left, including a rebuild of this one."""
        hold = super().turn_finished(finish)
        program = finish.turn.program
        if not self._outside or program.requests_in_engine > 0:
            return hold
        first, left_s = self._outside[0], self.future.work_after_s(finish.turn.request_id)
        sooner = self._work_s(first) + self.machine.prefill.marginal_prefill_s(finish.context_tokens) < left_s
        if not sooner or self._fits(cast(Member, first.policy_state), finish.now_s):
            return hold
        self._leave(program)
        program.policy_state = None
        return NO_HOLD

    def _hold_s(self, finish: TurnFinish, even_s: float, learned_s: float) -> float:
        tool_s = self.future.tool_s(finish.turn.request_id)
        return tool_s if tool_s <= even_s else 0.0

    def rank(self, turn: TurnState) -> Rank | None:
        inside = super().rank(turn) is not None
        return (self.future.work_s(turn.request_id), turn.sequence) if inside else None

    def victim_rank(self, program: ProgramState) -> Rank:
        return (-self._left_s.get(program.program_id, 0.0), -program.sequence)
