"""The scheduler's record on a server: written by a thread of its own, a quarter of a second behind at most.

The engine loop only appends to a queue, which is bounded. Trouble with the disk costs records, never serving: events
that are lost are counted, each kind of trouble is logged once, and the file stays readable, for every write begins by
cutting off what an earlier one left half written. A folder that was deleted or moved away is made anew.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from continuum_traces.run_dir import EVENTS, PREVIEW_EVENTS, RunDirError, compact, read_events
from continuum_traces.scheduler_timestamps import write_preview
from continuum_traces.schema import SchedulerEvent

from continuum_server.policy.turn_numbers import TurnNumbers

logger = logging.getLogger("continuum")

FLUSH_S = 0.25
CHUNK = 4096
"""Bytes looked at together when the file's last line is searched."""

QUEUED_EVENTS = 100_000
"""Events that may wait to be written, some 30 MB; beyond it they are dropped and counted."""

CLOSE_S = 10.0
"""How long ``close`` waits for a disk that hangs."""

PATIENCE_S = 5.0
"""What a server that was just stopped or killed has to let go of its record before the next one starts."""


@dataclass(slots=True)
class Resumed:
    """What an earlier engine left in the same file."""

    next_turn: dict[str, int] = field(default_factory=dict)
    """By program: the number its next turn gets."""
    turn_numbers: dict[str, TurnNumbers] = field(default_factory=dict)
    """By program, where its client gave ids: which number each of its latest turns has."""
    open_turns: dict[tuple[str, int, str | None], SchedulerEvent] = field(default_factory=dict)
    """Arrivals of requests (program, turn, request id) that never finished."""
    open_pins: set[tuple[str, int]] = field(default_factory=set)
    """(program, turn) whose pin never ended."""
    events: int = 0
    """Lines read."""


