"""Play programs on one virtual engine, or on several behind a router.

Each loop has its own clock and computes whole steps. The loop whose clock is furthest behind always goes first. So when
a turn is due, every replica has computed everything that happens earlier, and the router knows all earlier answers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from continuum_traces.playing.closed_loop import ClosedLoop, Lanes
from continuum_traces.playing.conversation import Job
from continuum_traces.playing.sub_programs import SubPrograms
from continuum_traces.schema import SchedulerEvent

from continuum_server.routers import Arrival, Door, Router
from continuum_server.virtual.config import EngineError
from continuum_server.virtual.loop import Play, VirtualLoop, play_of
from continuum_server.vllm_plugin.scheduler import EventSink


class ReplicaLoops:
    """Plays programs against one or several loops.

    Args:
        loops: one for each replica.
        router: chooses a loop for every turn.
        jobs: all programs of the run. In a closed loop they start in this order, whatever their arrival times.
            Sub-programs start when their parent's turn has ended.
        least_step_s: duration of the shortest step of any loop.
        lanes: the closed loop; None: all programs arrive by themselves.
        until_s: when the run stops.
        most_idle_s: the longest time in which no turn is in an engine. Otherwise all turns that are due later come
            earlier by the same time.
    """

    def __init__(
        self,
        loops: Sequence[VirtualLoop],
        router: Router,
        jobs: Sequence[Job],
        least_step_s: float,
        lanes: Lanes | None = None,
        until_s: float = inf,
        most_idle_s: float = inf,
    ) -> None:
        self.door = Door(router, len(loops))
        self._loops = list(loops)
        self._least_step_s = least_step_s
        self._sub_programs = SubPrograms(((number, job), job) for number, job in enumerate(jobs))
        roots = self._sub_programs.roots
        self._closed = None if lanes is None else ClosedLoop(roots, lanes)
        self._until_s, self._most_idle_s = until_s, most_idle_s
        self._last_end_s = 0.0
        self.skipped_s = 0.0
        """By how much all turns came earlier in sum because no turn was in an engine."""
        self._where: dict[int, tuple[int, Arrival]] = {}
        """The latest turn of each play, by the play's number, and the replica to which it was sent."""
        self._answers: list[tuple[float, int, int, Arrival]] = []
        """A heap of (time, order, replica, turn) of the answers that the router does not know yet."""
        self._earliest_return_s: dict[int, float] = {}
        """``VirtualLoop.earliest_return_s`` of each replica, until it steps or gets a turn."""
        self._orders = count(len(jobs) + 1)
        self._arrivals: list[tuple[float, int, Play]] = []
        """A heap of (time, order, play) of the turns that are due."""
        every = [((number, job), job.arrival_s) for number, job in roots]
        self._start(every if self._closed is None else self._closed.begin())

    def _start(self, starts: Iterable[tuple[tuple[int, Job], float]]) -> None:
        for (number, job), at_s in starts:
            child_gaps_s = self._sub_programs.least_gaps_s(job.program_id)
            job = replace(job, arrival_s=at_s)
            block_size = self._loops[0].block_size
            play = play_of(number, job, block_size, self._closed is not None, child_gaps_s, lambda: self.skipped_s)
            if self._most_idle_s < inf:
                next(play.conversation)  # so that it waits from now on, and knows what is skipped meanwhile
            heapq.heappush(self._arrivals, (at_s, number, play))

    def run(self, on_progress: Callable[[int], None] | None = None, every: int = 500) -> None:
        """Play every program to its end.

        Raises:
            EngineError: no replica can continue, or a loop made too many scheduler calls.
        """
        steps = 0
        while self.step():
            steps += 1
            if on_progress is not None and steps % every == 0:
                on_progress(self.programs_done)
        if on_progress is not None:
            on_progress(self.programs_done)

    @property
    def now_s(self) -> float:
        return max(loop.now_s for loop in self._loops)

    @property
    def programs_done(self) -> int:
        return sum(loop.programs_done for loop in self._loops)

    # ---------------------------------------------------------------------------------------- steps

    def step(self) -> bool:
        """Process the next event: an arrival or a scheduler call. Return False at the end of the run."""
        if not self._arrivals and all(loop.idle for loop in self._loops):
            return False
        self._shorten_idle_time()
        arrival_s = self._arrivals[0][0] if self._arrivals else inf
        index = min(range(len(self._loops)), key=lambda i: (self._loops[i].next_s(), self._loops[i].idle))
        next_s = self._loops[index].next_s()
        if self._until_s < inf and min(arrival_s, next_s) >= self._until_s:
            return False
        if arrival_s <= next_s and arrival_s < inf:
            self._route(*heapq.heappop(self._arrivals))
        else:
            self._earliest_return_s.pop(index, None)
            for play in self._loops[index].advance(lambda: self._horizon_s(index)):
                self._answered(index, play)
        return True

    def _shorten_idle_time(self) -> None:
        if self._most_idle_s == inf or not self._arrivals or not all(loop.idle for loop in self._loops):
            return
        earlier_s = self._arrivals[0][0] - self._last_end_s - self._most_idle_s
        if earlier_s > 0:
            self.skipped_s += earlier_s
            for _, _, play in self._arrivals:
                play.come_earlier(earlier_s)
            self._arrivals = [(due_s - earlier_s, order, play) for due_s, order, play in self._arrivals]  # still a heap

    def _route(self, instant_s: float, order: int, play: Play) -> None:
        while self._answers and self._answers[0][0] <= instant_s:
            _, _, replica, answered = heapq.heappop(self._answers)
            self.door.answered(replica, answered)
        arrival = self._arrival(play)
        index = self.door.send(arrival)
        if instant_s <= self._loops[index].step_start_s:
            raise EngineError(
                f"replica {index} ran past the arrival of a turn at {instant_s:.6f} s: a bug, please report it"
            )
        self._where[play.number] = (index, arrival)
        self._earliest_return_s.pop(index, None)
        self._loops[index].deliver(play, instant_s, order)

    def _answered(self, index: int, play: Play) -> None:
        order = next(self._orders)
        heapq.heappush(self._answers, (self._loops[index].now_s, order, *self._where[play.number]))
        now_s = self._loops[index].now_s
        self._last_end_s = max(now_s, self._last_end_s)
        self._start(self._sub_programs.started(play.job.program_id, play.index - 1, now_s))
        if not play.over:
            heapq.heappush(self._arrivals, (play.due_s, order, play))
        elif self._sub_programs.ended(play.job.program_id) and self._closed is not None:
            self._start(self._closed.ended(now_s))

    def _arrival(self, play: Play) -> Arrival:
        """Return the play's next turn, as the router knows it."""
        program, index = play.job.program, play.index
        return Arrival(
            program_id=play.job.program_id,
            prompt_tokens=play.prompts[index],
            kept_tokens=program.turns[index].kept_tokens,
            shared_prefix_id=program.shared_prefix_id,
            shared_prefix_tokens=program.shared_prefix_tokens,
            is_last_step=index == len(program.turns) - 1,
            parent_id=program.parent_id,
        )

    # -------------------------------------------------------------------------------- looking ahead

    def _horizon_s(self, index: int) -> float:
        """Return the time until which the replica gets no further turn; at most the end of the run."""
        arrival_s = self._arrivals[0][0] if self._arrivals else inf
        returns_s = (self._returns_s(other) for other in range(len(self._loops)) if other != index)
        return min(arrival_s, self._until_s, *returns_s)

    def _returns_s(self, index: int) -> float:
        if index not in self._earliest_return_s:
            self._earliest_return_s[index] = self._loops[index].earliest_return_s(self._least_step_s)
        return self._earliest_return_s[index]


class ReplicaSink:
    """Adds the replica's number to its events, and replaces the turn number, because each scheduler counts only the
    turns that it receives."""

    def __init__(self, index: int, out: EventSink) -> None:
        self._index = index
        self._out = out
        self._turns: dict[tuple[str, int], int] = {}

    def write(self, event: SchedulerEvent, /) -> None:
        key = event.program_id, event.turn
        if event.event == "arrive" and event.request_id is not None:
            self._turns[key] = int(event.request_id.rpartition("/")[2])
        self._out.write(replace(event, turn=self._turns[key], replica=self._index))
