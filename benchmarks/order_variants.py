"""``working-set`` without one of its parts each, for ``order.py --policies order_variants:NoGuests``."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from continuum_server.policy.base import Options, Yielding
from continuum_server.policy.facts import NO_ORDERS, Hold, Machine, Orders, Step, TurnFinish, TurnState
from continuum_server.policy.holds import Holds
from continuum_server.policy.rules.working_set import WorkingSet


class NoGuests(WorkingSet):
    """Newcomers stand at their place in program order."""

    name: ClassVar[str] = "no-guests"

    def step(self, step: Step) -> Orders:
        return NO_ORDERS

    def next_event_s(self) -> float | None:
        return None


class GuestsHeld(WorkingSet):
    """A guest's KV is held as any other's."""

    name: ClassVar[str] = "guests-held"

    def turn_finished(self, finish: TurnFinish) -> Hold:
        self.guests.left(finish.turn)
        return super().turn_finished(finish)


class NoSmall(WorkingSet):
    """Small programs stand where others do."""

    name: ClassVar[str] = "no-small"

    def _is_small(self, turn: TurnState) -> bool:
        return False


class NoHolds(WorkingSet):
    """No KV is held."""

    name: ClassVar[str] = "no-holds"

    def hold_s(self, finish: TurnFinish, even_s: float, learned_s: float) -> float:
        return 0.0


class NoLearnedHolds(WorkingSet):
    """KV is held up to break-even, whatever tools took."""

    name: ClassVar[str] = "no-learned-holds"

    def hold_s(self, finish: TurnFinish, even_s: float, learned_s: float) -> float:
        return super().hold_s(finish, even_s, even_s)


class NoLearnedWorth(WorkingSet):
    """Memory is worth what it is for decoding, however long tools take."""

    name: ClassVar[str] = "no-learned-worth"

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self._holds = _DecodeWorth(self.machine)


class _DecodeWorth(Holds):
    def worth(self) -> float:
        return self._decode_worth


class NoReturnShare(WorkingSet):
    """Every program is expected to return."""

    name: ClassVar[str] = "no-return-share"

    def turn_finished(self, finish: TurnFinish) -> Hold:
        return super().turn_finished(replace(finish, return_share=1.0))


class NoYielding(WorkingSet):
    """The KV of programs that wait yields to no turn."""

    name: ClassVar[str] = "no-yielding"
    pins_yield_to: ClassVar[Yielding] = "never"


class NoPinnedFirst(WorkingSet):
    """Turns whose KV is pinned stand where others do."""

    name: ClassVar[str] = "no-pinned-first"
    classes_first: ClassVar[bool] = False


class NoOneOffs(WorkingSet):
    """One-offs have no line of their own."""

    name: ClassVar[str] = "no-one-offs"

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        turn.one_off = False
        super().turn_arrived(turn, now_s)


class NoSeniority(WorkingSet):
    """A program whose prompt leaves its history (a compaction) stands where a new one would."""

    name: ClassVar[str] = "no-seniority"

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        if turn.program.last_prompt.left_at is not None:
            turn.program.sequence = turn.sequence
        super().turn_arrived(turn, now_s)
