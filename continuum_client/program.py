"""``Program``, one run of an agent.

Every call that is made in the body of ``with client.program(...)``, or in coroutines and tasks that are started there,
belongs to the program (see ``current``); threads: ``bind``, ``active``, or ``instrument()``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, overload

from continuum_traces.schema import Metadata

from continuum_client import current
from continuum_client.decorators import F, around, name_of
from continuum_client.ending import later, unless_dropped
from continuum_client.errors import ContinuumError, once
from continuum_client.own_requests import Sender
from continuum_client.state import TaggedProgram
from continuum_client.tagging import check_seconds, check_tool
from continuum_client.tools import Predict, Prediction, Tool, ToolRun, tags_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from continuum_client.options import ClientState

_INTERLEAVED = (
    "program {!r} is left while program {!r}, which was entered inside it, is current. If both are entered in "
    "generators, calls between their steps belong to the wrong program: decorate the generators with @client.program, "
    "or surround the calls with p.active()"
)

P = ParamSpec("P")
R = TypeVar("R")


class ProgramArguments(TypedDict, total=False):
    """The options of a program. ``client.OpenAI.program`` describes them."""

    predict: Predict | None
    parent: Program | str | None
    output_tokens: int | None
    metadata: Metadata | None


class Program:
    """One run of an agent. ``client.program()`` makes it; use it with ``with`` or ``async with``.

    A program can be used in many threads and tasks. ``id`` is the program id that the server sees.
    """

    def __init__(
        self, client: ClientState, home: Sender | None, program_id: str | None, **options: Unpack[ProgramArguments]
    ) -> None:
        parent = options.get("parent")
        parent = current_program() if parent is None else parent
        self._state = TaggedProgram(
            client,
            home,
            program_id,
            parent.id if isinstance(parent, Program) else parent,
            options.get("predict"),
            options.get("output_tokens"),
            options.get("metadata"),
        )
        self.id: str = self._state.id
        self.parent_id = self._state.parent_id
        self._client, self._home, self._name, self._options = client, home, program_id, options
        self._entry: current.Entry | None = None

    def __repr__(self) -> str:
        return f"<Program {self.id!r}{' closed' if self.closed else ''}>"

    def __call__(self, function: F) -> F:
        """Decorate a function, ``@client.program("name", ...)``: each call of it is a program of its own, with these
        options. Its id is the name and eight random digits, or random if there is no name."""

        def another() -> Program:
            name = None if self._name is None else f"{self._name}-{uuid.uuid4().hex[:8]}"
            return Program(self._client, self._home, name, **self._options)

        return around(function, another, Program._paused)

    @property
    def closed(self) -> bool:
        return self._state.closed

    # ------------------------------------------------------------------------- what the next call says

    def last_step(self) -> None:
        """Tell the server with the next call that it is the program's last, so that the KV cache is not pinned.

        Few agents know this before they see the reply. All others just close the program.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._state.require_open()
        self._state.set_tags(is_last_step=True)

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
        self._state.require_open()
        seconds = self._state.expected.get(tool) if seconds is None else seconds
        self._state.set_tags(**tags_of(Prediction(tool, seconds, p90)))

    @overload
    def tool(self, name: F, /) -> F: ...

    @overload
    def tool(self, name: str, expect_s: float | None = None, tell: bool = False) -> Tool: ...

    def tool(self, name: Any, expect_s: float | None = None, tell: bool = False) -> Any:
        """Measure a tool: ``with p.tool("pytest"): ...``. The next call sends its name and its time to the server.

        As the decorator ``@p.tool`` it measures each call of a function, under the function's name.

        Args:
            name: the tool's name.
            expect_s: seconds that the tool is expected to take; a later ``predict(name)`` without seconds uses it.
            tell: tell our server at once when the tool starts (if ``expect_s`` is known) and when it has ended, so that
                it holds the KV cache accordingly. A synchronous client waits for both answers, for at most two seconds
                each.

        Raises:
            InvalidTag: a name or a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        if callable(name):
            checked = check_tool(name_of(name))
            return around(name, lambda: self.tool(checked))
        self._state.require_open()
        checked = check_tool(name)
        if expect_s is not None:
            self._state.expected[checked] = check_seconds(expect_s, "expect_s")
        events = (self._state.tell, self._state.expected.get(checked)) if tell else ()
        return Tool(checked, self._state.ran, self._state.clock, self.id, *events)

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
        self._state.require_open()
        end_s = self._state.clock() - check_seconds(ended_ago_s, "ended_ago_s")
        self._state.ran(ToolRun(check_tool(name), end_s - check_seconds(seconds, "seconds"), end_s))

    def kv_ttl(self, seconds: float) -> None:
        """Ask for a soft hold after the next call: beyond the policy's own hold, the server keeps the KV cache for this
        many seconds as long as no other request wants the memory.

        Raises:
            InvalidTag: a number that cannot be sent.
            ProgramClosed: the program is closed.
        """
        self._state.require_open()
        self._state.set_tags(kv_ttl_s=check_seconds(seconds, "kv_ttl"))

    # --------------------------------------------------------------------------------- whose calls are its own

    def child(self, program_id: str | None = None, **options: Any) -> Program:
        """Open a program for a sub-agent; this program is its parent. Options are those of ``client.program``.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._state.require_open()
        return Program(self._client, self._home, program_id, **{"parent": self, **options})

    def __enter__(self) -> Program:
        self._state.require_open()
        if self._entry is not None:
            raise ContinuumError(
                f"program {self.id!r} is entered already; in another thread or task use p.active() or p.bind()"
            )
        self._entry = current.enter(self)
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        self._leave(kind)
        unless_dropped(kind, self.close)

    async def __aenter__(self) -> Program:
        return self.__enter__()

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        self._leave(kind)
        if kind is GeneratorExit:  # what is dropped cannot wait
            later(self.close)
        else:
            await self.aclose()

    def _leave(self, kind: object = None) -> None:
        entry, self._entry = self._entry, None
        inner = None if entry is None else current.leave(entry)
        if inner is not None:
            message = _INTERLEAVED.format(self.id, inner.id)
            unless_dropped(kind, lambda: once.warn("interleaved", message))

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
        self._state.require_open()
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

    # --------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """End the program: complete its record, and make the server release its KV cache if the dialect has a release.

        Never raises, and has no effect on a closed program. A server that does not answer costs at most two seconds.
        With an ``AsyncOpenAI`` a task of the running event loop, if there is one, sends the release;
        ``await p.aclose()`` waits for it.
        """
        self._state.close()

    async def aclose(self) -> None:
        """End the program like ``close()``, but wait until an ``AsyncOpenAI`` has sent the release."""
        await self._state.aclose()

    def handoff(self) -> str:
        """End the program in this process without a release, so that another process or service can continue it.

        Returns:
            A text for ``client.resume()`` in the other process. It contains the ids and the metadata.

        Raises:
            ProgramClosed: the program is closed.
        """
        self._state.require_open()
        self._state.forget()
        return json.dumps(self._state.handed_over())


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
