"""The scheduler's record on a server: written by a thread of its own, a quarter of a second behind at most.

The engine loop only appends to a queue. A write that fails (full disk, removed folder) costs records, never serving:
one warning, a counter, and the file stays readable, for what was half written is cut off again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from continuum_traces.run_dir import EVENTS, PREVIEW_EVENTS, RunDirError, compact, read_events
from continuum_traces.scheduler_timestamps import write_preview
from continuum_traces.schema import SchedulerEvent

from continuum_server.policy.turn_numbers import TurnNumbers

logger = logging.getLogger("continuum")

FLUSH_S = 0.25

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
    open_pins: dict[str, int] = field(default_factory=dict)
    """By program: the turn whose pin never ended."""


class Recorder:
    """Appends events to ``DIR/scheduler_timestamps.jsonl``.

    Args:
        folder: made if absent; a file that is there is continued.
        preview: folder that gets the preview's ``scheduler_timestamps`` JSON at ``close``; None: no such file.

    Raises:
        RunDirError: the folder cannot be made or written at start, or another process writes there.
    """

    def __init__(self, folder: Path, preview: Path | None = None) -> None:
        self.folder = folder
        self.dropped = 0
        """Events lost to failed writes."""
        self._preview = preview
        self._queue: queue.SimpleQueue[SchedulerEvent | None] = queue.SimpleQueue()
        self._warned = False
        self._fd = _open(folder)
        self.resumed = _resume(folder)
        self._size = _end_of_last_line(self._fd)
        os.ftruncate(self._fd, self._size)
        self._thread = threading.Thread(target=self._run, name="continuum-recorder", daemon=True)
        self._thread.start()

    def write(self, event: SchedulerEvent) -> None:
        """Queue an event; about a microsecond, never fails."""
        self._queue.put(event)

    def settle(self, now_s: float) -> None:
        """End what the engine before this one left open, so that the file reads as one run."""
        for ids, arrival in self.resumed.open_turns.items():
            ended = SchedulerEvent(now_s, "finish", *ids, status="error", output_tokens=0, turn_id=arrival.turn_id)
            self.write(ended)
        for program, turn in self.resumed.open_pins.items():
            self.write(SchedulerEvent(now_s, "unpin", program, turn, reason="shutdown"))

    def close(self) -> None:
        """Write what is queued; safe to call twice."""
        if not self._thread.is_alive():
            return
        self._queue.put(None)
        self._thread.join(timeout=10.0)
        os.close(self._fd)
        if self._preview is not None:
            try:
                self._preview.mkdir(parents=True, exist_ok=True)
                write_preview(self._preview / PREVIEW_EVENTS, read_events(self.folder))
            except (OSError, RunDirError) as error:
                logger.warning("continuum: %s", error)

    def _run(self) -> None:
        while True:
            batch, more = self._next_batch()
            if batch:
                self._append(batch)
            if not more:
                return

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

    def _append(self, batch: list[SchedulerEvent]) -> None:
        lines = "".join(json.dumps(compact(event), separators=(",", ":")) + "\n" for event in batch).encode()
        try:
            written = 0
            while written < len(lines):
                written += os.pwrite(self._fd, lines[written:], self._size + written)
            self._size += len(lines)
        except OSError as error:
            self.dropped += len(batch)
            os.ftruncate(self._fd, self._size)
            if not self._warned:
                self._warned = True
                logger.warning(
                    "continuum: cannot write %s (%s); serving goes on, further losses are only counted",
                    self.folder / EVENTS,
                    error.strerror,
                )


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
    found = Resumed()
    for event in _readable(folder):
        program, turn = event.program_id, event.turn
        if event.event == "arrive":
            found.next_turn[program] = max(turn + 1, found.next_turn.get(program, 0))
            found.open_turns[program, turn, event.request_id] = event
            if event.turn_id is not None:
                found.turn_numbers.setdefault(program, TurnNumbers()).arrived(event.turn_id, None, turn)
        elif event.event == "finish":
            found.open_turns.pop((program, turn, event.request_id), None)
        elif event.event == "pin":
            found.open_pins[program] = turn
        elif event.event == "unpin":
            found.open_pins.pop(program, None)
    return found


def _readable(folder: Path) -> Iterator[SchedulerEvent]:
    """Events up to the first that cannot be read."""
    try:
        yield from read_events(folder)
    except RunDirError as error:
        logger.warning("continuum: continuing a damaged record: %s", error)


def _end_of_last_line(fd: int) -> int:
    """Bytes up to and including the last newline: a torn last line is cut off before going on."""
    size = os.fstat(fd).st_size
    position = size
    while position > 0:
        start = max(0, position - 65536)
        newline = os.pread(fd, position - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0
