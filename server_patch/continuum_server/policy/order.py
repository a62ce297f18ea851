"""Program order without pins: the first half of the papers' ablation (SPEC 4)."""

from __future__ import annotations

from typing import ClassVar

from continuum_server.policy.base import Policy, Rank
from continuum_server.policy.facts import TurnState


class ProgramFcfs(Policy):
    """Programs in order of their first request; inside a program, requests in order (``program-fcfs``)."""

    name: ClassVar[str] = "program-fcfs"
    stock_order: ClassVar[bool] = False

    def rank(self, turn: TurnState) -> Rank | None:
        return (turn.program.sequence, turn.sequence)
