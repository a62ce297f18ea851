"""How many programs at a time an engine should be given: as many as fill the KV pool with what they need there.

A program needs its KV while a turn runs, and while its tool does, up to the break-even time of a hold. While a tool
runs for longer, another program can have the memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import Machine, TurnFinish, TurnState
from continuum_server.policy.holds import Holds
from continuum_server.policy.mechanism import Mechanism

TURNS = 256
"""Number of latest turns over which contexts and running times are averaged."""
GAPS = 1024
"""Number of latest times between turns that are averaged. A few of them are most of the time."""
LONGEST_S = 600.0
"""Longest time between turns that counts in full, because people come back after hours."""


class Fitting(Mechanism):
    """What the latest turns took of memory and time."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._break_even_s = Holds(machine).break_even_s
        self._tokens, self._served_s = RecentMean(TURNS), RecentMean(TURNS)
        self._gap_s, self._needed_s = RecentMean(GAPS), RecentMean(GAPS)
        """Means of the time between turns, and of the part of it in which the KV is needed."""

    def arrived(self, turn: TurnState, now_s: float) -> None:
        program = turn.program
        if program.last_finish_s is not None:
            self.returned(program.context_tokens, now_s - program.last_finish_s)

    def finished(self, finish: TurnFinish, answer: Sequence[int]) -> None:
        turn = finish.turn
        if not turn.one_off:
            shared = turn.program.last_prompt.common_blocks * self._machine.block_size
            self.ran(max(0, finish.context_tokens - shared), turn.served(finish.now_s))

    def ran(self, own_tokens: int, served_s: float) -> None:
        """Note a turn that ran so long.

        Args:
            own_tokens: its context without what its program shares with earlier ones, such as a system prompt.
        """
        self._tokens.add(self._machine.room(own_tokens))
        self._served_s.add(served_s)

    def returned(self, context_tokens: int, gap_s: float) -> None:
        """Note the time between two turns of a program with this context."""
        gap_s = min(gap_s, LONGEST_S)
        self._gap_s.add(gap_s)
        self._needed_s.add(min(gap_s, self._break_even_s(context_tokens)))

    @property
    def programs(self) -> float | None:
        """The number; None: no turn has finished."""
        needed_s = self._served_s.value + self._needed_s.value
        if self._tokens.value <= 0.0 or needed_s <= 0.0:
            return None
        return self._machine.kv_tokens / self._tokens.value * (self._served_s.value + self._gap_s.value) / needed_s
