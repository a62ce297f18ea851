"""Positions of programs in line, by the work that they are expected to need, and the expected growth of their contexts.

A program without a forecast stands in line by its arrival. A program with a forecast moves forward by so many seconds
for each second of engine work that it is expected to need less than the average program, and back for each second more.
Under ``makespan`` a program that the end of all programs will wait for comes before all others.
Forecasts come from earlier runs of the program's task, and from the turns or tokens that its client says remain. The
further off a client was for its earlier programs, the less its word counts.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import Machine, Span, TurnState
from continuum_server.policy.tasks import Forecast, Size, Tasks

Objective = Literal["mean", "makespan"]

USUAL_TOKEN_S = 6e-8
"""Seconds of a decode step per token of context, if decode times are unknown: Llama-3.1-8B on an A100."""
USUAL_ERROR = 0.5
"""Assumed variance of log(said / true) of a client that is not known yet: about a factor of 2 up or down."""
USUAL_WEIGHT = 4
"""Programs that ``USUAL_ERROR`` counts for."""
RECENT = 64
"""Programs over which a client's errors are averaged, and turns over which the work of a turn is averaged."""
MAX_CLIENTS = 1024
FIRST_S = -1e12
"""A place before all arrivals."""


@dataclass(slots=True)
class Said:
    """What a client said remained of its program."""

    unit: Literal["turns", "tokens"]
    rest: Span
    turns: int
    """Number of the turn with which the client said it, from 1."""
    output_tokens: int
    """Tokens that the program had generated before that turn."""


@dataclass(slots=True, eq=False)
class Progress:
    """What a program has done so far, and what its client said about the rest."""

    task: str | None
    arrival_s: float
    place_s: float
    """Where the program stands in line: the smallest comes first."""
    client: str = ""
    work_s: float = 0.0
    turns: int = 0
    output_tokens: int = 0
    tokens: int = 0
    """Context after its last turn."""
    left_s: float = 0.0
    """Remaining work, as it counts in ``Forecasts``' sum over all programs."""
    learned: bool = False
    """The program's size was added to its task's."""
    first_said: Said | None = None
    last_said: Said | None = None


class HintErrors:
    """How exact each client's earlier words were: the mean squared logarithm of (said / true).

    At most ``limit`` clients are remembered; the client that said nothing for longest is forgotten first.
    """

    def __init__(self, limit: int = MAX_CLIENTS) -> None:
        self._limit = limit
        self._errors: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def variance(self, client: str) -> float:
        count, mean = self._errors.get(client, (0, 0.0))
        return (USUAL_WEIGHT * USUAL_ERROR + count * mean) / (USUAL_WEIGHT + count)

    def add(self, client: str, said: float, true: float) -> None:
        count, mean = self._errors.pop(client, (0, 0.0))
        count = min(count + 1, RECENT)
        error = math.log((said + 1.0) / (true + 1.0)) ** 2
        self._errors[client] = (count, mean + (error - mean) / count)
        if len(self._errors) > self._limit:
            self._errors.popitem(last=False)


