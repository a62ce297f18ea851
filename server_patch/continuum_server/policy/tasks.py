"""Sizes of tasks that are run repeatedly, and forecasts of a program's size from earlier runs of its task.

The logarithms of sizes are assumed to be normally distributed, around one mean for all programs and around a mean of
each task. The variance between the runs of one task is learned from the distance of each run to the task's earlier
runs. So the forecast for a task with few runs, or with runs that differ much, is near the mean of all programs.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

ENOUGH = 4
"""Number of finished programs before anything is forecast."""
WINDOW = 512
"""Number of finished programs over which the sizes of all programs are averaged."""
RUNS = 8
"""Number of runs over which a task's sizes are averaged."""
USUAL_LIKENESS = 0.7
"""Assumed share of the variance of sizes that is between tasks (SWE-bench agents'), until repeated runs show it."""
USUAL_WEIGHT = 4
"""Weight of ``USUAL_LIKENESS``, as a number of runs."""
FAR = 5.0
"""Distance from the mean, in standard deviations, beyond which the normal distribution's tail is approximated."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a whole program."""

    work_s: float = 0.0
    """Engine seconds."""
    turns: float = 0.0
    tokens: float = 0.0
    """Final context in tokens."""


Sizes = tuple[float, ...]
"""The logarithms of a ``Size``, field by field."""
_NAMES = tuple(field.name for field in fields(Size))


@dataclass(slots=True)
class _Average:
    """Running mean: the exact mean of the first ``window`` values, and an exponential moving average afterwards."""

    count: int
    mean: Sizes

    def add(self, value: Sizes, window: int) -> None:
        self.count = min(self.count + 1, window)
        self.mean = tuple(old + (new - old) / self.count for old, new in zip(self.mean, value, strict=True))


def _average() -> _Average:
    return _Average(0, (0.0,) * len(_NAMES))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected size of a program: normal distributions of the logarithms of a ``Size``."""

    log_mean: Sizes
    log_std: Sizes

    def work_s(self, done_s: float = 0.0) -> float:
        """Return the expected work of the whole program, given that it has done ``done_s`` and has not ended."""
        return survivor_mean(self.log_mean[0], self.log_std[0], done_s)

    def turns(self, done: float = 0.0) -> float:
        return survivor_mean(self.log_mean[1], self.log_std[1], done)

    def tokens(self, grown_to: float = 0.0) -> float:
        """Return the expected final context of a program whose context has ``grown_to`` tokens."""
        return survivor_mean(self.log_mean[2], self.log_std[2], grown_to)


class Tasks:
    """Sizes of finished programs: of all programs together, and of each task.

    Args:
        limit: number of tasks remembered. The task that was not run for longest is forgotten first.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._everybody, self._squares, self._errors = _average(), _average(), _average()
        self._tasks: OrderedDict[str, _Average] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: str | None, size: Size) -> None:
        """Add the size of a program that finished.

        Args:
            task: None if the program's task is unknown.
        """
        logs = tuple(math.log(max(value, 1e-9)) for value in astuple(size))
        if task is not None and self._limit > 0:
            self._add_run(task, logs)
        self._everybody.add(logs, WINDOW)
        self._squares.add(tuple(log * log for log in logs), WINDOW)

    def _add_run(self, task: str, logs: Sizes) -> None:
        runs = self._tasks.get(task)
        if runs is None:
            runs = self._tasks[task] = _average()
            if len(self._tasks) > self._limit:
                self._tasks.popitem(last=False)
        else:
            surprise = 1.0 + 1.0 / runs.count
            self._errors.add(
                tuple((log - mean) ** 2 / surprise for log, mean in zip(logs, runs.mean, strict=True)), WINDOW
            )
        runs.add(logs, RUNS)
        self._tasks.move_to_end(task)

    def of(self, task: str | None) -> Forecast | None:
        """Return the forecast for a program of the task; None: the task was never run, or too few programs finished."""
        runs = self._tasks.get(task) if task is not None else None
        if runs is None or self._everybody.count < ENOUGH:
            return None
        log_mean, log_std = [], []
        for index, own in enumerate(runs.mean):
            mean, whole = self._everybody.mean[index], self._variance(index)
            within = self._within(index, whole)
            between = max(0.0, whole - within)
            weight = runs.count * between / (runs.count * between + within) if between > 0.0 else 0.0
            log_mean.append(mean + weight * (own - mean))
            log_std.append(math.sqrt(within + between * (1.0 - weight)))
        return Forecast(tuple(log_mean), tuple(log_std))

    def everybody(self) -> Forecast | None:
        """Return the forecast for a program of an unknown task; None: too few programs finished."""
        if self._everybody.count < ENOUGH:
            return None
        spread = tuple(math.sqrt(self._variance(index)) for index in range(len(_NAMES)))
        return Forecast(self._everybody.mean, spread)

    def _variance(self, index: int) -> float:
        return max(0.0, self._squares.mean[index] - self._everybody.mean[index] ** 2)

    def _within(self, index: int, whole: float) -> float:
        """Return the variance between runs of one task."""
        count = self._errors.count
        usual = USUAL_WEIGHT * (1.0 - USUAL_LIKENESS) * whole
        return (usual + count * self._errors.mean[index]) / (USUAL_WEIGHT + count)

    # ------------------------------------------------------------------------------------- files

    def to_json(self) -> dict[str, Any]:
        everybody = (self._everybody, self._squares, self._errors)
        return {
            "everybody": [_to_json(average) for average in everybody],
            "tasks": [[task, *_to_json(runs)] for task, runs in self._tasks.items()],
        }

    def from_json(self, data: Mapping[str, Any]) -> None:
        """Add the sizes that another server learned. If both know a task, the runs of both count.

        Raises:
            ValueError: ``data`` does not have the form that ``to_json`` writes.
        """
        everybody, tasks = data.get("everybody"), data.get("tasks")
        if not isinstance(everybody, list) or len(everybody) != 3 or not isinstance(tasks, list):
            raise ValueError("tasks: expected everybody and tasks")
        if not all(isinstance(row, list) and row and isinstance(row[0], str) for row in tasks):
            raise ValueError("tasks: expected a name before each task's numbers")
        read = [_from_json(numbers, WINDOW) for numbers in everybody]
        runs = {task: _from_json(numbers, RUNS) for task, *numbers in tasks}
        for own, other in zip((self._everybody, self._squares, self._errors), read, strict=True):
            _merge(own, other, WINDOW)
        for task, other in runs.items():
            _merge(self._tasks.setdefault(task, _average()), other, RUNS)
            self._tasks.move_to_end(task)
        while len(self._tasks) > self._limit:
            self._tasks.popitem(last=False)


