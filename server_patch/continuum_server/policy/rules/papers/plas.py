"""``plas``: the program that was served least runs first, without queues, quanta or preemption."""

from __future__ import annotations

from typing import ClassVar

from continuum_server.policy.base import Policy, Rank
from continuum_server.policy.facts import TurnState


class Plas(Policy):
    """Requests run in order of the model time that their programs had when they arrived, the least first (Autellix's
    PLAS, without what Autellix adds to it). No KV is held."""

    name: ClassVar[str] = "plas"
    stock_order: ClassVar[bool] = False
    classes_first: ClassVar[bool] = False

    def rank(self, turn: TurnState) -> Rank:
        return (turn.chain_s, turn.sequence)
