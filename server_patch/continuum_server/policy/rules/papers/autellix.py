"""``autellix``: the program that was served least runs first (PLAS; ATLAS for families of programs)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Annotated, ClassVar

from continuum_server.policy.base import Options, Policy, Rank
from continuum_server.policy.facts import NO_ORDERS, Machine, Orders, Step, TurnStart, TurnState
from continuum_server.policy.limits import Factor, Range, Seconds

_EARLY_S = 1e-6
"""``next_event_s`` is too early by this much, which is more than any rounding error."""
_FEW = 64
"""Number of watched calls up to which calls that left are not removed from the list."""


@dataclass(frozen=True, slots=True)
class AutellixOptions(Options):
    """Options of ``autellix``."""

    queues: Annotated[int, Range(1, 64)] = 8
    """K: number of queues."""
    first_range_s: Seconds = 4.0
    """A program with less model time than this enters the first queue; the range of each further queue is ``growth``
    times as wide, and that of the last queue has no end."""
    growth: Annotated[float, Range(1.0, 1000.0)] = 2.0
    first_quantum_s: Annotated[float, Range(1e-6, 1e9)] = 4.0
    """Model time a call may take in the first queue; ``growth`` times more in each further queue."""
    starvation_ratio: Factor = 10.0
    """beta: a call moves to the first queue once its program has waited this many times as long as it was served; 0:
    never."""


@dataclass(slots=True)
class _Call:
    """Policy state of a turn: the call's row in the paper's process table."""

    queue: int
    entered: int
    """Its number in its queue."""
    entered_served_s: float = 0.0
    """Model time of the call when it entered its queue."""
    forgiven_wait_s: float = 0.0
    """Waiting time before the call was last promoted, which no longer counts in W_c."""
    forgiven_served_s: float = 0.0
    """Model time before the call was last promoted, which no longer counts in T_c."""


def _call(turn: TurnState) -> _Call:
    call: _Call = turn.policy_state
    return call


class Autellix(Policy):
    """Programs that were served least run first, in queues with quanta; running requests of lower queues are
    preempted. No KV is held."""

    name: ClassVar[str] = "autellix"
    options_type: ClassVar[type] = AutellixOptions
    stock_order: ClassVar[bool] = False
    classes_first: ClassVar[bool] = False
    steps: ClassVar[bool] = True
    preempts: ClassVar[bool] = True
    options: AutellixOptions

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        super().__init__(machine, options)
        chosen, last = self.options, self.options.queues - 1
        self._quanta = [chosen.first_quantum_s * chosen.growth**i for i in range(last)]
        widths = [chosen.first_range_s * chosen.growth**i for i in range(last)]
        self._range_ends = [sum(widths[: i + 1]) for i in range(last)]
        self._numbers = count()
        self._starving: list[tuple[float, int, TurnState]] = []
        """A heap of (time at which the call will have waited too long, its number when it was added, the call)."""
        self._tidy_at = _FEW
        self._next_demotion_s: float | None = None
        self._refused: TurnState | None = None
        """The last asker for which no call could be preempted. Valid until a demotion or a start."""

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        queue = sum(end <= turn.chain_s for end in self._range_ends)
        turn.policy_state = _Call(queue, next(self._numbers))
        self._watch(turn)

    def turn_preempted(self, turn: TurnState, now_s: float) -> None:
        self._demote(turn, now_s)
        self._watch(turn)

    def rank(self, turn: TurnState) -> Rank:
        call = _call(turn)
        return (call.queue, call.entered)

    # ------------------------------------------------------------------------------------ quanta

    def _demote(self, turn: TurnState, now_s: float) -> float:
        """Move the call one queue down for each quantum that it used up, and return the seconds left of its quantum."""
        call = _call(turn)
        used_s = turn.served(now_s) - call.entered_served_s
        while call.queue < len(self._quanta) and used_s > self._quanta[call.queue]:
            used_s -= self._quanta[call.queue]
            call.entered_served_s += self._quanta[call.queue]
            call.queue, call.entered = call.queue + 1, next(self._numbers)
        return self._quanta[call.queue] - used_s if call.queue < len(self._quanta) else float("inf")

    def turn_started(self, start: TurnStart) -> None:
        self._refused = None

    def preemption_victims(self, asker: TurnState, running: Sequence[TurnState], now_s: float) -> Sequence[TurnState]:
        if asker is self._refused and self._next_demotion_s is not None and now_s <= self._next_demotion_s:
            return ()
        left_s = {turn.request_id: self._demote(turn, now_s) for turn in running}
        queue = _call(asker).queue
        lower = [turn for turn in running if _call(turn).queue > queue]
        waits_s = [self._until_below(turn, queue, left_s[turn.request_id]) for turn in running]
        self._next_demotion_s = now_s + min(waits_s) if waits_s else None
        self._refused = None if lower else asker
        return sorted(lower, key=self.rank, reverse=True)

    def _until_below(self, turn: TurnState, queue: int, left_s: float) -> float:
        """Return the seconds in the batch until the call is in a lower queue than ``queue``."""
        first = _call(turn).queue
        return left_s + sum(self._quanta[first + 1 : queue + 1]) if first <= queue < len(self._quanta) else float("inf")

    # -------------------------------------------------------------------------------- starvation

    def _watch(self, turn: TurnState) -> None:
        """Watch a waiting call, until it will have waited too long for its program's model time."""
        if _call(turn).queue > 0 and self.options.starvation_ratio > 0.0:
            call, root = _call(turn), turn.program.root
            waited_s = root.waited_s + turn.waited(turn.since_s) - call.forgiven_wait_s
            served_s = root.served_s + turn.served_s - call.forgiven_served_s
            missing_s = self.options.starvation_ratio * served_s - waited_s
            heapq.heappush(self._starving, (turn.since_s + max(0.0, missing_s), _call(turn).entered, turn))
            self._tidy()

    def _tidy(self) -> None:
        """Remove calls that left or run, once they may be half of all watched calls."""
        if len(self._starving) > self._tidy_at:
            self._starving = [entry for entry in self._starving if self._waits(entry)]
            heapq.heapify(self._starving)
            self._tidy_at = max(_FEW, 2 * len(self._starving))

    def _waits(self, entry: tuple[float, int, TurnState]) -> bool:
        """Whether the call still waits with the number that it had when it was added."""
        _, number, turn = entry
        return not turn.running and not turn.gone and _call(turn).entered == number

    def step(self, step: Step) -> Orders:
        if self._next_demotion_s is not None and self._next_demotion_s < step.now_s:
            self._next_demotion_s = None  # ``preemption_victims`` is called again if a request still waits for room
        promoted = []
        while self._starving and self._starving[0][0] < step.now_s:
            entry = heapq.heappop(self._starving)
            if not self._waits(entry):
                continue
            turn = entry[2]
            turn.policy_state = _Call(0, next(self._numbers), turn.served_s, turn.waited(step.now_s), turn.served_s)
            promoted.append(turn)
        return Orders(rank_again=promoted) if promoted else NO_ORDERS

    def next_event_s(self) -> float | None:
        instants = [self._starving[0][0]] if self._starving else []
        if self._next_demotion_s is not None:
            instants.append(self._next_demotion_s)
        return min(instants) - _EARLY_S if instants else None
