"""Which program is current: a context variable, and the generators that have entered programs.

A generator runs in the context of whatever steps it. So a program that is entered in a generator belongs to that
generator's frame: it is current while the frame is on the stack, and in tasks and threads that were started there.
Between two steps it is not current. A generator that ``contextlib`` or pytest steps serves as a context manager, and
the ``with`` block, or the test, counts in its place.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continuum_client.program import Program

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_STEPS_FOR_OTHERS = ("contextlib", "_pytest", "pytest_asyncio")
"""Packages that step a generator as a context manager."""
_OURS = ("__enter__", "__aenter__", "active")
"""Functions of ``program`` that a ``with`` statement runs. Their frames are passed over, as those of ``contextlib``."""


class Entry:
    """A program that was entered, until it is left."""

    __slots__ = ("_worker", "frame", "left", "outer", "program")

    def __init__(self, program: Program, frame: FrameType | None, outer: Entry | None) -> None:
        self.program = program
        self.frame = frame
        """The generator in which it was entered; None: not in a generator."""
        self.outer = outer
        """What was current before."""
        self._worker = weakref.ref(_worker())
        self.left = False

    @property
    def inherited(self) -> bool:
        """It was entered by another task or thread, and has come here with the context variable."""
        return self._worker() is not _worker()

    def counts(self, stack: set[FrameType]) -> bool:
        if self.left or self.program.closed:
            return False
        return self.frame is None or self.frame in stack or self.inherited


variable: ContextVar[Entry | None] = ContextVar("continuum_program", default=None)
_in_generators: dict[FrameType, list[Entry]] = {}
"""For each generator: the programs that it has entered, innermost last."""


def enter(program: Program) -> Entry:
    """Make a program current for the ``with`` statement that is being executed."""
    frame = _generator()
    found = Entry(program, frame, current_entry())
    if frame is not None:
        _in_generators.setdefault(frame, []).append(found)
        _correct_tasks()
    variable.set(found)
    return found


def leave(entry: Entry) -> None:
    """End an entry, in whichever context and order."""
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
    """The entry of the program that is current here. It is never one that was left, or whose program is closed."""
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
    """Make the running event loop's new tasks inherit what is current where they are started.

    A task inherits the context variable. If two generators are stepped in turn, it may hold the other one's program.
    """
    asyncio = sys.modules.get("asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()
    if asyncio is None or loop is None or isinstance(loop.get_task_factory(), _TaskFactory):
        return
    loop.set_task_factory(_TaskFactory(loop.get_task_factory() or _plain_task))


def _plain_task(loop: Any, coroutine: Any, **options: Any) -> Any:
    return sys.modules["asyncio"].Task(coroutine, loop=loop, **options)


class _TaskFactory:
    """The loop's own way to make a task, after the context variable was set to what is current."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, loop: Any, coroutine: Any, **options: Any) -> Any:
        entry = current_entry()
        if entry is not variable.get():
            variable.set(entry)
        return self._make(loop, coroutine, **options)


def closed_here() -> Program | None:
    """The closed program whose block, or whose leftover task or thread, runs here; None if there is none."""
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
    """The frames of generators with programs that are being stepped now."""
    found: set[FrameType] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame in _in_generators:
            found.add(frame)
        frame = frame.f_back
    return found


def _innermost(stack: set[FrameType]) -> Entry | None:
    """The program of the generator that was stepped last, of those in ``stack``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame in stack:
            for entry in reversed(_in_generators.get(frame, ())):
                if not entry.program.closed:
                    return entry
        frame = frame.f_back
    return None


def _generator() -> FrameType | None:
    """The frame of the generator in which the ``with`` statement stands; None if it is not in a generator."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if not _is_between(frame):
            if not frame.f_code.co_flags & _GENERATOR:
                return None
            stepper = frame.f_back
            if stepper is None or _module(stepper).partition(".")[0] not in _STEPS_FOR_OTHERS:
                return frame
        frame = frame.f_back
    return None


def _is_between(frame: FrameType) -> bool:
    module = _module(frame)
    return module == "contextlib" or (module == "continuum_client.program" and frame.f_code.co_name in _OURS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _worker() -> Any:
    """The task or the thread that runs here."""
    asyncio = sys.modules.get("asyncio")
    running = asyncio is not None and asyncio._get_running_loop() is not None
    return (asyncio.current_task() if asyncio is not None and running else None) or threading.current_thread()
