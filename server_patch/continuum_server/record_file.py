"""The file that holds a scheduler's record. One process at a time can write it, and it stays readable if a write fails.
Statistics files are locked in the same way.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from continuum_traces.appender import end_of_last_line
from continuum_traces.json_io import RunDirError
from continuum_traces.records.run_dir import EVENTS

from continuum_server.log_once import LogOnce

PATIENCE_S = 5.0
"""How long a new server waits for a server that is being stopped to unlock its files."""


class RecordFile:
    """``scheduler_timestamps.jsonl`` in a folder, to which whole lines are appended.

    Each write first removes an incomplete last line. If the file was deleted or moved away, a new file is begun.

    Raises:
        RunDirError: the folder cannot be created or written, or another process writes this record.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS
        self._fd = lock(self.path)
        self.warn = LogOnce()

    def append(self, lines: bytes) -> int:
        """Append lines as far as the disk takes them, and return the number of whole lines that were written.

        Raises:
            OSError, RunDirError: the file cannot be checked, or a new file cannot be begun; nothing was written.
        """
        self._stay_at_path()
        end = end_of_last_line(self._fd)
        os.ftruncate(self._fd, end)
        written = 0
        try:
            while written < len(lines):
                written += os.pwrite(self._fd, lines[written:], end + written)
        except OSError as error:
            self.warn_not_written(error.strerror or error)
        return lines.count(b"\n", 0, written)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._fd)

    def warn_not_written(self, error: object) -> None:
        self.warn("write", "cannot write %s (%s); serving goes on, further losses are only counted", self.path, error)

    def _stay_at_path(self) -> None:
        """Begin a new file if the open file is no longer at ``path``, where readers look for it."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.fstat(self._fd), self.path.stat()):
                return
        fd = lock(self.path)
        self.warn("gone", "%s was deleted or moved away; a new file is begun (logged once)", self.path)
        self.close()
        self._fd = fd


def check_writable(path: Path) -> None:
    """Check that a server can write a file, and that no other server writes it. Its folder is created.

    Raises:
        RunDirError: the file cannot be written, or another server still writes it after ``PATIENCE_S``.
    """
    os.close(lock(path, PATIENCE_S))


def lock_of(path: Path) -> Path:
    """Return the file that is locked for a file that is replaced at each write. (A record is locked itself.)"""
    return path.with_name(f"{path.name}.lock")


def lock(path: Path, patience_s: float = 0.0) -> int:
    """Open a file, which is created if it does not exist, and lock it for this process. Return its descriptor.

    Raises:
        RunDirError: the file cannot be written, or another process has locked it for more than ``patience_s``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # it has digests of API keys
    except OSError as error:
        raise RunDirError(f"{path}: cannot write: {error.strerror}") from error
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError as error:
            if patience_s <= 0:
                os.close(fd)
                raise RunDirError(f"{path}: another server writes this file; stop it or choose another") from error
        time.sleep(0.1)
        patience_s -= 0.1