class Forecasts:
    """Learns sizes of tasks from finished programs, and forecasts those of running ones.

    Args:
        limit: tasks remembered; 0: nothing is forecast.
        objective: ``makespan``: programs that the end of all programs will wait for come first.
        seconds_per_work: seconds by which a second of work moves a program in line.
        turn_s: gives the mean time from the start of a turn to its program's next turn.
    """

    def __init__(
        self,
        machine: Machine,
        limit: int,
        objective: Objective,
        seconds_per_work: float,
        turn_s: Callable[[], float] = float,
    ) -> None:
        self.tasks = Tasks(limit)
        self.hints = HintErrors()
        self._prefill = machine.prefill
        decode = machine.decode
        self._token_s = USUAL_TOKEN_S if decode is None else decode.full_token_s(machine.kv_tokens)
        self._move = 0.0 if limit == 0 else seconds_per_work
        self._makespan = objective == "makespan"
        self._pace_s = turn_s
        self._left_s = 0.0
        """Remaining work of all programs; only under ``makespan``."""
        self._turn_s, self._turn_output = RecentMean(RECENT), RecentMean(RECENT)
        """Mean work of a turn over all programs, and the tokens that a turn generates."""

    # ------------------------------------------------------------------------------- what happens

    def begin(self, turn: TurnState) -> Progress:
        """The progress of a new program, whose first turn arrived."""
        progress = self.progress(turn.task if turn.tagged else None, turn.program.arrival_s, turn.client or "")
        self.turn_arrived(progress, turn)
        return progress

    def progress(self, task: str | None, arrival_s: float, client: str = "") -> Progress:
        """The progress of a program without turns."""
        return Progress(task, arrival_s, arrival_s, client)

    def turn_arrived(self, progress: Progress, turn: TurnState) -> None:
        said = _said(progress, turn)
        if said is not None:
            progress.last_said = said
            progress.first_said = progress.first_said or said
        self.place(progress)

    def turn_ended(self, progress: Progress, prompt_tokens: int, context_tokens: int) -> None:
        known = min(progress.tokens, prompt_tokens)
        prefill_s = self._prefill.marginal_prefill_s(prompt_tokens) - self._prefill.marginal_prefill_s(known)
        output = context_tokens - prompt_tokens
        work_s = prefill_s + output * (prompt_tokens + output / 2) * self._token_s
        self._turn_s.add(work_s)
        self._turn_output.add(output)
        progress.work_s += work_s
        progress.turns += 1
        progress.output_tokens += output
        progress.tokens = context_tokens
        self.place(progress)

    def program_left(self, progress: Progress) -> None:
        """Nothing is left of the program, or it is not known whether it comes back."""
        self._count_left(progress, 0.0)

    def program_ended(self, progress: Progress) -> None:
        self.program_left(progress)
        if progress.learned or not progress.turns:
            return
        progress.learned = True
        self.tasks.add(progress.task, Size(progress.work_s, progress.turns, progress.tokens))
        said = progress.first_said
        if said is not None:
            self.hints.add(progress.client, (said.rest.low + said.rest.high) / 2, _done_since(progress, said))

    # ----------------------------------------------------------------------------- what is expected

    def place(self, progress: Progress) -> None:
        """Move the program in line by what is known now."""
        forecast = self._forecast(progress) if self._move else None
        usual = self.tasks.everybody() if forecast is not None else None
        if forecast is None or usual is None:
            progress.place_s = progress.arrival_s
            return
        left_s = forecast.work_s(progress.work_s) - progress.work_s
        progress.place_s = progress.arrival_s + self._move * (left_s - usual.work_s())
        if self._makespan:
            self._count_left(progress, left_s)
            rest_s = max(0.0, forecast.turns(progress.turns) - progress.turns) * self._pace_s()
            if rest_s >= self._left_s:
                progress.place_s = FIRST_S - rest_s

    def _count_left(self, progress: Progress, left_s: float) -> None:
        self._left_s = max(0.0, self._left_s + left_s - progress.left_s)
        progress.left_s = left_s

    def passes(self, place_s: float, progress: Progress, rebuild_s: float) -> bool:
        """Whether a program at ``place_s`` should run before this program, although this program is then rebuilt.

        Only a program that moved back can be passed, and none under ``makespan``: a rebuild only delays the end.
        """
        moved_back = progress.place_s > progress.arrival_s
        return not self._makespan and moved_back and place_s + self._move * rebuild_s < progress.place_s

    def final_tokens(self, progress: Progress, tokens: int) -> float | None:
        """Expected final context of a program that has grown to ``tokens``; None: nothing is known of its task."""
        forecast = self.tasks.of(progress.task)
        return None if forecast is None else forecast.tokens(tokens)

    def _forecast(self, progress: Progress) -> Forecast | None:
        """From the program's task and from what its client said, each weighed by how exact it was before."""
        of_task, said = self.tasks.of(progress.task), progress.last_said
        before = of_task or self.tasks.everybody()
        if said is None or before is None:
            return of_task
        work_s, variance = self._by_hint(progress, said)
        weight = before.log_std[0] ** 2 / (before.log_std[0] ** 2 + variance)
        mean = before.log_mean[0] + weight * (math.log(work_s) - before.log_mean[0])
        std = math.sqrt(weight * variance)
        return Forecast((mean, *before.log_mean[1:]), (std, *before.log_std[1:]))

    def _by_hint(self, progress: Progress, said: Said) -> tuple[float, float]:
        """Work of the whole program if its client is right, and the variance of its logarithm."""
        low, high = said.rest.low + 1.0, said.rest.high + 1.0
        present = said.unit == "turns" and said.turns > progress.turns  # the turn with which it was said has not ended
        units = max(0.0, math.sqrt(low * high) - 1.0 - _done_since(progress, said)) + present
        turns = units if said.unit == "turns" else units / max(1.0, self._turn_output.value)
        turn_s = progress.work_s / progress.turns if progress.turns > 1 else self._turn_s.value
        width = math.log(high / low) ** 2 / 12.0
        return max(1e-9, progress.work_s + turns * turn_s), self.hints.variance(progress.client) + width


def _said(progress: Progress, turn: TurnState) -> Said | None:
    turns = progress.turns + 1
    if turn.remaining_turns is not None:
        return Said("turns", turn.remaining_turns, turns, progress.output_tokens)
    if turn.remaining_tokens is not None:
        return Said("tokens", turn.remaining_tokens, turns, progress.output_tokens)
    return None


def _done_since(progress: Progress, said: Said) -> float:
    """Turns or tokens of the program since its client said how many remain."""
    if said.unit == "turns":
        return max(0.0, progress.turns - said.turns)
    return max(0.0, progress.output_tokens - said.output_tokens)
