"""The scheduler's record on a server. A thread of its own writes the events, at most a quarter of a second late.

The engine's thread only appends to a bounded queue. A disk that fails never stops the server: events that could not be
written are counted, and each kind of failure is logged once.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path

from continuum_traces.json_io import RunDirError, compact
from continuum_traces.records import read_events
from continuum_traces.records.run_dir import PREVIEW_EVENTS
from continuum_traces.records.scheduler_timestamps import write_preview
from continuum_traces.schema import SchedulerEvent

from continuum_server.policy.programs import TurnNumbers
from continuum_server.record_file import RecordFile

logger = logging.getLogger("continuum")

FLUSH_S = 0.25

QUEUED_EVENTS = 100_000
"""Number of events that may wait to be written, about 30 MB. Further events are dropped and counted."""

CLOSE_S = 10.0
"""How long ``close`` waits for a disk that does not respond."""


@dataclass(slots=True)
class Resumed:
    """The state in which an earlier engine left the record."""

    turn_numbers: dict[str, TurnNumbers] = field(default_factory=dict)
    """The turn numbers of each program."""
    open_turns: dict[tuple[str, int, str | None], SchedulerEvent] = field(default_factory=dict)
    """Arrivals of requests that have no ``finish`` event, by program, turn and request id."""
    open_pins: set[tuple[str, int]] = field(default_factory=set)
    """(program, turn) of pins that have no ``unpin`` event."""


class EventRecorder:
    """Appends the scheduler's events to ``DIR/scheduler_timestamps.jsonl``.

    Only the scheduler's thread may call ``write``. Only ``__init__`` raises exceptions.

    Args:
        folder: created if it does not exist; a record in it is continued.
        preview: folder where ``close`` writes the preview format's ``scheduler_timestamps`` file; None: nowhere.
        limit: number of events that may wait to be written.

    Raises:
        RunDirError: the folder cannot be created or written, or another process writes this record.
    """

    def __init__(self, folder: Path, preview: Path | None = None, limit: int = QUEUED_EVENTS) -> None:
        self._folder = folder
        self._preview = preview
        self._limit = limit
        self._queue: queue.Queue[SchedulerEvent | None] = queue.Queue()
        self._refused = 0
        """Number of events that found no room in the queue. Only the scheduler's thread changes it."""
        self._lost = 0
        """Number of events taken from the queue and not written. Only the recorder's thread changes it."""
        self._closed = threading.Event()
        self._file = RecordFile(folder)
        self.resumed = _resume(folder)
        self._thread = threading.Thread(target=self._run, name="continuum-recorder", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Number of events that could not be written."""
        return self._lost + self._refused

    def write(self, event: SchedulerEvent) -> None:
        """Queue an event. Takes a few microseconds and never fails."""
        if self._closed.is_set() or self._queue.qsize() >= self._limit:
            self._refused += 1
        else:
            self._queue.put(event)

    def settle(self, now_s: float) -> None:
        """Record the end of turns and pins that an earlier engine left open, so that the record reads as one run."""
        for ids, arrival in self.resumed.open_turns.items():
            ended = SchedulerEvent(now_s, "finish", *ids, status="error", output_tokens=0, turn_id=arrival.turn_id)
            self.write(ended)
        for program, turn in sorted(self.resumed.open_pins):
            self.write(SchedulerEvent(now_s, "unpin", program, turn, reason="shutdown"))

    def close(self, patience_s: float = CLOSE_S) -> None:
        """Write the queued events, for ``patience_s`` at most. May be called again."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._queue.put(None)
        self._thread.join(patience_s)
        if self._thread.is_alive():
            where = self._file.path
            self._file.warn("close", "%s: still being written after %g s; the rest may be lost", where, patience_s)
            return
        self._file.close()
        if self._preview is not None:
            self._write_preview(self._preview)

    def _write_preview(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_preview(folder / PREVIEW_EVENTS, read_events(self._folder))
        except Exception as error:  # noqa: BLE001 - an engine that shuts down must not fail at its record
            logger.warning("continuum: %s", error)

    # ------------------------------------------------------------------------------ the recorder's thread

    def _run(self) -> None:
        batch: list[SchedulerEvent | None] = []
        while not (batch and batch[-1] is None):
            batch = [self._queue.get()]
            self._closed.wait(FLUSH_S)
            batch += [self._queue.get() for _ in range(self._queue.qsize())]
            self._append([event for event in batch if event is not None])
            for _ in batch:
                self._queue.task_done()

    def _append(self, batch: list[SchedulerEvent]) -> None:
        """Append events to the file, and count those that cannot be written. Never raises."""
        kept = 0
        try:
            kept = self._file.append(b"".join(map(self._line, batch)))
        except Exception as error:  # noqa: BLE001 - whatever a disk does, the next batch is tried
            self._file.warn_not_written(error)
        finally:
            self._lost += len(batch) - kept

    def _line(self, event: SchedulerEvent) -> bytes:
        """Return the event as a line of JSON; empty if it cannot be written as JSON, or not as UTF-8."""
        try:
            return (json.dumps(compact(event), separators=(",", ":"), ensure_ascii=False) + "\n").encode()
        except Exception as error:  # noqa: BLE001 - one event is lost, not its batch
            self._file.warn("event", "an event cannot be recorded (%s); others like it are only counted", error)
            return b""


def _resume(folder: Path) -> Resumed:
    """Read the record up to the first line that cannot be read."""
    resumed = Resumed()
    try:
        for event in read_events(folder):
            _add(resumed, event)
    except (RunDirError, TypeError) as error:
        logger.warning("continuum: continuing a damaged record: %s", error)
    return resumed


def _add(resumed: Resumed, event: SchedulerEvent) -> None:
    program, turn = event.program_id, event.turn
    if event.event == "arrive":
        resumed.open_turns[program, turn, event.request_id] = event
        resumed.turn_numbers.setdefault(program, TurnNumbers()).note(event.turn_id, turn)
    elif event.event == "finish":
        resumed.open_turns.pop((program, turn, event.request_id), None)
    elif event.event == "pin":
        resumed.open_pins.add((program, turn))
    elif event.event == "unpin":
        resumed.open_pins.discard((program, turn))
