"""``program-fcfs``: program order without pins, the first half of the papers' ablation."""

from __future__ import annotations

from typing import ClassVar

from continuum_server.policy.base import Policy, Rank
from continuum_server.policy.facts import TurnState


class ProgramFcfs(Policy):
    """Programs run in order of their first request, the requests of one program in order of arrival; no KV is held."""

    name: ClassVar[str] = "program-fcfs"
    stock_order: ClassVar[bool] = False

    def rank(self, turn: TurnState) -> Rank | None:
        return (*self.position(turn.program), turn.sequence)
