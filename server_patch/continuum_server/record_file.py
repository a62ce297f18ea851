"""The file that holds a scheduler's record. One process at a time can write it, and it stays readable if a write fails.
Statistics files are locked in the same way.

Each write first removes an incomplete last line. If the file was deleted or moved away, a new file is begun.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from continuum_traces.run_dir import EVENTS, RunDirError

from continuum_server.log_once import LogOnce

CHUNK = 4096
"""Number of bytes per read."""

PATIENCE_S = 5.0
"""How long a new server waits for a server that is being stopped to unlock the record."""


class RecordFile:
    """``scheduler_timestamps.jsonl`` in a folder, to which whole lines are appended.

    Raises:
        RunDirError: the folder cannot be created or written, or another process writes this record.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS
        self.lost = 0
        """Number of lines that were lost because another process deleted or truncated the file."""
        self._fd = _open(folder)
        self._size = _end_of_last_line(self._fd)
        self._lines = _count_lines(self._fd, self._size)
        self.warn = LogOnce()

    def append(self, lines: bytes) -> int:
        """Append lines, and return how many of them were written.

        Raises:
            OSError, RunDirError: the file cannot be checked, or a new file cannot be begun; nothing was written.
        """
        self._stay_at_path()
        self._cut_at_last_line()
        written = self._write(lines)
        self._lines += written
        return written

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._fd)

    def warn_not_written(self, error: object) -> None:
        self.warn("write", "cannot write %s (%s); serving goes on, further losses are only counted", self.path, error)

    def _stay_at_path(self) -> None:
        """Begin a new file if the open file is no longer at ``path``, where readers look for it."""
        opened = os.fstat(self._fd)
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(opened, self.path.stat()):
                return
        fd = _open(self.path.parent)
        deleted = opened.st_nlink == 0
        reason = f"was deleted with {self._lines} events" if deleted else "was moved away"
        self.warn("gone", "%s %s; a new file is begun, further losses are only counted", self.path, reason)
        self.close()
        self.lost += self._lines if deleted else 0
        self._fd, self._lines, self._size = fd, 0, 0

    def _cut_at_last_line(self) -> None:
        """Truncate the file after its last newline, and count the lines that another process removed."""
        end = _end_of_last_line(self._fd)
        os.ftruncate(self._fd, end)
        if end < self._size:
            left = _count_lines(self._fd, end)
            self.warn("cut", "%s was cut short by %d events", self.path, self._lines - left)
            self.lost += max(0, self._lines - left)
            self._lines = left
        self._size = end

    def _write(self, lines: bytes) -> int:
        """Write as much as the disk takes, and return the number of whole lines."""
        written = 0
        try:
            while written < len(lines):
                written += os.pwrite(self._fd, lines[written:], self._size + written)
        except OSError as error:
            self.warn_not_written(error.strerror or error)
        whole = lines.rfind(b"\n", 0, written) + 1
        self._size += whole
        return lines.count(b"\n", 0, whole)


def check_folder(folder: Path) -> None:
    """Create the folder of a record, and check that the record can be written.

    Raises:
        RunDirError: the record cannot be written, or another server still writes it after ``PATIENCE_S``.
    """
    os.close(_open(folder, PATIENCE_S))


def check_replaced(path: Path) -> None:
    """Check that no other server writes a file that is replaced at each write.

    Raises:
        RunDirError: the file cannot be written, or another server still writes it after ``PATIENCE_S``.
    """
    os.close(lock_replaced(path, PATIENCE_S))


def lock_replaced(path: Path, patience_s: float = 0.0) -> int:
    """Lock a file that is replaced at each write, by a file ``NAME.lock`` beside it. Return the lock's descriptor."""
    return _lock(path.with_name(f"{path.name}.lock"), patience_s)


def _open(folder: Path, patience_s: float = 0.0) -> int:
    """Open and lock the record itself, because a lock file would be one more file in every run directory."""
    return _lock(folder / EVENTS, patience_s)


def _lock(path: Path, patience_s: float) -> int:
    """Open a file, which is created if it does not exist, and lock it for this process.

    Raises:
        RunDirError: the file cannot be written, or another process has locked it for more than ``patience_s``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
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


def _end_of_last_line(fd: int) -> int:
    """Return the number of bytes up to and including the last newline."""
    position = os.fstat(fd).st_size
    while position > 0:
        start = max(0, position - CHUNK)
        newline = os.pread(fd, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def _count_lines(fd: int, end: int) -> int:
    """Count the lines in the first ``end`` bytes."""
    return sum(os.pread(fd, min(CHUNK, end - at), at).count(b"\n") for at in range(0, end, CHUNK))
