"""Know the current program: a context variable, which coroutines and tasks inherit (threads: ``threads``).

A generator has no context of its own: it runs in that of the code that steps it, and so would leave its program there
between two steps. Therefore a program is not entered in a generator; ``@client.program`` decorates generators. A
generator that ``contextlib`` or pytest steps is a context manager, so its program belongs to the block that it serves.
"""

from __future__ import annotations

import inspect
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continuum_client.program import Program

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_STEPS_CONTEXT_MANAGERS = ("contextlib", "_pytest", "pytest_asyncio")
"""Packages that use generators as context managers."""
_WITH = ("contextlib", "continuum_client.program")
"""Modules of the machinery of a ``with`` statement."""


@dataclass(slots=True, eq=False)
class Entry:
    """The entering of a program. It counts until the program is left or closed."""

    program: Program
    outer: Entry | None
    """The entry that was current before."""
    left: bool = False


variable: ContextVar[Entry | None] = ContextVar("continuum_program", default=None)


def enter(program: Program) -> Entry:
    """Make a program current."""
    entry = Entry(program, current_entry())
    variable.set(entry)
    return entry


def leave(entry: Entry) -> None:
    """End an entry. It may be ended in another context, and before the entries inside it."""
    entry.left = True
    if variable.get() is entry:
        variable.set(current_entry())


def current_entry() -> Entry | None:
    """Return the entry of the current program, or None. The program is open and was not left."""
    entry = variable.get()
    while entry is not None and (entry.left or entry.program.closed):
        entry = entry.outer
    return entry


def closed_here() -> Program | None:
    """Return the closed program in whose block, task or thread this code still runs, or None."""
    entry = variable.get()
    return entry.program if entry is not None and entry.program.closed else None


def in_generator() -> bool:
    """Whether the ``with`` statement that enters a program is in a generator that is no context manager."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _module(frame) not in _WITH:
            if not frame.f_code.co_flags & _GENERATOR or _module(frame) == "continuum_client.decorators":
                return False
            if frame.f_back is None or _module(frame.f_back).partition(".")[0] not in _STEPS_CONTEXT_MANAGERS:
                return True
        frame = frame.f_back
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def running_loop() -> Any:
    """Return the event loop that runs in this thread, or None, without importing asyncio."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()
