"""Turns that no policy may hold back any longer: the oldest, and first turns that would miss the target."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from itertools import count

from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import PrefillCurve, TurnState

RECENT = 16
"""Number of first turns over which their waits are averaged."""


class WaitingTurns:
    """The turns that wait, in the order in which they began to wait.

    Args:
        max_overtake_s: ``Guards.max_overtake_s``.
        first_token_s: ``Guards.first_token_s``.
    """

    def __init__(self, prefill: PrefillCurve, max_overtake_s: float, first_token_s: float | None) -> None:
        self._prefill = prefill
        self._max_overtake_s, self._first_token_s = max_overtake_s, first_token_s
        self._turns: OrderedDict[str, TurnState] = OrderedDict()
        self._targets: list[tuple[float, int, TurnState]] = []
        """A heap of the waiting first turns, by the latest instants at which they can start and meet the target."""
        self._ties = count()
        self._urgent_wait_s = RecentMean(RECENT)
        """Mean seconds until such a turn started, once it came before all later requests."""

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: TurnState) -> None:
        """Note that a turn begins to wait, or waits again after a preemption."""
        self._turns[turn.request_id] = turn

    def expect_first_token(self, turn: TurnState, now_s: float) -> None:
        """Set the target of a program's first turn, if there is one."""
        if self._first_token_s is not None:
            lead_s = self._prefill.seconds(turn.prompt_tokens) + self._urgent_wait_s.value
            heapq.heappush(self._targets, (now_s + self._first_token_s - lead_s, next(self._ties), turn))

    def remove(self, turn: TurnState) -> None:
        self._turns.pop(turn.request_id, None)

    def start(self, turn: TurnState, now_s: float) -> None:
        """Note that the turn runs."""
        self.remove(turn)
        if turn.urgent_s is not None and turn.start_s is None:
            self._urgent_wait_s.add(now_s - turn.urgent_s)

    def overdue(self, now_s: float, idle: bool) -> list[TurnState]:
        """Remove and return the turns that are overdue, the longest waiting first.

        Args:
            idle: no request runs or can run. The longest waiting turn is then overdue at once.
        """
        out: list[TurnState] = []
        while self._turns:
            turn = next(iter(self._turns.values()))
            if turn.since_s + self._max_overtake_s >= now_s and (out or not idle):
                break
            out.append(self._turns.pop(turn.request_id))
        while self._next_target_s() < now_s:
            turn = heapq.heappop(self._targets)[2]
            turn.urgent_s = now_s
            out.append(self._turns.pop(turn.request_id))
        for turn in out:
            turn.overdue = True
        return out

    def next_s(self) -> float:
        """Return the earliest time after which another turn is overdue; infinite: none waits."""
        if not self._turns:
            return math.inf
        return min(next(iter(self._turns.values())).since_s + self._max_overtake_s, self._next_target_s())

    def _next_target_s(self) -> float:
        """Return when the next first turn will be overdue by the target; infinite: none waits."""
        while self._targets and self._targets[0][2].request_id not in self._turns:
            heapq.heappop(self._targets)
        return self._targets[0][0] if self._targets else math.inf
