"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], seconds: float = 300.0, log: Path | None = None) -> T:
    """What ``look`` gives once that is true. The limit is for a machine that is very busy; its error shows the log."""
    for _ in range(int(seconds * 50)):
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to that" if log is None else log.read_text()[-3000:])
