"""``Program``, one run of an agent: it collects the tags that the program's next call sends to the server.

Every call that is made in the body of ``with client.program(...)``, or in coroutines, tasks and threads that are
started there, belongs to the program (see ``current``).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import json
import os
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from continuum_traces.lines import metadata_fault
from continuum_traces.schema import Metadata, Tags

from continuum_client import current, threads
from continuum_client.decorators import F, around, name_of
from continuum_client.ending import do_what_is_left, end_with_process, later, unless_dropped
from continuum_client.errors import ContinuumError, InvalidTag, ProgramClosed
from continuum_client.prediction import Predict, Prediction, check_predict, predicted
from continuum_client.tagging import check_id, check_seconds, check_tool
from continuum_client.tool_runs import MAX_RUNS, Tool, ToolRun, busy_seconds
from continuum_client.turns import EndedCall

if TYPE_CHECKING:
    from continuum_client.recorder import Ledger

P = ParamSpec("P")
R = TypeVar("R")


class SendingClient(Protocol):
    """A client that sends calls of a program. Its errors have openai's attribute ``status_code``."""

    base_url: Any
    _timeouts: tuple[type[BaseException], ...]
    """Exceptions that mean that the server is too slow."""

    def _models(self) -> Any:
        """Return the parsed answer to ``GET /models``, or a coroutine that returns it."""

    def _release(self, program_id: str) -> Any:
        """Send the release, or return a coroutine that sends the release."""

    def _release_blocking(self, program_id: str) -> None:
        """Send the release without an event loop."""


@dataclass(frozen=True, slots=True)
class CallTags:
    """The tags of one call, and the facts from which they were made."""

    tags: Tags
    runs: tuple[ToolRun, ...] = ()
    """The tools that ran since the previous call."""
    prediction: Prediction | None = None
    """The prediction of ``Program.predict``; None if there was none, even if ``predict=`` made one."""


