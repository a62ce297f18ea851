"""Writes the records of a live run while it runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from continuum_traces.json_io import JsonLines
from continuum_traces.records import write_rows
from continuum_traces.records.replicas import read_record
from continuum_traces.records.run_dir import ARRIVALS, EVENTS, RECORDS, SERVER_METRICS, TURNS
from continuum_traces.schema import ArrivalRecord, TurnRecord


class LiveRecorder(ExitStack):
    """The sink of one run. A record is on disk when the call returns.

    Args:
        folder: the run's directory.
        on_progress: called when a program arrived, ended or failed.

    Raises:
        RunDirError: a file cannot be written. Earlier records stay readable.
    """

    def __init__(self, folder: Path, on_progress: Callable[[LiveRecorder], None]) -> None:
        super().__init__()
        self._arrivals, self._turns = (self.enter_context(JsonLines(folder / name)) for name in (ARRIVALS, TURNS))
        self._on_progress = on_progress
        self.programs_arrived = self.programs_ended = self.programs_failed = 0

    def __call__(self, record: ArrivalRecord | TurnRecord) -> None:
        if isinstance(record, ArrivalRecord):
            self._arrivals.write(record)
            self.programs_arrived += 1
            return self._on_progress(self)
        self._turns.write(record)
        if record.is_last or record.error is not None:
            self.programs_ended += 1
            self.programs_failed += record.error is not None
            self._on_progress(self)


def take_scheduler_records(source: Path, folder: Path, began_s: float) -> None:
    """Copy the server's record of this run's programs into the run's directory.

    Args:
        source: the server's record folder; with several replicas their records are merged.
        folder: the run's directory.
        began_s: wall-clock time at which the run began. Earlier events belong to other runs.

    Raises:
        RunDirError: a file is damaged.
    """
    write_rows(folder / EVENTS, read_record(source, lambda event: event.t >= began_s))


def remove_unfinished(folder: Path) -> bool:
    """Remove the records of a run that was stopped. Returns whether there were any."""
    records = [file for name in (*RECORDS, SERVER_METRICS) if (file := folder / name).exists()]
    for file in records:
        file.unlink()
    return bool(records)
