"""Places of programs in line, by how much they are expected to do, and how far their contexts are expected to grow.

Programs without a forecast keep the places of their arrival. A program with one moves forward or back by so many
seconds for each second of engine work that it is expected to need less or more than the average program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from continuum_server.policy.facts import Machine, TurnState
from continuum_server.policy.tasks import Forecast, Size, Tasks

Objective = Literal["mean", "makespan"]

USUAL_TOKEN_S = 6e-8
"""Seconds of a decode step per token of context, if decode times are unknown: Llama-3.1-8B on an A100."""


@dataclass(slots=True, eq=False)
class Progress:
    """What a program did so far."""

    task: str | None
    arrival_s: float
    place_s: float
    """Its place in line: the smallest comes first."""
    work_s: float = 0.0
    turns: int = 0
    tokens: int = 0
    """Context after its last turn."""


class Forecasts:
    """Learns sizes of tasks from finished programs, and forecasts those of running ones.

    Args:
        limit: tasks remembered; 0: nothing is forecast.
        objective: ``mean``: the least remaining work comes first; ``makespan``: the most.
        seconds_per_work: seconds by which a second of work moves a program's place.
    """

    def __init__(self, machine: Machine, limit: int, objective: Objective, seconds_per_work: float) -> None:
        self.tasks = Tasks(limit)
        self._prefill = machine.prefill
        decode = machine.decode
        self._token_s = USUAL_TOKEN_S if decode is None else decode.full_token_s(machine.kv_tokens)
        self._move = seconds_per_work if objective == "mean" else -seconds_per_work

    def begin(self, turn: TurnState) -> Progress:
        """The program of this turn is new."""
        task = turn.task if turn.tagged else None
        progress = Progress(task, turn.program.arrival_s, turn.program.arrival_s)
        self.place(progress)
        return progress

    def place(self, progress: Progress) -> None:
        """Set the program's place by what is known now."""
        forecast, usual = self.tasks.of(progress.task), self.tasks.everybody()
        progress.place_s = progress.arrival_s
        if forecast is not None and usual is not None:
            left_s = forecast.work_s(progress.work_s) - progress.work_s
            progress.place_s += self._move * (left_s - usual.work_s())

    def turn_ended(self, progress: Progress, prompt_tokens: int, context_tokens: int) -> None:
        known = min(progress.tokens, prompt_tokens)
        prefill_s = self._prefill.marginal_prefill_s(prompt_tokens) - self._prefill.marginal_prefill_s(known)
        output = context_tokens - prompt_tokens
        progress.work_s += prefill_s + output * (prompt_tokens + output / 2) * self._token_s
        progress.turns += 1
        progress.tokens = context_tokens
        self.place(progress)

    def program_ended(self, progress: Progress) -> None:
        if progress.turns:
            self.tasks.add(progress.task, Size(progress.work_s, progress.turns, progress.tokens))

    def final_tokens(self, progress: Progress, tokens: int) -> float | None:
        """Expected final context of a program that has grown to ``tokens``; None: nothing is known of its task."""
        forecast: Forecast | None = self.tasks.of(progress.task)
        return None if forecast is None else forecast.tokens(tokens)

    def to_json(self) -> dict[str, Any]:
        return self.tasks.to_json()
