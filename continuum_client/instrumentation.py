"""Programs for every openai client of the process, whoever made it: ``instrument()`` and ``uninstrument()``.

Only ``instrument()`` patches other packages, and ``uninstrument()`` undoes all of it:

- ``request`` of openai's two client classes sends requests with tags. The clients themselves are not changed.
- ``threading.Thread.start`` passes the program of the starting thread to the new thread, and
  ``ThreadPoolExecutor.submit`` passes the submitter's program to the work, whichever thread runs it: before Python 3.14
  a thread does not inherit its parent's context variables. Work that reaches a running thread in another way, for
  example through a queue, does not belong to the sender's program: send ``program.bind(function)``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import openai

from continuum_client import current
from continuum_client.ending import close_all
from continuum_client.options import ClientOptions, ClientState, OptionArguments
from continuum_client.own_requests import run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from continuum_client.program import Program, ProgramArguments

Plain = Callable[[Any], Callable[..., Any]]
"""From an instance to its method as it was before the patch."""
_INHERITED = object()


class Patch:
    """A method of a class that was replaced.

    Args:
        owner: the class.
        name: the method's name.
        make: makes the new method.
    """

    def __init__(self, owner: type[Any], name: str, make: Callable[[Plain], Callable[..., Any]]) -> None:
        self._owner, self._name = owner, name
        self._before = vars(owner).get(name, _INHERITED)
        self._on = True
        patched = make(self._plain)

        @functools.wraps(getattr(owner, name))
        def method(instance: Any, /, *args: Any, **kwargs: Any) -> Any:
            return patched(instance, *args, **kwargs) if self._on else self._plain(instance)(*args, **kwargs)

        self._method = method
        setattr(owner, name, method)

    def _plain(self, instance: Any) -> Any:
        parent: Any = super(self._owner, instance)
        return (
            getattr(parent, self._name) if self._before is _INHERITED else self._before.__get__(instance, self._owner)
        )

    def undo(self) -> bool:
        """Restore the method, and return whether it was restored. If another library has replaced it since, our patch
        stays below, but does nothing."""
        self._on = False
        if vars(self._owner).get(self._name) is not self._method:
            return False
        delattr(self._owner, self._name)
        if self._before is not _INHERITED:
            setattr(self._owner, self._name, self._before)
        return True


class Instrumentation:
    """The tagging of all openai clients of the process; made by ``instrument()``."""

    def __init__(self, state: ClientState) -> None:
        self._state = state

    def program(self, program_id: str | None = None, **options: Unpack[ProgramArguments]) -> Program:
        """Open a program, like ``client.program`` of our own clients."""
        return self._state.program(program_id, **options)

    def end(self) -> None:
        """Close the programs that were opened for conversations. A forked process leaves this to its parent."""
        close_all(self._state.forget_conversations())


def _requesting(state: ClientState, plain: Plain) -> Callable[..., Any]:
    def request(client: Any, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> Any:
        from continuum_client.sending import send_tagged  # noqa: PLC0415 - it may be what imports openai just now

        if hasattr(client, "_continuum"):  # our own clients tag their requests
            return plain(client)(cast_to, options, stream=stream, stream_cls=stream_cls)
        sending = send_tagged(state, None, client, plain(client), cast_to, options, stream, stream_cls)
        return sending if isinstance(client, openai.AsyncOpenAI) else run(sending)

    return request


def _starting(plain: Plain) -> Callable[..., Any]:
    def start(thread: Any) -> None:
        entry = current.current_entry()
        if entry is not None:
            thread.run = _carrying(entry, thread.run)
        plain(thread)()

    return start


def _submitting(plain: Plain) -> Callable[..., Any]:
    def submit(pool: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        entry = current.current_entry()
        token = current.variable.set(None)  # a worker that is started here belongs to no program: it runs many's work
        try:
            return plain(pool)(_carrying(entry, function), *args, **kwargs)
        finally:
            current.variable.reset(token)

    return submit


def _carrying(entry: current.Entry | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``function`` while ``entry`` is the current program's."""

    def carrying(*args: Any, **kwargs: Any) -> Any:
        token = current.variable.set(entry)
        try:
            return function(*args, **kwargs)
        finally:
            current.variable.reset(token)

    return carrying


_active: list[Instrumentation] = []
"""The instrumentation of this process, if there is one."""
_patches: list[Patch] = []
"""The patches that were not undone, oldest first."""


def instrument(**options: Unpack[OptionArguments]) -> Instrumentation:
    """Tag and record the calls of every openai client in the process, also of clients that exist already.

    Our own clients keep their options. Each conversation outside any program becomes a program, which is released when
    the process ends. Threads that are started inside a program, and work that is submitted to a ``ThreadPoolExecutor``
    there, belong to the program. A second ``instrument()`` replaces the options of the first.

    Args:
        options: as for ``OpenAI``: dialect, record, content, predict, implicit. ``CONTINUUM_DIALECT``,
            ``CONTINUUM_RECORD`` and ``CONTINUUM_CONTENT`` in the environment are the defaults of the first three.

    Returns:
        An object whose method ``program()`` opens a program.

    Raises:
        UnknownDialect: no dialect has that name.
        ValueError: no ``content`` has that name, or the directory is already recorded with another ``content``.
    """
    state = ClientState(ClientOptions(**options))
    uninstrument()
    _active.append(Instrumentation(state))
    requesting = functools.partial(_requesting, state)
    _patches.extend(Patch(cls, "request", requesting) for cls in (openai.OpenAI, openai.AsyncOpenAI))
    _patches.extend((Patch(threading.Thread, "start", _starting), Patch(ThreadPoolExecutor, "submit", _submitting)))
    return _active[-1]


def uninstrument() -> None:
    """Undo all of ``instrument()``: restore openai's classes and Python's threads, and release the programs that were
    opened for conversations.

    Never raises, and has no effect if no ``instrument()`` came before.
    """
    for patch in reversed([*_patches]):
        if patch.undo():
            _patches.remove(patch)
    while _active:
        _active.pop().end()
