"""Turns that no policy may hold back any longer: the oldest, and first turns that would miss the target."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from itertools import count

from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import PrefillCurve, TurnState
from continuum_server.policy.mechanism import Mechanism

RECENT_WAITS = 16
"""Number of first turns over which their waits are averaged."""


class WaitingTurns(Mechanism):
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
        self._urgent_wait_s = RecentMean(RECENT_WAITS)
        """Mean seconds until such a turn started, once it came before all later requests."""
        self._urgent_s: dict[str, float] = {}
        """When the turns that did not start yet became overdue because of the target."""

    def __len__(self) -> int:
        return len(self._turns)

    def arrived(self, turn: TurnState, now_s: float) -> None:
        self._turns[turn.request_id] = turn
        if self._first_token_s is not None and not turn.program.turns_arrived and turn.priority <= 0:
            lead_s = self._prefill.seconds(turn.prompt_tokens) + self._urgent_wait_s.value
            heapq.heappush(self._targets, (now_s + self._first_token_s - lead_s, next(self._ties), turn))

    def started(self, turn: TurnState, now_s: float, hit_tokens: int) -> None:
        self._turns.pop(turn.request_id, None)
        urgent_s = self._urgent_s.pop(turn.request_id, None)
        if urgent_s is not None and turn.start_s is None:
            self._urgent_wait_s.add(now_s - urgent_s)

    def preempted(self, turn: TurnState, now_s: float) -> None:
        self._turns[turn.request_id] = turn

    def left(self, turn: TurnState, now_s: float) -> None:
        self._turns.pop(turn.request_id, None)
        self._urgent_s.pop(turn.request_id, None)

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
            self._urgent_s[turn.request_id] = now_s
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
