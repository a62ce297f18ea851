"""Warnings that are logged once, because what they are about can happen at every request."""

from __future__ import annotations

import logging
from collections.abc import Hashable

logger = logging.getLogger("continuum")

KINDS = 100
"""Number of kinds of warnings that one ``LogOnce`` logs. Further kinds are not logged."""


class LogOnce:
    """Logs the first warning of each kind."""

    def __init__(self) -> None:
        self._logged: set[Hashable] = set()

    def __call__(self, kind: Hashable, message: str, *args: object, error: Exception | None = None) -> None:
        """Log a warning; with ``error``, an error with its traceback."""
        if kind not in self._logged and len(self._logged) < KINDS:
            self._logged.add(kind)
            level = logging.WARNING if error is None else logging.ERROR
            logger.log(level, f"continuum: {message}", *args, exc_info=error)
