"""How often a program goes on after a turn, learned by what the turn's answer was. Few clients mark the last turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from continuum_server.policy.estimate import RecentMean, RecentShare
from continuum_server.policy.facts import ProgramState, TurnState
from continuum_server.policy.lru import Lru
from continuum_server.policy.mechanism import Mechanism

RECENT_ANSWERS = 256
"""Number of answers over which shares are averaged."""
PRIOR = 4.0
"""An API key's share begins as if so many of its answers had been like everybody's. Everybody's begins as 1."""
KINDS = 1024
"""Number of kinds of answers remembered. The kind that was not seen for longest is forgotten first."""
LATE_TIMES = 3.0
"""A program has ended when it has been away for this many times the mean time between turns,"""
LEAST_S = 30.0
"""and for at least so many seconds."""


@dataclass(slots=True, eq=False)
class OpenAnswer:
    """An answer of which it is not yet known whether its program sends another turn."""

    at_s: float
    shares: tuple[RecentShare, ...]
    open: bool = True


class Returns(Mechanism):
    """The share of answers after which their program sent another turn.

    Args:
        most_s: seconds after which a program has ended in any case.
    """

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._all = Lru[Hashable, RecentShare](lambda: RecentShare(RECENT_ANSWERS), KINDS)
        self._waiting: deque[OpenAnswer] = deque()
        self._away_s = RecentMean(RECENT_ANSWERS)

    def share(self, program: ProgramState, tool: str | None, now_s: float) -> float:
        """Return the share of answers that call this tool, or none, after which the program goes on: 0 to 1."""
        self._give_up(now_s)
        share = 1.0
        for kind in self._kinds(program, tool):
            share = (kind.successes + PRIOR * share) / (kind.trials + PRIOR)
        return share

    def answered(self, program: ProgramState, tool: str | None, now_s: float) -> None:
        """Note a program's answer after which it may go on, which calls this tool."""
        program.answer = OpenAnswer(now_s, self._kinds(program, tool))
        self._waiting.append(program.answer)

    def arrived(self, turn: TurnState, now_s: float) -> None:
        self.returned(turn.program, now_s)

    def returned(self, program: ProgramState, now_s: float) -> None:
        """Note that the program goes on."""
        answer, program.answer = program.answer, None
        if answer is None:
            return
        self._away_s.add(now_s - answer.at_s)
        for share in answer.shares:
            share.add(answer.open, True)
        answer.open = False

    def ended(self, program: ProgramState) -> None:
        """Note that the program's client said that it has ended."""
        if program.answer is not None:
            program.answer.open = False

    def _kinds(self, program: ProgramState, tool: str | None) -> tuple[RecentShare, ...]:
        return self._all.of(tool is not None), self._all.of((program.namespace, tool))

    def _give_up(self, now_s: float) -> None:
        """Count the answers after which nobody came for long. Who comes later still counts as returned."""
        late_s = min(self._most_s, max(LEAST_S, LATE_TIMES * self._away_s.value))
        while self._waiting and (not self._waiting[0].open or self._waiting[0].at_s + late_s < now_s):
            answer = self._waiting.popleft()
            if answer.open:
                answer.open = False
                for share in answer.shares:
                    share.add(True, False)
