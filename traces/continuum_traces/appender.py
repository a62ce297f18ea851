"""Append lines to a file that several threads and processes write.

The file contains whole lines only, even after one of the processes was killed.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STEP_BYTES = 64 * 1024
"""The number of bytes that are read at once."""


def end_of_last_line(fd: int) -> int:
    """Return the number of bytes of a file up to and including its last newline."""
    end = os.fstat(fd).st_size
    while end > 0 and os.pread(fd, 1, end - 1) != b"\n":
        start = max(0, end - STEP_BYTES)
        end = start + os.pread(fd, end - start, start).rfind(b"\n") + 1
    return end


class SharedLines:
    """A file of lines. ``with lines:`` locks the file, so that lines of several processes never mix, for any number of
    reads and writes.

    Args:
        path: the file. If it does not exist or is empty, ``first_line`` is written to it.
        first_line: the first line, with its line end.

    Raises:
        OSError: the file cannot be opened or written. All methods raise it.
    """

    def __init__(self, path: Path, first_line: bytes = b"") -> None:
        self._path = path
        self._size = 0
        """The size of the file in bytes, known while it is locked."""
        self._seen = 0
        """Bytes at the start of the file that this process has read or written; other processes wrote the rest."""
        self._first_line = first_line
        self._open()
        with self:
            pass

    def _open(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> None:
        """Lock the file and cut off an incomplete last line."""
        if os.getpid() != self._pid:
            self._open()  # a forked process must not share the lock of its parent
        self._lock.acquire()
        try:
            self._flock(fcntl.LOCK_EX)
            self._mend()
            if self._size == 0:
                self.write(self._first_line)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._flock(fcntl.LOCK_UN)
        self._lock.release()

    def _flock(self, operation: int) -> None:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(self._fd, operation)

    def _mend(self) -> None:
        """Cut off an incomplete last line that a killed process left."""
        self._size = end_of_last_line(self._fd)
        if self._size < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, self._size)

    def unread(self) -> Iterator[bytes]:
        """Yield the lines that other processes have written since this process last read or wrote."""
        rest = b""
        self._seen = min(self._seen, self._size)
        while self._seen < self._size:
            chunk = os.pread(self._fd, min(STEP_BYTES, self._size - self._seen), self._seen)
            if not chunk:
                break
            self._seen += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines

    def write(self, lines: bytes) -> None:
        """Append whole lines with their line ends: all of them or none."""
        read_all = self._seen == self._size
        written = 0
        try:
            while written < len(lines):
                written += os.write(self._fd, lines[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += written
        if read_all:
            self._seen = self._size

    def append(self, lines: bytes) -> None:
        """Lock the file and append whole lines."""
        with self:
            self.write(lines)

    def close(self) -> None:
        """Close the file, after the append that is under way."""
        with self._lock:
            os.close(self._fd)
