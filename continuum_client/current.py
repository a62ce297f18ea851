"""Know the current program: a context variable, and the generators that have entered programs.

A generator runs in the context of its caller. A program that is entered in a generator therefore belongs to that
generator's frame: the program is current while the frame is on the stack, and in tasks and threads that were started
there, but not between two steps of the generator. A generator that ``contextlib`` or pytest steps is a context manager.
A program that is entered there belongs to the ``with`` block or to the test instead.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continuum_client.program import Program

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_STEPS_FOR_OTHERS = ("contextlib", "_pytest", "pytest_asyncio")
"""Packages that use generators as context managers."""
_OURS = ("__enter__", "__aenter__", "active")
"""Functions of ``program`` that a ``with`` statement calls. Their frames are skipped, like those of ``contextlib``."""


class Entry:
    """The entering of a program. It counts until the program is left."""

    __slots__ = ("_worker", "frame", "left", "outer", "program")

    def __init__(self, program: Program, frame: FrameType | None, outer: Entry | None) -> None:
        self.program = program
        self.frame = frame
        """The generator in which the program was entered; None: it was not in a generator."""
        self.outer = outer
        """The entry that was current before."""
        self._worker = weakref.ref(_worker())
        self.left = False

    @property
    def inherited(self) -> bool:
        """Whether the current task or thread inherited the program from the one that entered it."""
        return self._worker() is not _worker()

    def counts(self, stack: set[FrameType]) -> bool:
        """Whether the program is entered here, if the generators in ``stack`` are being stepped."""
        if self.left or self.program.closed:
            return False
        return self.frame is None or self.frame in stack or self.inherited


variable: ContextVar[Entry | None] = ContextVar("continuum_program", default=None)
_in_generators: dict[FrameType, list[Entry]] = {}
"""The entries of each generator that has entered programs, innermost last."""


def enter(program: Program) -> Entry:
    """Make a program current in the ``with`` block that begins now."""
    frame = _generator()
    entry = Entry(program, frame, current_entry())
    if frame is not None:
        _in_generators.setdefault(frame, []).append(entry)
        _correct_tasks()
    variable.set(entry)
    return entry


def leave(entry: Entry) -> None:
    """End an entry. It may be ended in another context, and before the entries inside it."""
    entry.left = True
    if variable.get() is entry:
        variable.set(entry.outer)
    frame, entry.frame = entry.frame, None
    if frame is not None:
        entries = _in_generators[frame]
        entries.remove(entry)
        if not entries:
            del _in_generators[frame]


def current_entry() -> Entry | None:
    """Return the entry of the current program, or None. The program is open and was not left."""
    entry = variable.get()
    if entry is None and not _in_generators:
        return None
    stack = _stack() if _in_generators else set()
    own = _innermost(stack) if stack else None
    while entry is not None and entry is not own and not entry.counts(stack):
        entry = entry.outer
    if own is None or entry is own or _is_inside(entry, own):
        return entry
    return own


def _correct_tasks() -> None:
    """Make new tasks of the running event loop inherit the program that is current where they are started.

    A task inherits the context variable. If two generators are stepped in turn, the variable may hold the program of
    the other generator.
    """
    loop = running_loop()
    if loop is not None and not isinstance(loop.get_task_factory(), _TaskFactory):
        loop.set_task_factory(_TaskFactory(loop.get_task_factory() or _plain_task))


def _plain_task(loop: Any, coroutine: Any, **options: Any) -> Any:
    return sys.modules["asyncio"].Task(coroutine, loop=loop, **options)


class _TaskFactory:
    """Sets the context variable to the current entry, and then makes a task with the loop's own factory."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        entry = current_entry()
        if entry is not variable.get():
            variable.set(entry)
        return self._make(loop, coroutine, **options)


def closed_here() -> Program | None:
    """Return the closed program in whose ``with`` block, task or thread this code still runs, or None."""
    entry = variable.get()
    if entry is not None and entry.program.closed and (not entry.left or entry.inherited):
        return entry.program
    return None


def _is_inside(entry: Entry | None, outer: Entry) -> bool:
    while entry is not None:
        if entry is outer:
            return True
        entry = entry.outer
    return False


def _stack() -> set[FrameType]:
    """Return the generators that have entered programs and are being stepped now."""
    return {frame for frame in _frames() if frame in _in_generators}


def _innermost(stack: set[FrameType]) -> Entry | None:
    """Return the entry of an open program in the innermost generator of ``stack``, or None."""
    for frame in _frames():
        if frame in stack:
            for entry in reversed(_in_generators.get(frame, ())):
                if not entry.program.closed:
                    return entry
    return None


def _generator() -> FrameType | None:
    """Return the generator that contains the ``with`` statement; None if no generator contains it."""
    for frame in _frames():
        if not _is_with_machinery(frame):
            if not frame.f_code.co_flags & _GENERATOR:
                return None
            stepper = frame.f_back
            if stepper is None or _module(stepper).partition(".")[0] not in _STEPS_FOR_OTHERS:
                return frame
    return None


def _frames() -> Iterator[FrameType]:
    """Yield the frames on the stack, innermost first, without those of this module."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is not globals():
            yield frame
        frame = frame.f_back


def _is_with_machinery(frame: FrameType) -> bool:
    """Whether the frame belongs to the machinery of a ``with`` statement, and not to the user's code."""
    module = _module(frame)
    return module == "contextlib" or (module == "continuum_client.program" and frame.f_code.co_name in _OURS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _worker() -> Any:
    """Return the current task, or the current thread if no task runs."""
    task = None if running_loop() is None else sys.modules["asyncio"].current_task()
    return task or threading.current_thread()


def running_loop() -> Any:
    """Return the event loop that runs in this thread, or None, without importing asyncio."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()
