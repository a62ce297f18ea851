"""The lock on a directory of runs, into which only one command at a time writes."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from continuum_analysis.compare.runs import SWEEP
from continuum_traces.json_io import RunDirError

LOCK = ".lock"


@contextmanager
def locked(folder: Path, other: str = SWEEP) -> Iterator[None]:
    """Lock ``folder`` for the block, and create it if it is missing. The lock ends with the process that holds it.

    Args:
        folder: the directory.
        other: the file that marks a directory of the other kind: of a sweep, for a directory of runs.

    Raises:
        RunDirError: another command holds the lock, the folder is of the other kind, or it cannot be written.
    """
    if (folder / other).exists():
        raise RunDirError(f"{folder}: holds {'a sweep' if other == SWEEP else 'a run'} already; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunDirError(f"{folder}: cannot create: {error.strerror}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise RunDirError(f"{folder}: another run is writing there; choose another --out") from error
    try:
        yield
    finally:
        os.close(handle)
