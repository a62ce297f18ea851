"""``working-set``: program order; KV is held up to its break-even time; small programs and newcomers come earlier.

docs/policies/working-set.md lists the rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import ClassVar, cast

from continuum_server.policy.base import Options, Rank, Yielding
from continuum_server.policy.estimate import Footprints
from continuum_server.policy.facts import (
    NO_HOLD,
    NO_ORDERS,
    Hold,
    Machine,
    Orders,
    ProgramState,
    Step,
    TurnFinish,
    TurnStart,
    TurnState,
)
from continuum_server.policy.guests import Guests
from continuum_server.policy.hints import Predictions
from continuum_server.policy.holds import Away, Holds
from continuum_server.policy.rules.program_fcfs import ProgramFcfs

FOOTPRINTS = 256
"""Number of most recently finished programs from whose final contexts the size of others is expected."""
LATEST = 64
"""Number of latest turns, of which the largest context is that of the giant beside which programs are small."""
SMALL_PART = 4
"""A program is small if it is expected to end at one part in so many of a giant's size, or less."""
AHEAD = 128
"""A small program counts as if it had come so many requests earlier."""


class WorkingSet(ProgramFcfs):
    """Programs run in the order of their first requests. Small ones and the first turns of newcomers come earlier. KV
    is held until holding it has cost as much as recomputing it would."""

    name: ClassVar[str] = "working-set"
    gone: ClassVar[Mapping[str, str]] = {
        "share": "every program is admitted at once",
        "learn_tool_times": "holds are always learned; a user's policy may override turn_finished",
    }
    steps: ClassVar[bool] = True
    pins_yield_to: ClassVar[Yielding] = "waiting"

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        self._holds, self.guests = Holds(self.machine), Guests(self.machine)
        self.predictions = Predictions()
        self._finals = Footprints(FOOTPRINTS)
        self._latest = deque[int](maxlen=LATEST)
        """Contexts of the turns that finished last, in tokens."""

    # -------------------------------------------------------------------------------------- order

    def rank(self, turn: TurnState) -> Rank:
        first, *rest = self.position(turn.program)
        return (not self.guests.includes(turn), first - AHEAD * self._is_small(turn), *rest, turn.sequence)

    def _is_small(self, turn: TurnState) -> bool:
        """Whether a turn comes earlier, because its program is small. One-offs have a line of their own instead.

        Nobody is small if no program is known that grew larger than the prompt.
        """
        final = self._finals.final_tokens(turn.prompt_tokens)
        giant = self._finals.final_tokens(max(self._latest, default=0))
        return not turn.one_off and turn.prompt_tokens < final and SMALL_PART * final <= giant

    def step(self, step: Step) -> Orders:
        invited = self.guests.invite(step.now_s)
        return Orders(rank_again=invited) if invited else NO_ORDERS

    def next_event_s(self) -> float | None:
        return self.guests.next_s()

    # -------------------------------------------------------------------------------------- holds

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        self._count_gone(now_s)
        self.predictions.returned(turn, now_s)
        self.guests.arrived(turn)
        program = turn.program
        if program.policy_state is not None and program.last_finish_s is not None:
            self._holds.returned(_away(program), now_s - program.last_finish_s)

    def turn_started(self, start: TurnStart) -> None:
        self.guests.started(start.turn)

    def turn_finished(self, finish: TurnFinish) -> Hold:
        turn, tokens = finish.turn, finish.context_tokens
        self._count_gone(finish.now_s)
        self._holds.served_s.add(turn.served(finish.now_s))
        self._latest.append(tokens)
        even_s = self._holds.break_even_s(finish.kept_tokens, finish.stored)
        learned_s = self._holds.tool_times.best_hold_s(even_s, finish.return_share)
        turn.program.policy_state = self._holds.left(tokens, learned_s, finish.now_s + learned_s + even_s)
        if self.guests.left(turn):
            return NO_HOLD  # its next turn waits for those of earlier programs
        return Hold(self.hold_s(finish, even_s, learned_s))

    def hold_s(self, finish: TurnFinish, even_s: float, learned_s: float) -> float:
        """Return the hold after a turn, of at most the break-even time. ``learned_s``: without a prediction."""
        return self.predictions.hold_s(finish.turn, finish.now_s, even_s, learned_s)

    def _count_gone(self, now_s: float) -> None:
        """Count programs that did not return as finished. Many clients never mark the last turn."""
        for away in self._holds.gone(now_s):
            self._finals.add(away.tokens)

    def turn_lost(self, turn: TurnState) -> None:
        self.guests.left(turn)
        turn.program.policy_state = None

    def program_finished(self, program: ProgramState) -> None:
        if program.policy_state is not None:
            _away(program).back = True
        if program.context_tokens > 0:
            self._finals.add(program.context_tokens)


def _away(program: ProgramState) -> Away:
    return cast(Away, program.policy_state)
