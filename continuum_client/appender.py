"""Append lines to files that several threads and processes write.

The files contain whole lines only, even after one of the processes was killed.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

STEP_BYTES = 64 * 1024
"""The number of bytes that are read at once."""


class SharedLines:
    """A file of lines. Each append locks the file, so that lines of several processes never mix. ``with lines as held``
    locks the file for several reads and writes.

    Args:
        path: the file. If it does not exist or is empty, ``first_line`` is written to it.
        first_line: the first line, with its line end.
        durable: wait until each append is on disk, so that a power cut loses nothing.

    Raises:
        OSError: the file cannot be opened or written. All methods raise it.
    """

    def __init__(self, path: Path, first_line: bytes = b"", durable: bool = False) -> None:
        self._path = path
        self._first_line = first_line
        self._durable = durable
        self._seen_bytes = 0
        self._open()
        with self:
            pass

    def _open(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: Held | None = None
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> Held:
        """Lock the file and cut off an incomplete last line."""
        if os.getpid() != self._pid:
            self._open()  # a forked process must not share the lock of its parent
        self._lock.acquire()
        try:
            _flock(self._fd, fcntl.LOCK_EX)
            held = Held(self._fd, self._seen_bytes)
            if held.size == 0 and self._first_line:
                held.write(self._first_line)
        except BaseException:
            self.__exit__()
            raise
        self._held = held
        return held

    def __exit__(self, *_: object) -> None:
        held, self._held = self._held, None
        try:
            if held is not None:
                self._seen_bytes = held.seen
                if self._durable:
                    os.fsync(self._fd)
        finally:
            _flock(self._fd, fcntl.LOCK_UN)
            self._lock.release()

    def append(self, lines: bytes) -> None:
        """Append whole lines with their line ends: all of them or none."""
        with self as held:
            held.write(lines)

    def close(self) -> None:
        """Close the file, after the append that is under way."""
        with self._lock:
            os.close(self._fd)


class Held:
    """The file while it is locked."""

    def __init__(self, fd: int, seen: int) -> None:
        self._fd = fd
        self.seen = seen
        """Bytes at the start of the file that this process has read or written; other processes wrote the rest."""
        self.size = self._mend(os.fstat(fd).st_size)

    def _mend(self, size: int) -> int:
        """Cut off an incomplete last line that a killed process left. Return the size of the file in bytes."""
        if size == 0 or os.pread(self._fd, 1, size - 1) == b"\n":
            return size
        end = size
        while end > 0:
            start = max(0, end - STEP_BYTES)
            newline = os.pread(self._fd, end - start, start).rfind(b"\n")
            end = start + newline + 1
            if newline >= 0:
                break
        os.ftruncate(self._fd, end)
        return end

    def unread(self) -> Iterator[bytes]:
        """Yield the lines that other processes have written since this process last read or wrote."""
        rest = b""
        self.seen = min(self.seen, self.size)
        while self.seen < self.size:
            chunk = os.pread(self._fd, min(STEP_BYTES, self.size - self.seen), self.seen)
            if not chunk:
                break
            self.seen += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines

    def write(self, lines: bytes) -> None:
        """Append ``lines``. If a write fails, the part that was already written is removed."""
        read_all = self.seen == self.size
        written = 0
        try:
            while written < len(lines):
                written += os.write(self._fd, lines[written:])
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size += written
        if read_all:
            self.seen = self.size


def _flock(fd: int, flags: int) -> bool:
    """Lock or unlock a file with flags of the module ``fcntl``.

    Returns:
        Whether that was possible. Some file systems have no locks.
    """
    try:
        fcntl.flock(fd, flags)
    except OSError:
        return False
    return True


class Presence:
    """A lock by which other processes see that this process writes to a directory, until it exits or closes the lock.

    Args:
        path: the file to lock.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.alone = _flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        """Whether no other process was writing to the directory; False if its file system has no locks."""

    def share(self) -> None:
        """Allow other processes to write to the directory too."""
        _flock(self._fd, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._fd)
