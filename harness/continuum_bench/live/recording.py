"""Writes the records of a live run while it runs, and prepares the directory of a run that is resumed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from continuum_traces.replica_records import read_record
from continuum_traces.run_dir import (
    ARRIVALS,
    EVENTS,
    TURNS,
    JsonLines,
    read_arrivals,
    read_turns,
    write_rows,
)
from continuum_traces.schema import ArrivalRecord, SchedulerEvent, TurnRecord

INTERRUPTED = "interrupted.jsonl"
"""File for the turns of programs that a resumed run plays again."""


class LiveRecorder(ExitStack):
    """The sink of one run. A record is on disk when the call returns.

    Args:
        folder: the run's directory.
        on_progress: called with the number of programs that have ended.

    Raises:
        RunDirError: a file cannot be written. Earlier records stay readable.
    """

    def __init__(self, folder: Path, on_progress: Callable[[int], None]) -> None:
        super().__init__()
        self._arrivals, self._turns = (self.enter_context(JsonLines(folder / name)) for name in (ARRIVALS, TURNS))
        self._on_progress = on_progress
        self.programs_ended = 0

    def __call__(self, record: ArrivalRecord | TurnRecord) -> None:
        if isinstance(record, ArrivalRecord):
            return self._arrivals.write(record)
        self._turns.write(record)
        if record.is_last or record.error is not None:
            self.programs_ended += 1
            self._on_progress(self.programs_ended)


def finished_programs(folder: Path) -> frozenset[str]:
    """Return the programs whose last turn got a complete answer."""
    if not (folder / TURNS).exists():
        return frozenset()
    return frozenset(record.program_id for record in read_turns(folder) if record.is_last and record.error is None)


def keep_finished(folder: Path, finished: frozenset[str]) -> float:
    """Keep only finished programs in the records, and move the turns of other programs to interrupted.jsonl.

    Returns:
        The last recorded instant on the client's clock. The resumed run's clock continues from there.

    Raises:
        RunDirError: a file is damaged or cannot be written.
    """
    last_s = 0.0
    if (folder / TURNS).exists():
        turns = list(read_turns(folder))
        last_s = max((max(t.due_s, t.sent_s, t.finish_s or 0.0) for t in turns), default=0.0)
        write_rows(folder / INTERRUPTED, (turn for turn in turns if turn.program_id not in finished))
        _replace(folder / TURNS, [turn for turn in turns if turn.program_id in finished])
    if (folder / ARRIVALS).exists():
        arrivals = list(read_arrivals(folder))
        last_s = max([last_s, *(arrival.due_s for arrival in arrivals)])
        _replace(folder / ARRIVALS, [arrival for arrival in arrivals if arrival.program_id in finished])
    return last_s


def _replace(file: Path, rows: list[TurnRecord] | list[ArrivalRecord] | list[SchedulerEvent]) -> None:
    """Replace the file completely, or not at all."""
    temporary = file.with_name(file.name + ".tmp")
    temporary.unlink(missing_ok=True)
    write_rows(temporary, rows)
    temporary.replace(file)


def take_scheduler_records(source: Path, folder: Path, began_s: float, resumed_s: float, kept: frozenset[str]) -> None:
    """Copy the server's record of this run's programs into the run's directory.

    Args:
        source: the server's record folder; with several replicas their records are merged.
        folder: the run's directory.
        began_s: wall-clock time at which the run began. Earlier events belong to other runs.
        resumed_s: wall-clock time at which the run was last resumed.
        kept: programs that had finished before then. Of other programs, only events after ``resumed_s`` are copied.

    Raises:
        RunDirError: a file is damaged.
    """
    events = read_record(source, lambda e: e.t >= (began_s if e.program_id in kept else resumed_s))
    _replace(folder / EVENTS, events)
