"""What can go wrong, and how it is told.

::

    ContinuumError
    ├── InvalidTag      (also ValueError)    an id, a tool's name or a number of seconds that cannot be sent
    ├── UnknownDialect  (also ValueError)
    └── ProgramClosed   (also RuntimeError)  a closed program was told something

These are mistakes in the agent's own code and are raised where they are made, before anything is sent. What goes wrong
later (a server that refuses tags, a full disk, a predictor that fails) is a ``ContinuumWarning``, once each: the agent
goes on.
"""

from __future__ import annotations

import logging
import threading
import warnings

logger = logging.getLogger("continuum_client")


class ContinuumError(Exception):
    """Base of this package's errors."""


class InvalidTag(ContinuumError, ValueError):
    """A value that cannot be sent; the message names it and says what is allowed."""


class UnknownDialect(ContinuumError, ValueError):
    """No dialect of that name; the message lists the known ones."""


class ProgramClosed(ContinuumError, RuntimeError):
    """A closed program was told of a tool, a prediction or a last step."""


class ContinuumWarning(UserWarning):
    """Something of ours does not work and was switched off; the agent goes on without it."""


MAX_WARNINGS = 1000
"""Different ones in a process; what goes wrong in ever new ways is not told of after that."""


class Once:
    """Remembers what has been warned of."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def warn(self, key: str, message: str) -> None:
        """Warn, unless it was done for ``key``. Never raises: where a filter makes errors of warnings, it is logged."""
        with self._lock:
            if key in self._told or len(self._told) >= MAX_WARNINGS:
                return
            self._told.add(key)
        try:
            warnings.warn(message, ContinuumWarning, stacklevel=2)
        except ContinuumWarning:
            logger.warning(message)

    def forget(self) -> None:
        """Warn of everything again."""
        self._told.clear()


once = Once()
"""The process's: one warning for each thing, however many clients there are."""
