"""``autellix``: programs that were served least go first (PLAS; ATLAS for families of programs)."""

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
"""How much too early ``next_event_s`` may be: more than any rounding."""
_FEW = 64
"""So many watched calls are never looked through for those that left."""


@dataclass(frozen=True, slots=True)
class AutellixOptions(Options):
    """Options of ``autellix``."""

    queues: Annotated[int, Range(1, 64)] = 8
    """K."""
    first_range_s: Seconds = 4.0
    """Model time up to which a program's calls enter the first queue; each further queue's range is ``growth`` times
    as wide, the last one's without end."""
    growth: Annotated[float, Range(1.0, 1000.0)] = 2.0
    first_quantum_s: Annotated[float, Range(1e-6, 1e9)] = 4.0
    """Model time a call may take in the first queue; ``growth`` times more in each further one."""
    starvation_ratio: Factor = 10.0
    """beta: a call whose program waited this many times as long as it was served goes to the first queue; 0: never."""


@dataclass(slots=True)
class _Call:
    """What the process table says of one call."""

    queue: int
    entered: int
    """Place in its queue."""
    entered_served_s: float = 0.0
    """Model time it had when it entered."""
    forgiven_wait_s: float = 0.0
    forgiven_served_s: float = 0.0
    """W_c and T_c of before it was last promoted."""


class Autellix(Policy):
    """Queues by attained service, quanta, and preemption of calls in lower queues."""

    name: ClassVar[str] = "autellix"
    options_type: ClassVar[type] = AutellixOptions
    stock_order: ClassVar[bool] = False
    classes_first: ClassVar[bool] = False
    steps: ClassVar[bool] = True
    preempts: ClassVar[bool] = True
    options: AutellixOptions

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        super().__init__(machine, options)
        given, last = self.options, self.options.queues - 1
        self._quanta = [given.first_quantum_s * given.growth**i for i in range(last)]
        widths = [given.first_range_s * given.growth**i for i in range(last)]
        self._range_ends = [sum(widths[: i + 1]) for i in range(last)]
        self._places = count()
        self._starving: list[tuple[float, int, TurnState]] = []
        """When each waiting call will have waited too long, with its place then; some no longer wait there."""
        self._tidy_at = _FEW
        self._next_demotion_s: float | None = None
        self._nobody_for: TurnState | None = None
        """Who was told that nobody gives way; it holds until a demotion or a start."""

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        queue = sum(end <= turn.chain_s for end in self._range_ends)
        turn.policy_state = _Call(queue, next(self._places))
        self._watch(turn)

    def turn_preempted(self, turn: TurnState, now_s: float) -> None:
        self._demote(turn, now_s)
        self._watch(turn)

    def rank(self, turn: TurnState) -> Rank:
        call: _Call = turn.policy_state
        return (call.queue, call.entered)

    # ------------------------------------------------------------------------------------ quanta

    def _demote(self, turn: TurnState, now_s: float) -> float:
        """Move the call down while its quantum is used up; seconds left of the one it has."""
        call: _Call = turn.policy_state
        used_s = turn.served(now_s) - call.entered_served_s
        while call.queue < len(self._quanta) and used_s > self._quanta[call.queue]:
            used_s -= self._quanta[call.queue]
            call.entered_served_s += self._quanta[call.queue]
            call.queue, call.entered = call.queue + 1, next(self._places)
        return self._quanta[call.queue] - used_s if call.queue < len(self._quanta) else float("inf")

    def turn_started(self, start: TurnStart) -> None:
        self._nobody_for = None

    def preemption_victims(self, asker: TurnState, running: Sequence[TurnState], now_s: float) -> Sequence[TurnState]:
        if asker is self._nobody_for and self._next_demotion_s is not None and now_s <= self._next_demotion_s:
            return ()
        left_s = {turn.request_id: self._demote(turn, now_s) for turn in running}
        queue = asker.policy_state.queue
        lower = [turn for turn in running if turn.policy_state.queue > queue]
        waits_s = [self._until_below(turn, queue, left_s[turn.request_id]) for turn in running]
        self._next_demotion_s = now_s + min(waits_s) if waits_s else None
        self._nobody_for = None if lower else asker
        return sorted(lower, key=self.rank, reverse=True)

    def _until_below(self, turn: TurnState, queue: int, left_s: float) -> float:
        """Seconds in the batch until the call is in a lower queue than that."""
        own = turn.policy_state.queue
        return left_s + sum(self._quanta[own + 1 : queue + 1]) if own <= queue < len(self._quanta) else float("inf")

    # -------------------------------------------------------------------------------- starvation

    def _watch(self, turn: TurnState) -> None:
        """Note when this waiting call will have waited too long for its program's model time."""
        if turn.policy_state.queue > 0 and self.options.starvation_ratio > 0.0:
            missing_s = self.options.starvation_ratio * self._total_served(turn) - self._total_waited(
                turn, turn.since_s
            )
            heapq.heappush(self._starving, (turn.since_s + max(0.0, missing_s), turn.policy_state.entered, turn))
            self._tidy()

    def _tidy(self) -> None:
        """Let go of calls that left or run, each time half of those watched may be such: their instant may be far."""
        if len(self._starving) > self._tidy_at:
            self._starving = [entry for entry in self._starving if self._waits(entry)]
            heapq.heapify(self._starving)
            self._tidy_at = max(_FEW, 2 * len(self._starving))

    def _waits(self, entry: tuple[float, int, TurnState]) -> bool:
        """The call waits still, in the place in which it was watched."""
        _, place, turn = entry
        return not turn.running and not turn.gone and bool(turn.policy_state.entered == place)

    def _total_waited(self, turn: TurnState, now_s: float) -> float:
        return turn.program.root.waited_s + turn.waited(now_s) - float(turn.policy_state.forgiven_wait_s)

    def _total_served(self, turn: TurnState) -> float:
        return turn.program.root.served_s + turn.served_s - float(turn.policy_state.forgiven_served_s)

    def step(self, step: Step) -> Orders:
        if self._next_demotion_s is not None and self._next_demotion_s < step.now_s:
            self._next_demotion_s = None  # it is asked again where it matters still
        promoted = []
        while self._starving and self._starving[0][0] < step.now_s:
            entry = heapq.heappop(self._starving)
            if not self._waits(entry):
                continue
            turn = entry[2]
            turn.policy_state = _Call(0, next(self._places), turn.served_s, turn.waited(step.now_s), turn.served_s)
            promoted.append(turn)
        return Orders(rank_again=promoted) if promoted else NO_ORDERS

    def next_event_s(self) -> float | None:
        instants = [self._starving[0][0]] if self._starving else []
        if self._next_demotion_s is not None:
            instants.append(self._next_demotion_s)
        return min(instants) - _EARLY_S if instants else None
