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
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


class Inheritance:
    """Passes the value of a context variable on to threads.

    Args:
        variable: the context variable.
        current: a function that returns the value to pass on; None: no value is passed on.
    """

    def __init__(self, variable: ContextVar[Any], current: Callable[[], Any]) -> None:
        self._variable = variable
        self._current = current
        self._submits = threading.local()
        """``on``: this thread is submitting work to a pool. A worker that the pool starts then gets no program of its
        own, because it also runs the work of other programs."""
        self._wanted = True
        self._patched = False

    def begin(self) -> None:
        """Patch ``threading``, unless ``want(False)`` was called before."""
        if self._wanted and not self._patched:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - imported only if programs are used

            self._patched = True
            threading.Thread.start = self._starting(threading.Thread.start)  # type: ignore[method-assign, assignment]
            ThreadPoolExecutor.submit = self._submitting(ThreadPoolExecutor.submit)  # type: ignore[method-assign]

    def want(self, wanted: bool) -> None:
        """Turn the inheritance on or off.

        When it is off, the patches stay but do nothing, because other libraries may have patched the methods since.
        """
        self._wanted = wanted

    def _starting(self, plain: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        @functools.wraps(plain)
        def start(thread: threading.Thread) -> None:
            value = self._current() if self._wanted and not getattr(self._submits, "on", False) else None
            if value is not None:
                thread.run = _carrying(self._variable, value, thread.run)  # type: ignore[method-assign]
            plain(thread)

        return start

    def _submitting(self, plain: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        @functools.wraps(plain)
        def submit(pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if not self._wanted:
                return plain(pool, fn, *args, **kwargs)
            value = self._current()
            token = self._variable.set(None)  # from Python 3.14 on, a worker would inherit the program
            self._submits.on = True
            try:
                return plain(pool, _carrying(self._variable, value, fn), *args, **kwargs)
            finally:
                self._submits.on = False
                self._variable.reset(token)

        return submit


def _carrying(variable: ContextVar[Any], value: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``function`` while ``variable`` has the value ``value``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        token = variable.set(value)
        try:
            return function(*args, **kwargs)
        finally:
            variable.reset(token)

    return run
