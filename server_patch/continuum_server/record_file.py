"""The file of a record: locked for one process, and readable whatever the disk does.

Each write begins by cutting off what an earlier write left incomplete. A file that was deleted or moved away is begun
anew.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from continuum_traces.run_dir import EVENTS, RunDirError

logger = logging.getLogger("continuum")

CHUNK = 4096
"""Bytes read at a time while the file's last line is searched."""

PATIENCE_S = 5.0
"""How long a new server waits until one that was just stopped or killed unlocks its record."""


class RecordFile:
    """``scheduler_timestamps.jsonl`` of a folder, to which whole lines are added.

    Raises:
        RunDirError: the folder cannot be made or written, or another process writes there.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS
        self.lost = 0
        """Lines that were in the file when it was deleted or cut short by somebody else."""
        self._fd = _open(folder)
        self._size = _end_of_last_line(self._fd)
        self._lines = _count_lines(self._fd, self._size)
        self._warned: set[str] = set()

    def append(self, lines: bytes) -> int:
        """Add lines; returns how many of them are in the file.

        Raises:
            OSError, RunDirError: the file cannot be checked or begun anew; nothing was added.
        """
        self._stay_at_path()
        self._cut_at_last_line()
        kept = self._add(lines)
        self._lines += kept
        return kept

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._fd)

    def warn(self, kind: str, message: str) -> None:
        """Log a message, once for each kind of trouble."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("continuum: %s", message)

    def warn_not_written(self, error: object) -> None:
        self.warn("write", f"cannot write {self.path} ({error}); serving goes on, further losses are only counted")

    def _stay_at_path(self) -> None:
        """Begin the file anew if ours was deleted or moved away: nobody would find what is written to it."""
        ours = os.fstat(self._fd)
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(ours, self.path.stat()):
                return
        fd = _open(self.path.parent)
        gone = self._lines if ours.st_nlink == 0 else 0
        what = f"was deleted with {gone} events" if ours.st_nlink == 0 else "was moved away"
        self.warn("gone", f"{self.path} {what}; a new file is begun, further losses are only counted")
        self.close()
        self.lost += gone
        self._fd, self._lines, self._size = fd, 0, 0

    def _cut_at_last_line(self) -> None:
        """Let the file end with a whole line, whatever a failed write or another process did to it."""
        end = _end_of_last_line(self._fd)
        os.ftruncate(self._fd, end)
        if end < self._size:
            left = _count_lines(self._fd, end)
            self.warn("cut", f"{self.path} was cut short by {self._lines - left} events")
            self.lost += max(0, self._lines - left)
            self._lines = left
        self._size = end

    def _add(self, lines: bytes) -> int:
        """Write as much as the disk takes; returns the number of whole lines."""
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
    """Make the folder of a record, and see that it can be written now.

    Raises:
        RunDirError: it cannot be written, or another server still writes there after ``PATIENCE_S``.
    """
    os.close(_open(folder, PATIENCE_S))


def _open(folder: Path, patience_s: float = 0.0) -> int:
    """The record's file, made if absent, locked for this process.

    The lock is on the record itself: a lock file beside it would be one more file in every run directory.
    """
    path = folder / EVENTS
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
                raise RunDirError(f"{path}: another server writes there") from error
        time.sleep(0.1)
        patience_s -= 0.1


def _end_of_last_line(fd: int) -> int:
    """Bytes up to and including the last newline; what follows is an incomplete line."""
    position = os.fstat(fd).st_size
    while position > 0:
        start = max(0, position - CHUNK)
        newline = os.pread(fd, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def _count_lines(fd: int, end: int) -> int:
    """Lines in the first ``end`` bytes."""
    return sum(os.pread(fd, min(CHUNK, end - at), at).count(b"\n") for at in range(0, end, CHUNK))
