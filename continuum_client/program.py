"""One agent run: what it tells the server with its next call, and which calls are its own.

The current program is a context variable: every call made in the body of ``with client.program(...)``, in coroutines
and tasks started there, and in threads started there (``threads``), is a call of the program.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from continuum_traces.schema import Tags

from continuum_client.errors import ContinuumError, ProgramClosed
from continuum_client.predictors import Guesses, Prediction, Predictor
from continuum_client.tagging import check_id, check_seconds, check_tool
from continuum_client.threads import Inheritance

P = ParamSpec("P")
R = TypeVar("R")

MAX_RUNS = 256
"""Tool runs remembered between two calls; more are left out."""

_current: ContextVar[Program | None] = ContextVar("continuum_program", default=None)
_inheritance = Inheritance(_current)


class Carrier(Protocol):
    """A client a program's calls went through; it can tell its server that the program is over."""

    def _release(self, program_id: str) -> Any: ...


class Keeper(Protocol):
    """Where a program's turns are recorded (``recorder.Ledger``)."""

    def finish(self, runs: Sequence[ToolRun] = (), at_once: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool that ran between two calls; seconds on the client's clock."""

    name: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Told:
    """What one call takes along."""

    tags: Tags
    runs: tuple[ToolRun, ...] = ()
    """Tools since the call before."""
    prediction: Prediction | None = None
    """The agent's own, not a predictor's."""


class TurnIds:
    """Names for the calls of one ``Program`` object: a count, and digits drawn once in each process.

    Another object of the same program id, here or in another process, draws others, so no id comes twice.
    """

    def __init__(self) -> None:
        self._count = -1
        self._pid = -1
        self._digits = ""

    def next(self) -> str:
        if self._pid != os.getpid():  # at first, and in a fork, which goes on with a copy of this
            self._pid, self._digits = os.getpid(), uuid.uuid4().hex[:8]
        self._count += 1
        return f"{self._count}-{self._digits}"


def busy_seconds(runs: Sequence[ToolRun]) -> float:
    """Seconds in which at least one of the tools ran."""
    total, until_s = 0.0, float("-inf")
    for run in sorted(runs, key=lambda run: run.start_s):
        total += max(0.0, run.end_s - max(run.start_s, until_s))
        until_s = max(until_s, run.end_s)
    return total


class Program:
    """One agent run. Made by ``client.program()``; a context manager, plain and asynchronous.

    Safe to use from many threads and tasks. ``id`` is what the server sees.
    """

    def __init__(
        self,
        program_id: str | None,
        clock: Callable[[], float],
        parent_id: str | None = None,
        predictor: Predictor | None = None,
        output_tokens: int | None = None,
        child: Callable[..., Program] | None = None,
    ) -> None:
        self.id = uuid.uuid4().hex if program_id is None else check_id(program_id)
        self.parent_id = None if parent_id is None else check_id(parent_id, "parent id")
        self.output_tokens = output_tokens
        self.keeper: Any = None
        """Where its turns are recorded: the ``recorder.Ledger``; None: nowhere."""
        self._clock = clock
        self._predictor = predictor
        self._guesses = None if predictor is None else Guesses(predictor)
        self._child = child
        self._lock = threading.Lock()
        self._token: Token[Program | None] | None = None
        self._closed = False
        self._carriers: dict[str, Carrier] = {}
        self._told_last = False
        self._last_step = False
        self._prediction: Prediction | None = None
        self._expected: dict[str, float] = {}
        self._runs: list[ToolRun] = []
        self._turn_ids = TurnIds()

    def __repr__(self) -> str:
        return f"<Program {self.id!r}{' closed' if self._closed else ''}>"

    # ---------------------------------------------------------------------------- what the agent says

    @property
    def closed(self) -> bool:
        return self._closed

    def last_step(self) -> None:
        """The coming call is the last: the server need not keep its KV.

        Few agents know this before the reply; the others just close the program.

        Raises:
            ProgramClosed: it is closed.
        """
        self._open()
        self._last_step = True

    def predict(self, tool: str, seconds: float | None = None, p90: float | None = None) -> None:
        """The tool expected after the coming call, and how long it takes. Counts for that call only; advisory.

        Args:
            tool: its name.
            seconds: it is expected to take; without it, what ``tool(..., expect_s=)`` said last.
            p90: the 90th percentile.

        Raises:
            InvalidTag: an impossible name or number.
            ProgramClosed: it is closed.
        """
        self._open()
        self._prediction = Prediction(tool, self._expected.get(tool) if seconds is None else seconds, p90)

    def tool(self, name: str, expect_s: float | None = None) -> Tool:
        """Measure a tool: ``with p.tool("pytest"): ...``. The next call tells the server its name and its seconds.

        Args:
            name: of the tool.
            expect_s: seconds it is expected to take; used by a later ``predict(name)`` that gives none.

        Raises:
            InvalidTag: an impossible name or number.
            ProgramClosed: it is closed.
        """
        self._open()
        checked = check_tool(name)
        if expect_s is not None:
            self._expected[checked] = check_seconds(expect_s, "expect_s")
        return Tool(checked, self._ran, self._clock)

    def ran(self, name: str, seconds: float, ended_ago_s: float = 0.0) -> None:
        """A tool that was measured elsewhere, in a framework's events say. As ``tool``, told with the next call.

        Args:
            name: of the tool.
            seconds: it took.
            ended_ago_s: seconds since it ended.

        Raises:
            InvalidTag: an impossible name or number.
            ProgramClosed: it is closed.
        """
        self._open()
        end_s = self._clock() - check_seconds(ended_ago_s, "ended_ago_s")
        self._ran(ToolRun(check_tool(name), end_s - check_seconds(seconds, "seconds"), end_s))

    def child(self, program_id: str | None = None, **options: Any) -> Program:
        """A sub-agent's program; this one is its parent. Options as in ``client.program``.

        Raises:
            ProgramClosed: it is closed.
        """
        self._open()
        if self._child is None:
            raise ContinuumError(
                "this program was made without a client; make the child with client.program(parent=...)"
            )
        return self._child(program_id, parent=self, **options)

    def _open(self) -> None:
        if self._closed:
            raise ProgramClosed(f"program {self.id!r} is closed")

    def _ran(self, run: ToolRun) -> None:
        with self._lock:
            if len(self._runs) < MAX_RUNS:
                self._runs.append(run)
        if self._guesses is not None:
            self._guesses.ran(run.name, run.duration_s)

    # ----------------------------------------------------------------------------------- for the calls

    def keep(self, keeper: Keeper) -> None:
        """Record its turns there, until it is closed or forgotten, or the process ends."""
        self.keeper = keeper
        weakref.finalize(self, keeper.finish, (), True)

    def take(self) -> Told:
        """What the call that leaves now takes along; told once."""
        with self._lock:
            runs, last, own = tuple(self._runs), self._last_step, self._prediction
            turn_id = self._turn_ids.next()
            self._runs, self._last_step, self._prediction = [], False, None
        guess = self._guesses.current() if own is None and self._guesses is not None else own
        return Told(self._tags(runs, last, guess, turn_id), runs, own)

    def _tags(self, runs: Sequence[ToolRun], last: bool, guess: Prediction | None, turn_id: str) -> Tags:
        slowest = max(runs, key=lambda run: run.duration_s) if runs else None
        return Tags(
            program_id=self.id,
            parent_id=self.parent_id,
            is_last_step=True if last else None,
            pred_tool=guess.tool if guess else None,
            pred_tool_s=guess.seconds if guess else None,
            pred_tool_p90_s=guess.p90 if guess else None,
            last_func_call=slowest.name if slowest else None,
            last_tool_duration_s=round(busy_seconds(runs), 6) if slowest else None,
            turn_id=turn_id,
        )

    def give_back(self, told: Told) -> None:
        """A call failed for good: what it was to tell goes with the next one."""
        with self._lock:
            self._runs[:0] = told.runs
            self._last_step = self._last_step or bool(told.tags.is_last_step)
            self._prediction = self._prediction or told.prediction

    def carried_by(self, url: str, carrier: Carrier, told: Told) -> None:
        """A call with these tags went to ``url``."""
        self._carriers[url] = carrier
        self._told_last = bool(told.tags.is_last_step)

    # --------------------------------------------------------------------------------- entering, closing

    def __enter__(self) -> Program:
        self._open()
        if self._token is not None:
            raise ContinuumError(
                f"program {self.id!r} is entered already; in a thread or task use p.active() or p.bind()"
            )
        _inheritance.begin()
        self._token = _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        self.close()

    async def __aenter__(self) -> Program:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        await self.aclose()

    def _leave(self) -> None:
        token, self._token = self._token, None
        if token is not None:
            try:
                _current.reset(token)
            except ValueError:  # left in another context than it was entered in
                _current.set(None)

    @contextlib.contextmanager
    def active(self) -> Iterator[Program]:
        """Calls in this block are the program's; leaving it does not close the program. For threads of long standing.

        Raises:
            ProgramClosed: it is closed.
        """
        self._open()
        _inheritance.begin()
        token = _current.set(self)
        try:
            yield self
        finally:
            _current.reset(token)

    def bind(self, function: Callable[P, R]) -> Callable[P, R]:
        """``function``, to be run anywhere, in any thread, as part of this program."""

        @functools.wraps(function)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.active():
                return function(*args, **kwargs)

        return bound

    def close(self) -> None:
        """The program is over: its record is completed and its server, where the dialect can say so, lets go of its KV.

        Closing twice does nothing. Never raises; a server that does not answer costs at most two seconds. With an
        ``AsyncOpenAI`` the server is told by a task of the running loop; ``await p.aclose()`` waits for it.
        """
        for sent in self._end():
            if sent is not None:
                _in_background(sent)

    async def aclose(self) -> None:
        """``close()`` that waits for an asynchronous client's server."""
        for sent in self._end():
            if sent is not None:
                await sent

    def forget(self) -> None:
        """Close without telling the server: nobody knows whether the program is over."""
        self._end(tell=False)

    def _end(self, tell: bool = True) -> list[Any]:
        """Close; releases that are still to be awaited."""
        with self._lock:
            if self._closed:
                return []
            self._closed = True
            carriers = list(self._carriers.values()) if tell and not self._told_last else []
            self._carriers = {}
        if self.keeper is not None:
            self.keeper.finish(self._runs)
        return [carrier._release(self.id) for carrier in carriers]


class Tool:
    """A tool while it runs; a context manager, plain and asynchronous. An exception in it ends it like a return."""

    def __init__(self, name: str, ran: Callable[[ToolRun], None], clock: Callable[[], float]) -> None:
        self.name = name
        self.seconds: float | None = None
        """How long it took; None while it runs."""
        self._ran = ran
        self._clock = clock
        self._start_s = 0.0

    def __enter__(self) -> Tool:
        self._start_s = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_s = self._clock()
        self.seconds = end_s - self._start_s
        self._ran(ToolRun(self.name, self._start_s, end_s))

    async def __aenter__(self) -> Tool:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


_background: set[Any] = set()


def _in_background(sent: Any) -> None:
    """Run a coroutine as a task of the running loop; without one it is dropped: the server's TTL ends the hold."""
    import asyncio  # noqa: PLC0415 - only where an asynchronous client's program is closed synchronously

    try:
        task = asyncio.get_running_loop().create_task(sent)
    except RuntimeError:
        sent.close()
        return
    _background.add(task)
    task.add_done_callback(_background.discard)


def current_program() -> Program | None:
    """The program calls made here belong to, None outside any."""
    return _current.get()


def inherit_threads(wanted: bool = True) -> None:
    """Whether threads started inside a program, and work given to a ``ThreadPoolExecutor`` there, belong to it.

    On by default. ``False`` leaves ``threading`` as it is; use ``p.bind(function)`` or ``contextvars.copy_context()``
    then.
    """
    _inheritance.want(wanted)
