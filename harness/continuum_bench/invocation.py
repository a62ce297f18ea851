"""Facts about the running command, for the files that it writes."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path


def command_line() -> tuple[str, ...]:
    return ("continuum-bench", *sys.argv[1:])


def utc_now() -> str:
    """Return the date and time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def default_out(name: str) -> Path:
    """Return the directory of a run for which the user names none."""
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