def merge_tasks(runs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge what several servers learned.

    Raises:
        ValueError: see ``Tasks.from_json``.
    """
    merged = Tasks(limit=1_000_000)
    for run in runs:
        merged.from_json(run)
    return merged.to_json()


def _merge(own: _Average, other: _Average, window: int) -> None:
    together = own.count + other.count
    if together:
        share = other.count / together
        own.mean = tuple(old + share * (new - old) for old, new in zip(own.mean, other.mean, strict=True))
        own.count = min(together, window)


def _to_json(average: _Average) -> list[float]:
    return [average.count, *(round(value, 6) for value in average.mean)]


def _from_json(numbers: Any, window: int) -> _Average:
    good = isinstance(numbers, list) and len(numbers) == 1 + len(_NAMES) and all(_is_number(value) for value in numbers)
    if not good or not isinstance(numbers[0], int) or numbers[0] < 0:
        raise ValueError(f"tasks: expected a count and {len(_NAMES)} numbers, found {numbers!r:.80}")
    return _Average(min(numbers[0], window), tuple(float(value) for value in numbers[1:]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and abs(value) < 1e6


def survivor_mean(log_mean: float, log_std: float, beyond: float) -> float:
    """Return the mean of the log-normal values above ``beyond``. Without a spread: ``beyond`` or the mean."""
    if log_std < 1e-6:
        return max(math.exp(log_mean), beyond)
    if beyond <= 0.0:
        return math.exp(log_mean + log_std * log_std / 2.0)
    deviations = (math.log(beyond) - log_mean) / log_std
    near = min(deviations, FAR)  # beyond FAR the shares are too small to divide
    mean = math.exp(log_mean + log_std * log_std / 2.0) * _above(near - log_std) / _above(near)
    return max(beyond, mean) if near == deviations else max(beyond * (1.0 + log_std / deviations), mean)


def _above(deviations: float) -> float:
    """Return the share of a normal distribution that is this many standard deviations above its mean, or more."""
    return 0.5 * math.erfc(deviations / math.sqrt(2.0))
