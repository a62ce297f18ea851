"""Bounds: policies that know the future. They show what a decision could gain at most, and run in replays only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from continuum_server.policy.base import Options, Rank
from continuum_server.policy.facts import NO_HOLD, Hold, Machine, ProgramState, TurnFinish, TurnState
from continuum_server.policy.rules.continuum import Continuum, ttl_notes
from continuum_server.policy.rules.working_set import WorkingSet


@dataclass(frozen=True, slots=True)
class Future:
    """What follows a request in a replayed trace, which only the virtual engine knows."""

    tool_s: float
    """Seconds from the request's finish to the arrival of its program's next request."""
    work_s: float
    """Engine seconds that this and all later requests of its program take in a full batch. A prefill counts in full, a
    decode step in proportion to the request's share of the batch's context."""
    work_after_s: float
    """``work_s`` of the program's later requests only."""


class Foreseeing:
    """The part of a policy that makes it a bound."""

    name: ClassVar[str]
    label: ClassVar[Literal["policy", "bound"]] = "bound"
    oracle: Mapping[str, Future] | None = None
    """The future of each request by its id. The virtual engine sets it."""

    def future(self, turn: TurnState) -> Future:
        """Return what follows a turn.

        Raises:
            RuntimeError: ``oracle`` is not set.
        """
        if self.oracle is None:
            raise RuntimeError(f"policy {self.name!r} is a bound: it needs the future, which only a replay has")
        return self.oracle[turn.request_id]


class OracleTtl(Foreseeing, Continuum):
    """``continuum`` with every tool time known: a turn is held until its program returns, or not at all. A bound on any
    choice of TTL."""

    name: ClassVar[str] = "oracle-ttl"

    def turn_finished(self, finish: TurnFinish) -> Hold:
        delay_s, eta = self.delay.mean_s, self.memory.eta
        gain_s = delay_s * eta + self.machine.rebuild_s(finish.kept_tokens, finish.stored)
        tool_s = self.future(finish.turn).tool_s
        return Hold(tool_s, notes=ttl_notes(delay_s, eta)) if tool_s < gain_s else NO_HOLD


class OracleHold(Foreseeing, WorkingSet):
    """``working-set`` with every tool time known: a turn is held until its program returns, or not at all."""

    name: ClassVar[str] = "oracle-hold"

    def hold_s(self, finish: TurnFinish, even_s: float, learned_s: float) -> float:
        tool_s = self.future(finish.turn).tool_s
        return tool_s if tool_s <= even_s else 0.0


class OracleWorkingSet(OracleHold):
    """``working-set`` with the future known: the program with the least remaining work runs first. A bound on any order
    of programs."""

    name: ClassVar[str] = "oracle-working-set"

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self._left_s: dict[str, float] = {}
        """Each program's remaining engine seconds when its last turn arrived."""

    def position(self, program: ProgramState) -> Rank:
        return (self._left_s.get(program.program_id, 0.0), program.sequence)

    def rank(self, turn: TurnState) -> Rank:
        """Return the turn's position. Nobody comes earlier because it is small or a guest."""
        return (*self.position(turn.program), turn.sequence)

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self._left_s[turn.program.program_id] = self.future(turn).work_s
        super().turn_arrived(turn, now_s)