class Recorder:
    """Appends events to ``DIR/scheduler_timestamps.jsonl``.

    ``write`` is for one thread, the scheduler's. After ``__init__`` nothing here raises.

    Args:
        folder: made if absent; a file that is there is continued.
        preview: folder that gets the preview's ``scheduler_timestamps`` JSON at ``close``; None: no such file.
        limit: events that may wait to be written.

    Raises:
        RunDirError: the folder cannot be made or written at start, or another process writes there.
    """

    def __init__(self, folder: Path, preview: Path | None = None, limit: int = QUEUED_EVENTS) -> None:
        self.folder = folder
        self._path = folder / EVENTS
        self._preview = preview
        self._limit = limit
        self._queue: queue.SimpleQueue[SchedulerEvent | None] = queue.SimpleQueue()
        self._accepted = self._refused = 0
        """Counted by the scheduler's thread alone: events that were queued, and that were not."""
        self._handled = self._lost = 0
        """Counted by the recorder's thread alone: events taken from the queue, and lost from the record."""
        self._closed = False
        self._warned: set[str] = set()
        self._fd = _open(folder)
        self.resumed = _resume(folder)
        self._in_file = self.resumed.events
        self._size = _end_of_last_line(self._fd)
        self._thread = threading.Thread(target=self._run, name="continuum-recorder", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Events that are not in the record: never written, or in a file that was deleted or cut short since."""
        return self._lost + self._refused

    @property
    def queued(self) -> int:
        """Events that wait to be written."""
        return self._accepted - self._handled

    def write(self, event: SchedulerEvent) -> None:
        """Queue an event; about a microsecond, never fails."""
        if self._closed or self.queued >= self._limit:
            self._refused += 1
        else:
            self._accepted += 1
            self._queue.put(event)

    def settle(self, now_s: float) -> None:
        """End what the engine before this one left open, so that the file reads as one run."""
        for ids, arrival in self.resumed.open_turns.items():
            ended = SchedulerEvent(now_s, "finish", *ids, status="error", output_tokens=0, turn_id=arrival.turn_id)
            self.write(ended)
        for program, turn in sorted(self.resumed.open_pins):
            self.write(SchedulerEvent(now_s, "unpin", program, turn, reason="shutdown"))

    def close(self, patience_s: float = CLOSE_S) -> None:
        """Write what is queued, within ``patience_s``; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._warn("close", f"{self._path}: still being written after {patience_s:g} s; the rest may be lost")
            return
        self._append(self._left())
        with suppress(OSError):
            os.close(self._fd)
        if self._preview is not None:
            self._write_preview(self._preview)

    def _write_preview(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_preview(folder / PREVIEW_EVENTS, read_events(self.folder))
        except Exception as error:  # noqa: BLE001 - an engine that shuts down must not fail at its record
            logger.warning("continuum: %s", error)

    # ------------------------------------------------------------------------------ the recorder's thread

    def _run(self) -> None:
        more = True
        while more:
            batch, more = self._next_batch()
            self._append(batch)

    def _next_batch(self) -> tuple[list[SchedulerEvent], bool]:
        """Everything queued, after waiting for at least one; False once ``close`` was called."""
        item = self._queue.get()
        batch: list[SchedulerEvent] = []
        while item is not None:
            batch.append(item)
            try:
                item = self._queue.get(timeout=FLUSH_S if len(batch) == 1 else 0)
            except queue.Empty:
                return batch, True
        return batch, False

    def _left(self) -> list[SchedulerEvent]:
        """What is still queued; nothing, unless the recorder's thread died."""
        batch: list[SchedulerEvent] = []
        with suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                batch += [] if item is None else [item]
        return batch

    def _append(self, batch: list[SchedulerEvent]) -> None:
        """Add the batch to the file; what of it cannot be written is counted. Never raises."""
        if not batch:
            return
        kept = 0
        try:
            lines = b"".join(map(self._line, batch))
            self._stay_at_path()
            self._cut_at_last_line()
            kept = self._add(lines)
        except Exception as error:  # noqa: BLE001 - whatever a disk does, the next batch is tried
            self._warn(
                "write", f"cannot write {self._path} ({error}); serving goes on, further losses are only counted"
            )
        finally:
            self._in_file += kept
            self._lost += len(batch) - kept
            self._handled += len(batch)

    def _line(self, event: SchedulerEvent) -> bytes:
        """The event's line; empty where it cannot be one."""
        try:
            return (json.dumps(compact(event), separators=(",", ":")) + "\n").encode()
        except Exception as error:  # noqa: BLE001 - one event is lost, not its batch
            self._warn("event", f"an event cannot be recorded ({error}); others like it are only counted")
            return b""

    def _stay_at_path(self) -> None:
        """Make the file anew where ours was deleted or moved away: what is written to it nobody would find."""
        ours = os.fstat(self._fd)
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(ours, self._path.stat()):
                return
        fd = _open(self.folder)
        gone = self._in_file if ours.st_nlink == 0 else 0
        what = f"was deleted with {gone} events" if ours.st_nlink == 0 else "was moved away"
        self._warn("gone", f"{self._path} {what}; a new file is begun, further losses are only counted")
        with suppress(OSError):
            os.close(self._fd)
        self._lost += gone
        self._fd, self._in_file, self._size = fd, 0, 0

    def _cut_at_last_line(self) -> None:
        """Let the file end with a whole line, whatever a failed write or somebody else did to it."""
        end = _end_of_last_line(self._fd)
        os.ftruncate(self._fd, end)
        if end < self._size:
            left = _count_lines(self._fd, end)
            self._warn("cut", f"{self._path} was cut short by {self._in_file - left} events")
            self._lost += max(0, self._in_file - left)
            self._in_file = left
        self._size = end

    def _add(self, lines: bytes) -> int:
        """Write as much as the disk takes; how many whole lines that was."""
        written = 0
        try:
            while written < len(lines):
                written += os.pwrite(self._fd, lines[written:], self._size + written)
        except OSError as error:
            reason = error.strerror or error
            self._warn(
                "write", f"cannot write {self._path} ({reason}); serving goes on, further losses are only counted"
            )
        whole = lines.rfind(b"\n", 0, written) + 1
        self._size += whole
        return lines.count(b"\n", 0, whole)

    def _warn(self, kind: str, message: str) -> None:
        """Say it, once for each kind of trouble."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("continuum: %s", message)


def check_folder(folder: Path) -> None:
    """Make the folder of a record, and see that a recorder could write there now.

    Raises:
        RunDirError: it cannot be written, or another server writes there and still does after ``PATIENCE_S``.
    """
    os.close(_open(folder, PATIENCE_S))


def _open(folder: Path, patience_s: float = 0.0) -> int:
    """The events' file, made where there is none, locked for this process."""
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


def _resume(folder: Path) -> Resumed:
    """What the record tells, up to the first line that cannot be read."""
    found = Resumed()
    try:
        for event in read_events(folder):
            _note(found, event)
            found.events += 1
    except (RunDirError, TypeError) as error:
        logger.warning("continuum: continuing a damaged record: %s", error)
    return found


def _note(found: Resumed, event: SchedulerEvent) -> None:
    program, turn = event.program_id, event.turn
    if event.event == "arrive":
        found.next_turn[program] = max(turn + 1, found.next_turn.get(program, 0))
        found.open_turns[program, turn, event.request_id] = event
        if event.turn_id is not None:
            found.turn_numbers.setdefault(program, TurnNumbers()).arrived(event.turn_id, None, turn)
    elif event.event == "finish":
        found.open_turns.pop((program, turn, event.request_id), None)
    elif event.event == "pin":
        found.open_pins.add((program, turn))
    elif event.event == "unpin":
        found.open_pins.discard((program, turn))


def _end_of_last_line(fd: int) -> int:
    """Bytes up to and including the last newline: a torn last line is cut off before going on."""
    size = os.fstat(fd).st_size
    position = size
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
