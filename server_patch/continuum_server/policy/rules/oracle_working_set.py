"""``oracle-working-set``: a bound on what any order and admission of programs can reach."""

from __future__ import annotations

from typing import ClassVar, Literal

from continuum_server.policy.base import Rank
from continuum_server.policy.facts import NO_HOLD, Hold, Machine, ProgramState, TurnFinish, TurnState
from continuum_server.policy.rules.oracle_hold import OracleHold


class OracleWorkingSet(OracleHold):
    """``working-set`` with the future known: the program with the least remaining work is admitted and runs first."""

    name: ClassVar[str] = "oracle-working-set"
    label: ClassVar[Literal["policy", "bound"]] = "bound"

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        self._left_s: dict[str, float] = {}
        """Each program's remaining engine seconds when its last turn arrived."""

    def place(self, program: ProgramState) -> Rank:
        return (self._left_s.get(program.program_id, 0.0), program.sequence)

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self._left_s[turn.program.program_id] = self.future.work_s(turn.request_id)
        super().turn_arrived(turn, now_s)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """End the program's place at once if a program outside has less work left, including a rebuild of this one."""
        hold = super().turn_finished(finish)
        program = finish.turn.program
        if not self._line:
            return hold
        first, left_s = self._line[0], self.future.work_after_s(finish.turn.request_id)
        sooner = self._left_s[first.program_id] + self.machine.prefill.marginal_prefill_s(finish.context_tokens)
        if sooner >= left_s or (first.turn is not None and self._fits(first.turn, finish.now_s)):
            return hold
        self._inside.drop(program.program_id)
        program.policy_state = None
        return NO_HOLD
