"""Errors and warnings of the client.

::

    ContinuumError
    ├── InvalidTag      (also ValueError)    an id, a tool's name or a number of seconds that cannot be sent
    ├── UnknownDialect  (also ValueError)    no dialect has that name
    └── ProgramClosed   (also RuntimeError)  a method was called on a program that is closed

Errors are mistakes in the agent's own code. They are raised where the mistake is made, before a request is sent. Faults
that appear later (a server that refuses tags, a full disk, a ``predict=`` that raises) never reach the agent: each is
reported once, as a ``ContinuumWarning``.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable

logger = logging.getLogger("continuum_client")
"""At DEBUG it logs what was sent, refused and released: ids, addresses and names of fields, no text."""


class ContinuumError(Exception):
    """The base of this package's errors."""


class InvalidTag(ContinuumError, ValueError):
    """A value cannot be sent. The message names the value and says what is allowed."""


class UnknownDialect(ContinuumError, ValueError):
    """No dialect has that name. The message lists the known names."""


class ProgramClosed(ContinuumError, RuntimeError):
    """A method that needs an open program was called on a closed one."""


class ContinuumWarning(UserWarning):
    """A feature of the client failed and was switched off; the agent goes on without it."""


MAX_WARNINGS = 1000
"""The number of different warnings in one process; later warnings are dropped, so that memory stays bounded."""


class Once:
    """Issues each warning once."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._lock = threading.Lock()

    def warn(self, key: str, message: str) -> None:
        """Issue a ``ContinuumWarning``, unless a warning was issued for ``key`` before.

        Never raises: if a warnings filter turns warnings into errors, the message is logged instead.
        """
        with self._lock:
            if key in self._given or len(self._given) >= MAX_WARNINGS:
                return
            self._given.add(key)
        try:
            warnings.warn(message, ContinuumWarning, stacklevel=2)
        except ContinuumWarning:
            logger.warning(message)

    def guard(self, key: str, message: str, work: Callable[[], object]) -> None:
        """Run ``work``. If it raises an ``Exception``, issue a warning with ``message`` and the exception."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - recording and predicting must not raise into the agent
            self.warn(key, f"{message}: {error!r}")


once = Once()
"""The warnings of all clients of the process."""


MAX_FAILURE_CHARS = 500
"""The part of a server's error that is recorded."""


def is_servers_fault(status: int) -> bool:
    """Whether an HTTP status says that the server, the key or the load was at fault, not what was asked."""
    return status in (401, 403, 408, 409, 429) or status >= 500
