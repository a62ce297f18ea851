"""The scheduler's record on a server: a thread of its own writes it, at most a quarter of a second late.

The engine loop only appends to a bounded queue. Trouble with the disk costs records, never serving: events that are
lost are counted, and each kind of trouble is logged once.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from continuum_traces.run_dir import PREVIEW_EVENTS, RunDirError, compact, read_events
from continuum_traces.scheduler_timestamps import write_preview
from continuum_traces.schema import SchedulerEvent

from continuum_server.policy.programs import TurnNumbers
from continuum_server.record_file import RecordFile

logger = logging.getLogger("continuum")

FLUSH_S = 0.25

QUEUED_EVENTS = 100_000
"""Events that may wait to be written, some 30 MB; further ones are dropped and counted."""

CLOSE_S = 10.0
"""How long ``close`` waits for a disk that hangs."""


@dataclass(slots=True)
class Resumed:
    """What an earlier engine left in the record."""

    next_turn: dict[str, int] = field(default_factory=dict)
    """By program: the number of its next turn."""
    turn_numbers: dict[str, TurnNumbers] = field(default_factory=dict)
    """By program whose client sent turn ids: the numbers of its latest turns."""
    open_turns: dict[tuple[str, int, str | None], SchedulerEvent] = field(default_factory=dict)
    """Arrivals of requests that never finished, by program, turn and request id."""
    open_pins: set[tuple[str, int]] = field(default_factory=set)
    """(program, turn) of pins that never ended."""


class EventRecorder:
    """Appends the scheduler's events to ``DIR/scheduler_timestamps.jsonl``.

    ``write`` is for one thread, the scheduler's. Only ``__init__`` raises.

    Args:
        folder: made if absent; a record that is there is continued.
        preview: folder that gets the preview's ``scheduler_timestamps`` JSON at ``close``; None: no such file.
        limit: events that may wait to be written.

    Raises:
        RunDirError: the folder cannot be made or written at start, or another process writes there.
    """

    def __init__(self, folder: Path, preview: Path | None = None, limit: int = QUEUED_EVENTS) -> None:
        self._folder = folder
        self._preview = preview
        self._limit = limit
        self._queue: queue.SimpleQueue[SchedulerEvent | None] = queue.SimpleQueue()
        self._accepted = self._refused = 0
        """Counted by the scheduler's thread only: events that were queued, and that were not."""
        self._handled = self._lost = 0
        """Counted by the recorder's thread only: events taken from the queue, and those of them not written."""
        self._closed = False
        self._file = RecordFile(folder)
        self.resumed = _resume(folder)
        self._thread = threading.Thread(target=self._run, name="continuum-recorder", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Events that are not in the record: never written, or in a file that was deleted or cut short since."""
        return self._lost + self._refused + self._file.lost

    @property
    def queued(self) -> int:
        """Events that wait to be written."""
        return self._accepted - self._handled

    def write(self, event: SchedulerEvent) -> None:
        """Queue an event. Takes about a microsecond and never fails."""
        if self._closed or self.queued >= self._limit:
            self._refused += 1
        else:
            self._accepted += 1
            self._queue.put(event)

    def settle(self, now_s: float) -> None:
        """End the turns and pins that the engine before this one left open, so that the record reads as one run."""
        for ids, arrival in self.resumed.open_turns.items():
            ended = SchedulerEvent(now_s, "finish", *ids, status="error", output_tokens=0, turn_id=arrival.turn_id)
            self.write(ended)
        for program, turn in sorted(self.resumed.open_pins):
            self.write(SchedulerEvent(now_s, "unpin", program, turn, reason="shutdown"))

    def close(self, patience_s: float = CLOSE_S) -> None:
        """Write what is queued, within ``patience_s``. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join(patience_s)
        if self._thread.is_alive():
            path = self._file.path
            self._file.warn("close", f"{path}: still being written after {patience_s:g} s; the rest may be lost")
            return
        self._append(self._left())
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
        more = True
        while more:
            batch, more = self._next_batch()
            self._append(batch)

    def _next_batch(self) -> tuple[list[SchedulerEvent], bool]:
        """All queued events, after waiting for at least one; and False once ``close`` was called."""
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
        """Events that are still queued: none, unless the recorder's thread died."""
        batch: list[SchedulerEvent] = []
        with suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                batch += [] if item is None else [item]
        return batch

    def _append(self, batch: list[SchedulerEvent]) -> None:
        """Add the batch to the file, and count what of it cannot be written. Never raises."""
        if not batch:
            return
        kept = 0
        try:
            kept = self._file.append(b"".join(map(self._line, batch)))
        except Exception as error:  # noqa: BLE001 - whatever a disk does, the next batch is tried
            self._file.warn_not_written(error)
        finally:
            self._lost += len(batch) - kept
            self._handled += len(batch)

    def _line(self, event: SchedulerEvent) -> bytes:
        """The event's line; empty if the event cannot be written as JSON."""
        try:
            return (json.dumps(compact(event), separators=(",", ":")) + "\n").encode()
        except Exception as error:  # noqa: BLE001 - one event is lost, not its batch
            self._file.warn("event", f"an event cannot be recorded ({error}); others like it are only counted")
            return b""


def _resume(folder: Path) -> Resumed:
    """What the record says, up to the first line that cannot be read."""
    found = Resumed()
    try:
        for event in read_events(folder):
            _note(found, event)
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
