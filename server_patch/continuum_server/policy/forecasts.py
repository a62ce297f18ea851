"""The order of programs by their expected work, and the expected growth of their contexts.

A program's place in line is its arrival time, unless there is a forecast of its work. Then the place moves forward by a
constant times the engine seconds that the program is expected to need less than the average program, and back by the
same constant times the seconds that it needs more. Under ``makespan`` a program that is expected to end after all
others comes first. Forecasts come from earlier runs of the program's task, and from the number of turns or tokens that
remain according to its client. The larger a client's errors were, the less its numbers count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import Machine, Span, TurnState
from continuum_server.policy.lru import Lru
from continuum_server.policy.tasks import Forecast, Size, Tasks

Objective = Literal["mean", "makespan"]

USUAL_TOKEN_S = 6e-8
"""Seconds of a decode step per token of context, if decode times are unknown: Llama-3.1-8B on an A100."""
USUAL_ERROR = 0.5
"""Assumed variance of log(said / true) of a new client: about a factor of 2 up or down."""
USUAL_WEIGHT = 4
"""Weight of ``USUAL_ERROR``, as a number of programs."""
RECENT = 64
"""Number of programs over which a client's errors are averaged, and of turns over which a turn's work is averaged."""
MAX_CLIENTS = 1024
FIRST_S = -1e12
"""A place before all arrivals."""


@dataclass(slots=True)
class Said:
    """The remaining turns or tokens of a program, according to its client."""

    unit: Literal["turns", "tokens"]
    rest: Span
    turns: int
    """Number of the turn with which the client sent it, from 1."""
    output_tokens: int
    """Tokens that the program had generated before that turn."""


@dataclass(slots=True, eq=False)
class Progress:
    """The work that a program has done so far, and the rest according to its client."""

    task: str | None
    arrival_s: float
    place_s: float
    """The program's place in line: the smallest comes first."""
    client: str = ""
    work_s: float = 0.0
    turns: int = 0
    output_tokens: int = 0
    tokens: int = 0
    """Context after the program's last turn, in tokens."""
    left_s: float = 0.0
    """The program's share in ``Forecasts``' sum of remaining work."""
    learned: bool = False
    """The program's size was added to its task's."""
    first_said: Said | None = None
    last_said: Said | None = None


class HintErrors:
    """The mean squared error of each client's numbers: of log(said / true).

    At most ``MAX_CLIENTS`` clients are remembered. The client that sent no number for longest is forgotten first.
    """

    def __init__(self) -> None:
        self._errors = Lru[str, RecentMean](lambda: RecentMean(RECENT), MAX_CLIENTS)

    def variance(self, client: str) -> float:
        errors = self._errors.get(client)
        if errors is None:
            return USUAL_ERROR
        return (USUAL_WEIGHT * USUAL_ERROR + errors.count * errors.value) / (USUAL_WEIGHT + errors.count)

    def add(self, client: str, said: float, true: float) -> None:
        self._errors.of(client).add(math.log((said + 1.0) / (true + 1.0)) ** 2)


class Forecasts:
    """Learns sizes of tasks from finished programs, and forecasts the sizes of running programs.

    Args:
        limit: number of tasks remembered; 0: nothing is forecast.
        objective: ``makespan``: a program that is expected to end after all others comes first.
        seconds_per_work: seconds by which a second of expected work moves a program in line.
        turn_s: returns the mean time from the start of a turn to its program's next turn.
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
        """Means over the turns of all programs: the work of a turn, and the tokens that a turn generates."""

    # ------------------------------------------------------------------------------- what happens

    def begin(self, turn: TurnState) -> Progress:
        """Return the progress of a new program, whose first turn arrived."""
        progress = self.progress(turn.task if turn.tagged else None, turn.program.arrival_s, turn.client or "")
        self.turn_arrived(progress, turn)
        return progress

    def progress(self, task: str | None, arrival_s: float, client: str = "") -> Progress:
        """Return the progress of a program without turns."""
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
        """Note that the program has ended, or may not return."""
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
        """Update the program's place in line."""
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
        """Whether a program at ``place_s`` should run before this program, whose KV must then be rebuilt.

        True only if this program moved back in line, and never under ``makespan``, where a rebuild only delays the end.
        """
        moved_back = progress.place_s > progress.arrival_s
        return not self._makespan and moved_back and place_s + self._move * rebuild_s < progress.place_s

    def final_tokens(self, progress: Progress, tokens: int) -> float | None:
        """Return the expected final context of a program with ``tokens`` now; None: its task is unknown."""
        forecast = self.tasks.of(progress.task)
        return None if forecast is None else forecast.tokens(tokens)

    def _forecast(self, progress: Progress) -> Forecast | None:
        """Combine the forecasts of the program's task and of its client, weighted by their earlier errors."""
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
        """Return the work of the whole program according to its client, and the variance of its logarithm."""
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
    """Return the turns or tokens of the program since its client said how many remain."""
    if said.unit == "turns":
        return max(0.0, progress.turns - said.turns)
    return max(0.0, progress.output_tokens - said.output_tokens)