class Program:
    """One run of an agent. ``client.program()`` makes it; use it with ``with`` or ``async with``.

    A program can be used in many threads and tasks. ``id`` is the program id that the server sees.
    """

    def __init__(
        self,
        program_id: str | None,
        clock: Callable[[], float],
        make: Callable[..., Program],
        predict: Predict | None = None,
        parent: Program | str | None = None,
        output_tokens: int | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        if output_tokens is not None and (isinstance(output_tokens, bool) or output_tokens < 1):
            raise InvalidTag(f"output_tokens {output_tokens!r}: must be at least 1")
        fault = None if metadata is None else metadata_fault(metadata)
        if fault is not None:
            raise InvalidTag(f"metadata: {fault}")
        above = current_program() if parent is None else parent
        parent_id = above.id if isinstance(above, Program) else above
        self.id: str = uuid.uuid4().hex if program_id is None else check_id(program_id)
        self.parent_id = None if parent_id is None else check_id(parent_id, "parent id")
        self.output_tokens = output_tokens
        self.metadata = dict(metadata) if metadata else None
        """What the user noted about the program, for its record; never sent."""
        self.ledger: Ledger | None = None
        """Records the turns; None: they are not recorded."""
        self.home: SendingClient | None = None
        """The client that opened the program."""
        self.pid = os.getpid()
        """The process that opened the program."""
        self._clock = clock
        self._predict = check_predict(predict)
        self._name = program_id
        self._make = make
        self._options = {"predict": predict, "parent": parent, "output_tokens": output_tokens, "metadata": metadata}
        self._lock = threading.Lock()
        self._entry: current.Entry | None = None
        self._closed = False
        self._clients: dict[str, SendingClient] = {}
        """The clients that sent calls of this program, by base URL."""
        self._sent_last = False
        self._last_step = False
        self._prediction: Prediction | None = None
        self._kv_ttl_s: float | None = None
        self._expected: dict[str, float] = {}
        self._runs: list[ToolRun] = []
        self._turns = itertools.count()

    def __repr__(self) -> str:
        return f"<Program {self.id!r}{' closed' if self._closed else ''}>"

    def __call__(self, function: F) -> F:
        """Decorate a function, ``@client.program("name", ...)``: each call of it is a program of its own, with these
        options. Its id is the name and eight random digits, or random if there is no name."""

        def another() -> Program:
            name = None if self._name is None else f"{self._name}-{uuid.uuid4().hex[:8]}"
            program = self._make(name, **self._options)
            program.home = self.home
            return program

        return around(function, another, Program._paused)

    # ------------------------------------------------------------------------- called by the agent

    @property
    def closed(self) -> bool:
        return self._closed

    def last_step(self) -> None:
        """Tell the server with the next call that it is the program's last, so that the KV cache is not pinned.

        Few agents know this before they see the reply. All others just close the program.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._open()
        self._last_step = True

    def predict(self, tool: str, seconds: float | None = None, p90: float | None = None) -> None:
        """Predict which tool will run after the next call. The hint is sent with that call.

        Args:
            tool: the tool's name.
            seconds: how long the tool is expected to take. Default: the tool's latest ``tool(..., expect_s=)``.
            p90: the 90th percentile of the tool's time in seconds.

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

        As the decorator ``@p.tool`` it measures each call of a function, under the function's name.

        Args:
            name: the tool's name.
            expect_s: seconds that the tool is expected to take; a later ``predict(name)`` without seconds uses it.

        Raises:
            InvalidTag: a name or a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        if callable(name):
            own = check_tool(name_of(name))
            return around(name, lambda: self.tool(own))
        self._open()
        checked = check_tool(name)
        if expect_s is not None:
            self._expected[checked] = check_seconds(expect_s, "expect_s")
        return Tool(checked, self._ran, self._clock, self.id)

    def ran(self, name: str, seconds: float, ended_ago_s: float = 0.0) -> None:
        """Report a tool that was measured elsewhere, for example by a framework. The next call sends its name and time.

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

    def kv_ttl(self, seconds: float) -> None:
        """Ask for a soft hold after the next call: beyond the policy's own hold, the server keeps the KV cache for this
        many seconds as long as no other request wants the memory.

        Raises:
            InvalidTag: a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        self._open()
        self._kv_ttl_s = check_seconds(seconds, "kv_ttl")

    def child(self, program_id: str | None = None, **options: Any) -> Program:
        """Open a program for a sub-agent; this program is its parent. Options are those of ``client.program``.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._open()
        child = self._make(program_id, **{"parent": self, **options})
        child.home = self.home
        return child

    def _open(self) -> None:
        if self._closed:
            raise ProgramClosed(f"program {self.id!r} is closed")

    def _ran(self, run: ToolRun) -> None:
        with self._lock:
            if len(self._runs) < MAX_RUNS:
                self._runs.append(run)

    # ------------------------------------------------------------------------- called by the client

    def record_in(self, ledger: Ledger) -> None:
        """Record the turns in ``ledger`` until the program is closed or garbage collected, or the process exits."""
        self.ledger = ledger
        weakref.finalize(self, later, ledger.cut).atexit = False

    def end_turn(self, ended: EndedCall) -> None:
        """Record a call that has ended."""
        if self.ledger is not None:
            self.ledger.end_turn(ended)

    def take(self) -> CallTags:
        """Return the tags of a call that is about to be sent.

        Tools, prediction, hints and last step are then forgotten, because only one call sends them.
        """
        do_what_is_left()
        with self._lock:
            runs, last, own, kv_ttl_s = tuple(self._runs), self._last_step, self._prediction, self._kv_ttl_s
            number = next(self._turns)
            self._runs, self._last_step, self._prediction, self._kv_ttl_s = [], False, None, None
        prediction = predicted(self._predict, runs) if own is None and self._predict is not None else own
        slowest = max(runs, key=lambda run: run.duration_s, default=None)
        tags = Tags(
            program_id=self.id,
            parent_id=self.parent_id,
            is_last_step=True if last else None,
            pred_tool=prediction.tool if prediction else None,
            pred_tool_s=prediction.seconds if prediction else None,
            pred_tool_p90_s=prediction.p90 if prediction else None,
            last_func_call=slowest.name if slowest else None,
            last_tool_duration_s=round(busy_seconds(runs), 6) if slowest else None,
            turn_id=f"{number}-{uuid.uuid4().hex[:8]}",  # a forked process counts from the same number
            kv_ttl_s=kv_ttl_s,
        )
        return CallTags(tags, runs, own)

    def give_back(self, taken: CallTags) -> None:
        """Take back the tags of a call that has failed: tools, prediction, hints and last step go to the next call."""
        with self._lock:
            self._runs[:0] = taken.runs
            self._last_step = self._last_step or bool(taken.tags.is_last_step)
            self._prediction = self._prediction or taken.prediction
            if self._kv_ttl_s is None:
                self._kv_ttl_s = taken.tags.kv_ttl_s

    def carried_by(self, url: str, client: SendingClient | None, taken: CallTags) -> None:
        """Note that ``client`` sends a call with these tags to the base URL ``url``; None: to a server that refuses our
        fields, and so holds nothing that could be released."""
        end_with_process(self)
        if client is not None:
            self._clients[url] = client
        self._sent_last = bool(taken.tags.is_last_step)

    def refused_by(self, url: str) -> None:
        """Note that the server has refused the fields of the latest call."""
        self._clients.pop(url, None)

    def passed_on(self, last_step: bool) -> None:
        """Note that the tags were passed to a framework. The client that opened the program then has to release it."""
        if self.home is not None:
            end_with_process(self)
            self._clients.setdefault(str(self.home.base_url), self.home)
        self._sent_last = last_step

    # --------------------------------------------------------------------------------- entering, closing

    def __enter__(self) -> Program:
        self._open()
        if self._entry is not None:
            raise ContinuumError(
                f"program {self.id!r} is entered already; in another thread or task use p.active() or p.bind()"
            )
        if current.in_generator():
            raise ContinuumError(
                f"program {self.id!r} is entered in a generator, so it would also be current in the code that steps "
                "it: decorate the generator with @client.program, or surround its calls with p.active()"
            )
        threads.begin()
        self._entry = current.enter(self)
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        self._leave()
        unless_dropped(kind, self.close)

    async def __aenter__(self) -> Program:
        return self.__enter__()

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        self._leave()
        generator = sys._getframe(1).f_code.co_flags & inspect.CO_ASYNC_GENERATOR
        if kind is GeneratorExit and not generator:  # a coroutine that is dropped cannot wait
            later(self.close)
        else:
            await self.aclose()

    def _leave(self) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            current.leave(entry)

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Surround code that runs between two steps of a decorated generator."""
        self._leave()
        try:
            yield
        finally:
            self._entry = current.enter(self)

    @contextlib.contextmanager
    def active(self) -> Iterator[Program]:
        """Make the program current in a ``with`` block, and keep it open afterwards. For threads with many programs.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._open()
        threads.begin()
        entry = current.enter(self)
        try:
            yield self
        finally:
            current.leave(entry)

    def bind(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function that calls ``function`` as part of this program, in any thread.

        The returned function raises ``ProgramClosed`` if the program is closed by then.
        """

        @functools.wraps(function)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.active():
                return function(*args, **kwargs)

        return bound

    def close(self) -> None:
        """End the program: complete its record, and make the server release its KV cache if the dialect has a release.

        Never raises, and has no effect on a closed program. A server that does not answer costs at most two seconds.
        With an ``AsyncOpenAI`` a task of the running event loop, if there is one, sends the release;
        ``await p.aclose()`` waits for it.
        """
        for client in self._end():
            if current.running_loop() is not None:
                _in_background(client, self.id)
            else:
                client._release_blocking(self.id)

    async def aclose(self) -> None:
        """End the program like ``close()``, but wait until an ``AsyncOpenAI`` has sent the release."""
        for client in self._end():
            sent = client._release(self.id)
            if sent is not None:
                await sent

    def handoff(self) -> str:
        """End the program in this process without a release, so that another process or service can continue it.

        Returns:
            A text for ``client.resume()`` in the other process. It contains the ids and the metadata.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._open()
        self.forget()
        return json.dumps({"program_id": self.id, "parent_id": self.parent_id, "metadata": self.metadata})

    def forget(self) -> None:
        """Close the program without a release, because the agent may still continue it."""
        self._end()

    def cut(self) -> None:
        """Complete the record, without the replies that are still being received."""
        if self.ledger is not None:
            self.ledger.cut()

    def _end(self) -> list[SendingClient]:
        """Close the program. Return the clients that have to send its release."""
        do_what_is_left()
        with self._lock:
            if self._closed:
                return []
            self._closed = True
            clients = [] if self._sent_last else list(self._clients.values())
            self._clients = {}
        if self.ledger is not None:
            self.ledger.finish(self._runs)
        return clients


_background: set[Any] = set()


def _in_background(client: SendingClient, program_id: str) -> None:
    """Send a release in a task of the running event loop; or without the loop, if the loop ends before."""
    sending = client._release(program_id)
    if sending is None:
        return

    def done(task: Any) -> None:
        _background.discard(task)
        if task.cancelled():
            client._release_blocking(program_id)

    task = current.running_loop().create_task(sending)
    _background.add(task)
    task.add_done_callback(done)


def current_program() -> Program | None:
    """Return the open program to which calls made here belong; None outside any program."""
    entry = current.current_entry()
    return None if entry is None else entry.program


def tool(function: F) -> F:
    """Measure a function as a tool of the current program, under the function's name: ``@tool``.

    Outside any program the function just runs.
    """
    name = check_tool(name_of(function))

    def block() -> Any:
        program = current_program()
        return contextlib.nullcontext() if program is None else program.tool(name)

    return around(function, block)
