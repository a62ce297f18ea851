"""Which tool comes next, and how long it takes: guesses a program may send with its calls. Off unless asked for.

A predictor is told of every tool that ran and asked before every call. It never delays one: ours answers in
microseconds (benchmarks/client_overhead.py); any other is asked on a thread of its own, and an answer that is not
there when the call leaves is left out of that call.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol

from continuum_client.errors import once
from continuum_client.tagging import check_seconds, check_tool

MAX_TOOLS = 1024
"""Names a ``RunningQuantiles`` learns; later ones are not learnt."""
MAX_WAITING = 1024
"""Observations and questions a predictor that is not ours may be behind; more are left out."""
SAMPLES = 256
"""Durations kept for each, the latest."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The tool expected after the coming call; seconds it takes (median or mean) and their 90th percentile.

    Raises:
        InvalidTag: a name or a number that cannot be sent.
    """

    tool: str
    seconds: float | None = None
    p90: float | None = None

    def __post_init__(self) -> None:
        check_tool(self.tool)
        for value, what in ((self.seconds, "predicted seconds"), (self.p90, "predicted p90")):
            if value is not None:
                check_seconds(value, what)


class Predictor(Protocol):
    """Anything that guesses. Called from one thread at a time; what it raises is one warning, never the agent's."""

    def observe(self, tool: str, seconds: float, previous: str | None) -> None:
        """``tool`` ran for ``seconds``, after ``previous`` in the same program (None: it was the first)."""

    def predict(self, previous: str | None) -> Prediction | None:
        """The tool that follows the coming call, where ``previous`` was the last to run; None: no idea."""


class RunningQuantiles:
    """The default: the tool that most often followed the last one, with the median and P90 of its latest 256 times."""

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
    """The latest durations of a tool, in order of time and of size."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        if len(self._latest) == SAMPLES:
            self._sorted.remove(self._latest.popleft())
        self._latest.append(seconds)
        insort(self._sorted, seconds)

    def quantile(self, share: float) -> float:
        """The smallest sample that at least ``share`` of the samples do not exceed."""
        rank = -(-len(self._sorted) * share // 1)
        return self._sorted[max(0, int(rank) - 1)]


class Guesses:
    """One program's view of a predictor: told of its tools, asked before its calls."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self._last: str | None = None
        self._answer: Prediction | None = None
        self._inline = type(predictor) is RunningQuantiles
        self._asked = 0
        self._ask(None)

    def ran(self, tool: str, seconds: float) -> None:
        """A tool of the program ended."""
        previous, self._last = self._last, tool
        self._run(lambda: self._predictor.observe(tool, seconds, previous))
        self._ask(tool)

    def current(self) -> Prediction | None:
        """The guess for the call that leaves now, if there is one."""
        return self._answer

    def _ask(self, previous: str | None) -> None:
        self._asked += 1
        number, self._answer = self._asked, None

        def ask() -> None:
            answer = self._predictor.predict(previous)
            if number == self._asked:  # a later tool has not made it stale
                self._answer = answer if answer is None or isinstance(answer, Prediction) else _refused(answer)

        self._run(ask)

    def _run(self, work: Callable[[], None]) -> None:
        name = type(self._predictor).__name__
        if self._inline:
            _guarded(name, work)
        else:
            _worker.submit(name, work)


def _refused(answer: Any) -> None:
    raise TypeError(f"predict() gave {type(answer).__name__}, expected Prediction or None")


def _guarded(name: str, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - a predictor is a guest: what it raises must not reach the agent
        once.warn(f"predictor {name}", f"predictor {name} failed, its guess is left out: {error!r}")


class _Worker:
    """A daemon thread for predictors that are not ours; started when one is used. Work is done in order."""

    def __init__(self) -> None:
        self._work: deque[tuple[str, Callable[[], None]]] = deque()
        self._waiting = threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, name: str, work: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._loop, name="continuum-predictor", daemon=True)
                Context().run(self._thread.start)  # of no program
        if len(self._work) < MAX_WAITING:
            self._work.append((name, work))
            self._waiting.release()
        else:
            once.warn(f"predictor {name} slow", f"predictor {name} cannot keep up: observations are left out")

    def _loop(self) -> None:
        while True:
            self._waiting.acquire()
            _guarded(*self._work.popleft())


_worker = _Worker()
