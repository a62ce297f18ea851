"""Threads started inside a program belong to it.

Before Python 3.14 a new thread starts without its parent's context, so a call made there would go out untagged. From
the first program that is entered on, ``threading.Thread.start`` hands the starter's program to the new thread, and
``ThreadPoolExecutor.submit`` the submitter's to the work, whichever program its worker was started in. Nothing else is
touched, and nothing at all before a program is entered. ``inherit_threads(False)`` takes it back for good.

Work that reaches a thread by another way (a queue read by a thread of long standing) is that thread's, not the
sender's: send ``program.bind(function)``.
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
    """Hands one context variable down to threads.

    Args:
        variable: what is handed down.
    """

    def __init__(self, variable: ContextVar[Any]) -> None:
        self._variable = variable
        self._wanted = True
        self._patched = False

    def begin(self) -> None:
        """From now on, unless it was refused."""
        if self._wanted and not self._patched:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only who opens programs pays for it

            self._patched = True
            threading.Thread.start = self._starting(threading.Thread.start)  # type: ignore[method-assign, assignment]
            ThreadPoolExecutor.submit = self._submitting(ThreadPoolExecutor.submit)  # type: ignore[method-assign]

    def want(self, wanted: bool) -> None:
        """Allow it, or stop it: what was wrapped stays wrapped, others may have wrapped it since, and does nothing."""
        self._wanted = wanted

    def _starting(self, plain: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
        @functools.wraps(plain)
        def start(thread: threading.Thread) -> None:
            value = self._variable.get(None) if self._wanted else None
            if value is not None:
                thread.run = _carrying(self._variable, value, thread.run)  # type: ignore[method-assign]
            plain(thread)

        return start

    def _submitting(self, plain: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
        @functools.wraps(plain)
        def submit(pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            if not self._wanted:
                return plain(pool, fn, *args, **kwargs)
            value = self._variable.get(None)
            token = self._variable.set(None)  # a worker that is started now serves others too
            try:
                return plain(pool, _carrying(self._variable, value, fn), *args, **kwargs)
            finally:
                self._variable.reset(token)

        return submit


def _carrying(variable: ContextVar[Any], value: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, run with ``variable`` set to ``value``."""

    def run(*args: Any, **kwargs: Any) -> Any:
        token = variable.set(value)
        try:
            return function(*args, **kwargs)
        finally:
            variable.reset(token)

    return run
