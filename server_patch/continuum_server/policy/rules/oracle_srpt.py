"""``oracle-srpt``: a bound on what any order of programs can reach (shortest remaining processing time)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from continuum_server.policy.base import Rank
from continuum_server.policy.facts import ProgramState, TurnState
from continuum_server.policy.rules.oracle_ttl import OracleTtl


@dataclass(frozen=True, slots=True)
class _Remaining:
    """Policy state of a program."""

    model_s: float
    """The program's remaining modelled seconds when its last turn arrived."""


class OracleSrpt(OracleTtl):
    """The program with the least model time left runs first; KV is held as under ``oracle-ttl``."""

    name: ClassVar[str] = "oracle-srpt"

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        super().turn_arrived(turn, now_s)
        turn.program.policy_state = _Remaining(self.future.remaining_s(turn.request_id))

    def rank(self, turn: TurnState) -> Rank:
        return (self.future.remaining_s(turn.request_id), turn.sequence)

    def victim_rank(self, program: ProgramState) -> Rank:
        kept = program.policy_state
        return (-kept.model_s if isinstance(kept, _Remaining) else 0.0, -program.sequence)
