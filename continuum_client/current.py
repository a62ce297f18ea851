"""Know the current program: a context variable, which coroutines and tasks inherit; threads do not.

A generator has no context of its own: it runs in that of the code that steps it, so a program that is entered in one is
current there too, between two steps. ``@client.program`` decorates generators such that it is not.
"""

from __future__ import annotations

import sys
import threading
import weakref
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continuum_client.program import Program


@dataclass(eq=False)
class Entry:
    """The entering of a program. It counts until the program is left or closed."""

    program: Program
    outer: Entry | None
    """The entry that was current before."""
    left: bool = False
    thread: int = field(default_factory=lambda: threading.get_ident())
    """The thread that entered it; a greenlet's own number where gevent has patched ``threading``."""

    def __post_init__(self) -> None:
        with _lock:
            _entries.add(self)


_entries: weakref.WeakSet[Entry] = weakref.WeakSet()
"""The entries that may still count. A context that ends takes its own with it."""
_lock = threading.Lock()
variable: ContextVar[Entry | None] = ContextVar("continuum_program", default=None)


def enter(program: Program) -> Entry:
    """Make a program current."""
    entry = Entry(program, current_entry())
    variable.set(entry)
    return entry


def leave(entry: Entry) -> Program | None:
    """End an entry. It may be ended in another context.

    Returns:
        The current program, if it was entered inside the entry: calls may have belonged to the wrong one of the two.
    """
    entry.left = True
    with _lock:
        _entries.discard(entry)
    inner = current_entry()
    if variable.get() is entry:
        variable.set(inner)
    return inner.program if inner is not None and _is_inside(inner, entry) else None


def _is_inside(inner: Entry, outer: Entry) -> bool:
    entry: Entry | None = inner
    while entry is not None and entry is not outer:
        entry = entry.outer
    return entry is outer


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


def entered_elsewhere() -> Program | None:
    """Return a program that another thread or greenlet has entered and not left, or None."""
    here = threading.get_ident()
    with _lock:
        entries = list(_entries)
    return next((each.program for each in entries if each.thread != here and not each.program.closed), None)


def running_loop() -> Any:
    """Return the event loop that runs in this thread, or None, without importing asyncio."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()
