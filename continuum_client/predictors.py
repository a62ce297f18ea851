"""Predict the next tool and its time; a program can send the prediction with its calls. Off by default.

A predictor observes every tool that ran, and is asked for the tool that runs after the next call. It never delays a
call. ``RunningQuantiles`` is called directly, because it answers in microseconds (benchmarks/client_overhead.py). A
user's predictor is called on a separate thread; a call that is sent before its answer has no prediction.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Protocol

from continuum_client.errors import once
from continuum_client.tagging import check_seconds, check_tool

MAX_TOOLS = 1024
"""The number of tools that a ``RunningQuantiles`` learns; it ignores further tools."""
MAX_WAITING = 1024
"""The number of observations and questions that may wait for users' predictors; further ones are dropped."""
SAMPLES = 256
"""The number of durations that are kept for each tool: the latest ones."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The tool that is expected to run after the next call.

    Raises:
        InvalidTag: a name or a number cannot be sent.
    """

    tool: str
    seconds: float | None = None
    """How long the tool is expected to take (median or mean), in seconds; None: unknown."""
    p90: float | None = None
    """The 90th percentile of the tool's time, in seconds; None: unknown."""

    def __post_init__(self) -> None:
        check_tool(self.tool)
        for value, what in ((self.seconds, "predicted seconds"), (self.p90, "predicted p90")):
            if value is not None:
                check_seconds(value, what)


class Predictor(Protocol):
    """Predicts the next tool. It is called from one thread at a time. If it raises, a warning is issued once."""

    def observe(self, tool: str, seconds: float, previous: str | None) -> None:
        """Learn that ``tool`` ran for ``seconds``, after the tool ``previous`` of the same program (None: ``tool`` was
        the first)."""

    def predict(self, previous: str | None) -> Prediction | None:
        """Return the tool that is expected to run next, after the tool ``previous``; None: no prediction."""


class RunningQuantiles:
    """Predicts the tool that most often followed the last tool, with the median and P90 of its latest 256 times."""

    def __init__(self) -> None:
        self._times: dict[str, _Window] = {}
        self._followers: dict[str | None, Counter[str]] = {}
        self._lock = threading.Lock()

    def observe(self, tool: str, seconds: float, previous: str | None) -> None:
        with self._lock:
            if tool not in self._times and len(self._times) >= MAX_TOOLS:
                return
            self._times.setdefault(tool, _Window()).add(seconds)
            if previous is None or previous in self._times:
                self._followers.setdefault(previous, Counter())[tool] += 1

    def predict(self, previous: str | None) -> Prediction | None:
        with self._lock:
            followers = self._followers.get(previous)
            if not followers:
                return None
            tool = max(followers, key=followers.__getitem__)
            times = self._times[tool]
            return Prediction(tool, times.quantile(0.5), times.quantile(0.9))


class _Window:
    """The latest durations of a tool, in order of arrival and sorted."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        if len(self._latest) == SAMPLES:
            self._sorted.remove(self._latest.popleft())
        self._latest.append(seconds)
        insort(self._sorted, seconds)

    def quantile(self, share: float) -> float:
        """Return the smallest sample that at least ``share`` of the samples do not exceed."""
        rank = -(-len(self._sorted) * share // 1)
        return self._sorted[max(0, int(rank) - 1)]


class Guesses:
    """The predictions for one program. They pass the program's tools to a predictor and keep its latest answer."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._last: str | None = None
        self._answer: Prediction | None = None
        self._inline = type(predictor) is RunningQuantiles
        self._asked = 0
        self._ask(None)

    def ran(self, tool: str, seconds: float) -> None:
        """Pass on a tool of the program that has ended."""
        previous, self._last = self._last, tool
        self._run(lambda: self._predictor.observe(tool, seconds, previous))
        self._ask(tool)

    def current(self) -> Prediction | None:
        """Return the prediction for a call that is sent now; None: there is none, or the predictor has not answered."""
        return self._answer

    def _ask(self, previous: str | None) -> None:
        self._asked += 1
        number, self._answer = self._asked, None

        def ask() -> None:
            answer = self._predictor.predict(previous)
            if answer is not None and not isinstance(answer, Prediction):
                raise TypeError(f"predict() returned {type(answer).__name__}; expected Prediction or None")
            if number == self._asked:  # no tool has run since the question
                self._answer = answer

        self._run(ask)

    def _run(self, work: Callable[[], None]) -> None:
        name = type(self._predictor).__name__
        if self._inline:
            _run_guarded(name, work)
        else:
            _worker.submit(name, work)


def _run_guarded(name: str, work: Callable[[], None]) -> None:
    once.guard(f"predictor {name}", f"predictor {name} failed, so its prediction is left out", work)


class _Worker:
    """A daemon thread that calls users' predictors in order. It is started when the first predictor is used."""

    def __init__(self) -> None:
        self._work: deque[tuple[str, Callable[[], None]]] = deque()
        self._waiting = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._loop, name="continuum-predictor", daemon=True)
                Context().run(self._thread.start)  # the thread belongs to no program
        if len(self._work) < MAX_WAITING:
            self._work.append((name, work))
            self._waiting.release()
        else:
            once.warn(f"predictor {name} slow", f"predictor {name} is too slow: some observations are dropped")

    def _loop(self) -> None:
        while True:
            self._waiting.acquire()
            _run_guarded(*self._work.popleft())


_worker = _Worker()
