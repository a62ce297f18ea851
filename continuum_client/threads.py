"""Make threads that are started inside a program belong to that program.

Before Python 3.14 a new thread does not inherit its parent's context variables, so its calls would be sent without
tags. Therefore two methods are patched when the first program is entered: ``threading.Thread.start`` passes the program
of the starting thread to the new thread, and ``ThreadPoolExecutor.submit`` passes the submitter's program to the work,
whichever thread runs it. ``inherit_threads(False)`` turns the patches off.

Work that reaches a running thread in another way, for example through a queue, does not belong to the sender's program.
Send ``program.bind(function)`` instead of ``function``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from continuum_client import current

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_wanted = True
_patched = False


def begin() -> None:
    """Patch ``threading``, unless ``inherit_threads(False)`` was called before."""
    global _patched
    if _wanted and not _patched:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - imported only if programs are used

        _patched = True
        threading.Thread.start = _starting(threading.Thread.start)  # type: ignore[method-assign, assignment]
        ThreadPoolExecutor.submit = _submitting(ThreadPoolExecutor.submit)  # type: ignore[method-assign]


def inherit_threads(wanted: bool = True) -> None:
    """Choose whether threads that are started inside a program, and work that is submitted to a
    ``ThreadPoolExecutor`` there, belong to the program (the default).

    With ``False``, use ``p.bind(function)`` or ``contextvars.copy_context()`` for threads. The patches stay but do
    nothing, because other libraries may have patched the methods since.
    """
    global _wanted
    _wanted = wanted


def _starting(plain: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(plain)
    def start(thread: threading.Thread) -> None:
        entry = current.current_entry() if _wanted else None
        if entry is not None:
            thread.run = _carrying(entry, thread.run)  # type: ignore[method-assign]
        plain(thread)

    return start


def _submitting(plain: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(plain)
    def submit(pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not _wanted:
            return plain(pool, fn, *args, **kwargs)
        entry = current.current_entry()
        token = current.variable.set(None)  # a worker that is started here belongs to no program: it runs many's work
        try:
            return plain(pool, _carrying(entry, fn), *args, **kwargs)
        finally:
            current.variable.reset(token)

    return submit


def _carrying(entry: current.Entry | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``function`` while ``entry`` is the current program's."""

    def run(*args: Any, **kwargs: Any) -> Any:
        token = current.variable.set(entry)
        try:
            return function(*args, **kwargs)
        finally:
            current.variable.reset(token)

    return run
