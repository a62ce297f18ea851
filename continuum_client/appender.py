"""Files to which several threads and processes append lines.

The files contain whole lines only, even after one of the processes was killed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: one process at a time
    fcntl = None  # type: ignore[assignment]

STEP_BYTES = 64 * 1024


class SharedLines:
    """A file of lines. Each append locks the file, so lines of several processes never mix.

    Args:
        path: the file. If it does not exist or is empty, ``first_line`` is written to it.
        first_line: without its line end.
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
        with self.locked():
            pass

    def _open(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(self._path, flags, 0o644)

    def locked(self) -> Exclusive:
        """Lock the file and cut off an incomplete last line: ``with shared.locked() as held``."""
        if os.getpid() != self._pid:
            self._open()  # in a forked process, which must not share the parent's lock
        return Exclusive(self)

    def _enter(self) -> Held:
        self._lock.acquire()
        try:
            _lock_file(self._fd)
            held = Held(self._fd, self._seen_bytes)
            if held.size == 0 and self._first_line:
                held.write(self._first_line + b"\n")
        except BaseException:
            self._leave(None)
            raise
        return held

    def _leave(self, held: Held | None) -> None:
        try:
            if held is not None:
                self._seen_bytes = held.seen
                if self._durable:
                    os.fsync(self._fd)
        finally:
            _unlock_file(self._fd)
            self._lock.release()

    def append(self, lines: bytes) -> None:
        """Append whole lines with their line ends: all of them or none."""
        with self.locked() as held:
            held.write(lines)

    def close(self) -> None:
        os.close(self._fd)


class Exclusive:
    """Context manager that locks the file. A class, because a generator takes longer than all the system calls."""

    __slots__ = ("_held", "_shared")

    def __init__(self, shared: SharedLines) -> None:
        self._shared = shared
        self._held: Held | None = None

    def __enter__(self) -> Held:
        self._held = self._shared._enter()
        return self._held

    def __exit__(self, *_: object) -> None:
        self._shared._leave(self._held)


class Held:
    """The file while it is locked."""

    def __init__(self, fd: int, seen: int) -> None:
        self._fd = fd
        self.seen = seen
        """Bytes at the start of the file that this process has read or written; other processes wrote the rest."""
        self.size = self._mend(os.fstat(fd).st_size)

    def _mend(self, size: int) -> int:
        """Cut off an incomplete last line that a killed process left. Returns the size of the file in bytes."""
        if size == 0 or self._read(size - 1, 1) == b"\n":
            return size
        end = size
        while end > 0:
            start = max(0, end - STEP_BYTES)
            found = self._read(start, end - start).rfind(b"\n")
            end = start + found + 1
            if found >= 0:
                break
        os.ftruncate(self._fd, end)
        return end

    def _read(self, start: int, count: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._fd, count, start)
        os.lseek(self._fd, start, os.SEEK_SET)
        return os.read(self._fd, count)

    def unread(self) -> Iterator[bytes]:
        """The lines that other processes have written since this one last read or wrote."""
        rest = b""
        self.seen = min(self.seen, self.size)
        while self.seen < self.size:
            chunk = self._read(self.seen, min(STEP_BYTES, self.size - self.seen))
            if not chunk:
                break
            self.seen += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines

    def write(self, lines: bytes) -> None:
        """Append ``lines``. If a write fails half-way, the part that was written is removed."""
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


def _lock_file(fd: int) -> None:
    if fcntl is not None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            return


def _unlock_file(fd: int) -> None:
    if fcntl is not None:
        try:
            fcntl.flock(fd, fcntl.LOCK_UN)
        except OSError:
            return


class Presence:
    """Shows other processes that this one is writing to a directory, until it exits or closes.

    Args:
        path: the file that is locked for this.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        self.alone = self._try_exclusive()
        """No other process was writing to the directory. Always False on Windows, which has no such lock."""

    def _try_exclusive(self) -> bool:
        if fcntl is None:
            return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def share(self) -> None:
        """Allow other processes to open the directory, too."""
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._fd)
