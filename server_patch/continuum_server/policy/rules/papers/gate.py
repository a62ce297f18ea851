"""A gate in front of the waiting queue: policies that hold requests back until their programs are admitted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import count
from typing import ClassVar

from continuum_server.policy.base import Options, Policy, Rank
from continuum_server.policy.facts import NO_ORDERS, Machine, Orders, ProgramState, TurnStart, TurnState


class Gate(Policy, ABC):
    """Requests run in the order of their queue numbers. A request without a number is held back."""

    stock_order: ClassVar[bool] = False
    steps: ClassVar[bool] = True

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self._numbers = count()
        self.held: dict[ProgramState, TurnState] = {}
        """The requests that are held back, in order of arrival."""
        self._admitted: list[TurnState] = []
        """Requests that were held back and may run from the next step on."""

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        if turn.one_off or self.lets_in(turn, now_s):
            turn.policy_state = next(self._numbers)
        else:
            self.held[turn.program] = turn

    @abstractmethod
    def lets_in(self, turn: TurnState, now_s: float) -> bool:
        """Whether the turn of a program may run. Otherwise it is held back until ``admit``."""

    @abstractmethod
    def leave(self, program: ProgramState) -> None:
        """Forget a program that has ended, or whose turn was lost. Its next turn counts as a new program's."""

    def turn_started(self, start: TurnStart) -> None:
        if start.turn.policy_state is None:  # overdue: it runs although it is held back
            self.admit(start.turn.program)

    def turn_lost(self, turn: TurnState) -> None:
        self.leave(turn.program)

    def program_finished(self, program: ProgramState) -> None:
        self.leave(program)

    def leave_ended(self, programs: Iterable[ProgramState]) -> None:
        """Forget the programs that the program table has ended because they were idle for too long."""
        for program in [program for program in programs if program.ended and program.turn is None]:
            self.leave(program)

    def admit(self, program: ProgramState) -> None:
        """No longer hold the program's request back, if it is."""
        turn = self.held.pop(program, None)
        if turn is not None:
            turn.policy_state = next(self._numbers)
            self._admitted.append(turn)

    def rank(self, turn: TurnState) -> Rank | None:
        return None if turn.policy_state is None else (turn.policy_state,)

    def admissions(self) -> Orders:
        """Return the orders that let the admitted requests run."""
        turns, self._admitted = [turn for turn in self._admitted if not turn.gone], []
        return Orders(rank_again=turns) if turns else NO_ORDERS
