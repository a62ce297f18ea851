"""A program is one run of an agent. It knows which calls belong to it and what the next call tells the server.

Every call that is made in the body of ``with client.program(...)``, and in coroutines, tasks and threads that are
started there, belongs to the program (``current``).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from continuum_traces.schema import Tags

from continuum_client import current
from continuum_client.decorators import F, around
from continuum_client.errors import ContinuumError, ProgramClosed
from continuum_client.predictors import Guesses, Prediction, Predictor
from continuum_client.spans import tool_span
from continuum_client.tagging import check_counts, check_id, check_seconds, check_tool
from continuum_client.threads import Inheritance

P = ParamSpec("P")
R = TypeVar("R")

MAX_RUNS = 256
"""Tool runs that are kept between two calls; further ones are dropped."""

_inheritance = Inheritance(current.variable, current.current_entry)


class SendingClient(Protocol):
    """A client that has sent calls of a program, and can send the program's release to its server."""

    base_url: Any

    def _release(self, program_id: str) -> Any:
        """Send the release; or return a coroutine that sends it."""

    def _release_blocking(self, program_id: str) -> None:
        """Send the release, outside any event loop."""


class Keeper(Protocol):
    """What records a program's turns: ``recorder.Ledger``."""

    def finish(self, runs: Sequence[ToolRun] = (), at_once: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A tool that ran between two calls. Times are seconds on the client's clock."""

    name: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class CallTags:
    """The tags of one call, and what they were made from."""

    tags: Tags
    runs: tuple[ToolRun, ...] = ()
    """The tools that ran since the previous call."""
    prediction: Prediction | None = None
    """The prediction from ``Program.predict``, not from a predictor."""
    hints: Mapping[str, Any] = field(default_factory=dict)
    """Tags from ``Program.remaining`` and ``Program.kv_ttl``."""


class TurnIds:
    """Turn ids for one ``Program`` object: a count and eight random hexadecimal digits, such as ``4-9f3c01ab``.

    Each object and each process draws its own digits, so two calls of a program never have the same turn id.
    """

    def __init__(self) -> None:
        self._count = -1
        self._pid = -1
        self._digits = ""

    def next(self) -> str:
        if self._pid != os.getpid():  # the first id, or the first one in a forked process
            self._pid, self._digits = os.getpid(), uuid.uuid4().hex[:8]
        self._count += 1
        return f"{self._count}-{self._digits}"


def busy_seconds(runs: Sequence[ToolRun]) -> float:
    """The seconds during which at least one of the tools ran."""
    total, until_s = 0.0, float("-inf")
    for run in sorted(runs, key=lambda run: run.start_s):
        total += max(0.0, run.end_s - max(run.start_s, until_s))
        until_s = max(until_s, run.end_s)
    return total


class Program:
    """One run of an agent. ``client.program()`` makes it; use it with ``with`` or ``async with``.

    It can be used from many threads and tasks. ``id`` is the program id that the server sees.
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
        """Records the turns (``recorder.Ledger``); None: they are not recorded."""
        self.home: SendingClient | None = None
        """The client that opened the program."""
        self._clock = clock
        self._predictor = predictor
        self._guesses = None if predictor is None else Guesses(predictor)
        self._child = child
        self._lock = threading.Lock()
        self._entry: current.Entry | None = None
        self._closed = False
        self._clients: dict[str, SendingClient] = {}
        """By base URL: the clients that sent calls of this program."""
        self._sent_last = False
        self._last_step = False
        self._prediction: Prediction | None = None
        self._hints: dict[str, Any] = {}
        self._task: str | None = None
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
        """The next call is the program's last, so the server need not keep its KV cache afterwards.

        Few agents know this before they see the reply. The others just close the program.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._open()
        self._last_step = True

    def predict(self, tool: str, seconds: float | None = None, p90: float | None = None) -> None:
        """Send a hint with the next call: the tool that is expected after it.

        Args:
            tool: the tool's name.
            seconds: how long the tool is expected to take. Default: the tool's latest ``tool(..., expect_s=)``.
            p90: the 90th percentile of its time in seconds.

        Raises:
            InvalidTag: a name or a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        self._open()
        self._prediction = Prediction(tool, self._expected.get(tool) if seconds is None else seconds, p90)

    @overload
    def tool(self, name: F, /) -> F: ...

    @overload
    def tool(self, name: str, expect_s: float | None = None) -> Tool: ...

    def tool(self, name: Any, expect_s: float | None = None) -> Any:
        """Measure a tool: ``with p.tool("pytest"): ...``. The next call sends its name and its time to the server.

        As a decorator, ``@p.tool``, it measures each call of a function, under the function's name.

        Args:
            name: the tool's name.
            expect_s: seconds that the tool is expected to take; a later ``predict(name)`` without seconds uses it.

        Raises:
            InvalidTag: a name or a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        if callable(name):
            own = check_tool(cast("Any", name).__name__)
            return around(name, lambda: self.tool(own))
        self._open()
        checked = check_tool(name)
        if expect_s is not None:
            self._expected[checked] = check_seconds(expect_s, "expect_s")
        return Tool(checked, self._ran, self._clock)

    def ran(self, name: str, seconds: float, ended_ago_s: float = 0.0) -> None:
        """Report a tool that was measured elsewhere, for example by a framework's events. The next call sends it.

        Args:
            name: the tool's name.
            seconds: how long the tool took.
            ended_ago_s: seconds since the tool ended.

        Raises:
            InvalidTag: a name or a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        self._open()
        end_s = self._clock() - check_seconds(ended_ago_s, "ended_ago_s")
        self._ran(ToolRun(check_tool(name), end_s - check_seconds(seconds, "seconds"), end_s))

    def remaining(
        self, turns: int | tuple[int, int] | None = None, tokens: int | tuple[int, int] | None = None
    ) -> None:
        """Send a hint with the next call: what the program still has to do after it. ``working-set`` reads it.

        Args:
            turns: the number of later turns, or an interval (low, high) if it is not known exactly.
            tokens: the tokens that they generate, or an interval.

        Raises:
            InvalidTag: a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        found = {"remaining_turns": turns, "remaining_tokens": tokens}
        self._hint({name: check_counts(value, name) for name, value in found.items() if value is not None})

    def kv_ttl(self, seconds: float) -> None:
        """Send a hint with the next call: how long the server shall hold its KV. ``static-ttl`` reads it.

        Raises:
            InvalidTag: a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        self._hint({"kv_ttl_s": check_seconds(seconds, "kv_ttl")})

    def task(self, name: str) -> None:
        """Send a hint with every later call: what the program does. Programs that do alike give the same name.

        ``working-set`` reads the hint of a program's first call.

        Raises:
            InvalidTag: a name that cannot be sent.
            ProgramClosed: the program is closed.
        """
        self._open()
        self._task = check_tool(name, "task")

    def _hint(self, hints: Mapping[str, Any]) -> None:
        self._open()
        with self._lock:
            self._hints.update(hints)

    def child(self, program_id: str | None = None, **options: Any) -> Program:
        """Open a program for a sub-agent; this program is its parent. Options are those of ``client.program``.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._open()
        if self._child is None:
            raise ContinuumError(
                "this program was made without a client; open the child with client.program(parent=...)"
            )
        child = self._child(program_id, parent=self, **options)
        child.home = self.home
        return child

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
        """Record the turns with ``keeper`` until the program is closed or garbage collected, or the process exits."""
        self.keeper = keeper
        weakref.finalize(self, keeper.finish, (), True)

    def take(self) -> CallTags:
        """The tags of a call that is about to be sent. Tools, prediction and last step are sent with one call only."""
        with self._lock:
            runs, last, own, hints = tuple(self._runs), self._last_step, self._prediction, self._hints
            turn_id = self._turn_ids.next()
            self._runs, self._last_step, self._prediction, self._hints = [], False, None, {}
        guess = self._guesses.current() if own is None and self._guesses is not None else own
        return CallTags(replace(self._tags(runs, last, guess, turn_id), task=self._task, **hints), runs, own, hints)

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

    def give_back(self, taken: CallTags) -> None:
        """A call has failed finally: its tools, prediction and last step are sent with the next call."""
        with self._lock:
            self._runs[:0] = taken.runs
            self._last_step = self._last_step or bool(taken.tags.is_last_step)
            self._prediction = self._prediction or taken.prediction
            self._hints = {**taken.hints, **self._hints}

    def carried_by(self, url: str, client: SendingClient, taken: CallTags) -> None:
        """``client`` sends a call with these tags to the base URL ``url``."""
        self._clients[url] = client
        self._sent_last = bool(taken.tags.is_last_step)

    def passed_on(self, last_step: bool) -> None:
        """The tags were given to a framework, so the client that opened the program has to release it."""
        if self.home is not None:
            self._clients.setdefault(str(self.home.base_url), self.home)
        self._sent_last = last_step

    # --------------------------------------------------------------------------------- entering, closing

    def __enter__(self) -> Program:
        self._open()
        if self._entry is not None:
            raise ContinuumError(
                f"program {self.id!r} is entered already; in another thread or task use p.active() or p.bind()"
            )
        _inheritance.begin()
        self._entry = current.enter(self)
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
        entry, self._entry = self._entry, None
        if entry is not None:
            current.leave(entry)

    @contextlib.contextmanager
    def active(self) -> Iterator[Program]:
        """Calls in this block belong to the program, which stays open afterwards. For threads that serve many programs.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._open()
        _inheritance.begin()
        entry = current.enter(self)
        try:
            yield self
        finally:
            current.leave(entry)

    def bind(self, function: Callable[P, R]) -> Callable[P, R]:
        """A function that calls ``function`` as part of this program, in whichever thread it runs.

        It raises ``ProgramClosed`` if the program is closed by then.
        """

        @functools.wraps(function)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.active():
                return function(*args, **kwargs)

        return bound

    def close(self) -> None:
        """End the program: complete its record, and make the server release its KV cache if the dialect can.

        Never raises, and has no effect on a closed program. A server that does not answer costs at most two seconds.
        With an ``AsyncOpenAI`` the release is sent by a task of the running event loop, if there is one;
        ``await p.aclose()`` waits for it.
        """
        for client in self._end():
            if _loop_runs():
                _in_background(client._release(self.id))
            else:
                client._release_blocking(self.id)

    async def aclose(self) -> None:
        """``close()``, but waits until an ``AsyncOpenAI`` has sent the release."""
        for client in self._end():
            sent = client._release(self.id)
            if sent is not None:
                await sent

    def handoff(self) -> str:
        """End the program here without a release, so that another process or service continues it.

        Returns:
            A text for ``client.resume()`` there. It contains the ids and the task, no secret.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._open()
        self.forget()
        return json.dumps({"program_id": self.id, "parent_id": self.parent_id, "task": self._task})

    def forget(self) -> None:
        """Close the program without a release, because the agent may still go on with it."""
        self._end(tell=False)

    def _end(self, tell: bool = True) -> list[SendingClient]:
        """Close the program. Returns the clients that have to send its release."""
        with self._lock:
            if self._closed:
                return []
            self._closed = True
            clients = list(self._clients.values()) if tell and not self._sent_last else []
            self._clients = {}
        if self.keeper is not None:
            self.keeper.finish(self._runs)
        return clients


class Tool:
    """A tool that is being measured; use it with ``with`` or ``async with``. It has also run if the block raises."""

    def __init__(self, name: str, ran: Callable[[ToolRun], None], clock: Callable[[], float]) -> None:
        self.name = name
        self.seconds: float | None = None
        """How long the tool took; None while it runs."""
        self._ran = ran
        self._clock = clock
        self._start_s = 0.0
        self._end_span: Callable[[], None] | None = None

    def __enter__(self) -> Tool:
        self._end_span = tool_span(self.name)
        self._start_s = self._clock()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_s = self._clock()
        self.seconds = end_s - self._start_s
        if self._end_span is not None:
            self._end_span()
        self._ran(ToolRun(self.name, self._start_s, end_s))

    async def __aenter__(self) -> Tool:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)


_background: set[Any] = set()


def _loop_runs() -> bool:
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def _in_background(sent: Any) -> None:
    """Run a coroutine as a task of the running event loop; None: there is nothing to do."""
    if sent is not None:
        task = sys.modules["asyncio"].get_running_loop().create_task(sent)
        _background.add(task)
        task.add_done_callback(_background.discard)


def current_program() -> Program | None:
    """The open program to which calls made here belong; None outside any program."""
    entry = current.current_entry()
    return None if entry is None else entry.program


def tool(function: F) -> F:
    """Measure a function as a tool of the current program, under the function's name: ``@tool``.

    Outside any program the function just runs.
    """
    name = check_tool(cast("Any", function).__name__)

    def block() -> Any:
        program = current_program()
        return contextlib.nullcontext() if program is None else program.tool(name)

    return around(function, block)


def inherit_threads(wanted: bool = True) -> None:
    """Choose whether threads that are started inside a program, and work that is submitted to a
    ``ThreadPoolExecutor`` there, belong to the program (the default). With ``False``, use ``p.bind(function)`` or
    ``contextvars.copy_context()``.
    """
    _inheritance.want(wanted)
