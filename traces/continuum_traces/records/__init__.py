"""Write and read the records of a run directory (``run_dir``), and check that a complete run still has all their lines.

The readers ignore an incomplete last line: a killed process loses only the events of its last moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from continuum_traces.json_io import JsonLines, RunDirError, read_json
from continuum_traces.records.run_dir import ARRIVALS, ENGINE, EVENTS, PROGRAMS, RECORDS, TURNS
from continuum_traces.schema import ArrivalRecord, SchedulerEvent, TurnRecord
from continuum_traces.typed import parse, read_line

ROWS = "rows"
"""The field of engine.json that holds the number of lines of each record."""
DAMAGED = "the file was cut or changed later; take it from a copy, or play the run again"
Row = TypeVar("Row", SchedulerEvent, TurnRecord, ArrivalRecord)


def read_events(path: Path) -> Iterator[SchedulerEvent]:
    """Read the server's events of a run directory. ``RunDirError`` names a damaged line."""
    return _read_rows(path / EVENTS, SchedulerEvent)


def read_verdicts(path: Path) -> dict[str, bool]:
    """Return for each program id whether the program passed its benchmark's test. Programs without a test are left
    out."""
    verdicts = {}
    for number, line in _lines(path / PROGRAMS):
        try:
            data = read_line(line)
            name, passed = data["program_id"], data.get("passed")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunDirError(f"{path / PROGRAMS}:{number}: expected a program's record: {error}") from error
        if isinstance(passed, bool):
            verdicts[str(name)] = passed
    return verdicts


def read_turns(path: Path) -> Iterator[TurnRecord]:
    """Read the client's turns of a run directory. ``RunDirError`` names a damaged line."""
    return _read_rows(path / TURNS, TurnRecord)


def read_arrivals(path: Path) -> Iterator[ArrivalRecord]:
    """Read the arrivals of a run directory. ``RunDirError`` names a damaged line."""
    return _read_rows(path / ARRIVALS, ArrivalRecord)


def write_rows(path: Path, rows: Iterable[SchedulerEvent | TurnRecord | ArrivalRecord]) -> None:
    """Append rows to a file, one JSON object a line."""
    with JsonLines(path, flush_every=1024) as out:
        for row in rows:
            out.write(row)


def _read_rows(file: Path, row_type: type[Row]) -> Iterator[Row]:
    for number, line in _lines(file):
        row, faults = parse(row_type, line)
        if row is None:
            raise RunDirError(f"{file}:{number}: {faults[0]}")
        yield row


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines, without the incomplete last line that a killed writer leaves.

    Raises:
        RunDirError: the file cannot be read; or the run was complete, and the file was changed later.
    """
    number, whole = 0, True
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                whole = line.endswith("\n")
                if whole:
                    yield number, line
    except OSError as error:
        raise RunDirError(f"{file}: cannot read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunDirError(f"{file}: not UTF-8 text after line {number}: {error}") from error
    if (file.parent / ENGINE).exists():
        written = rows_written(file.parent).get(file.name)
        if not whole:
            raise RunDirError(f"{file}:{number}: the line ends too soon, but the run was complete: {DAMAGED}")
        if written not in (None, number):
            raise RunDirError(f"{file}: {number} lines, but the run wrote {written}: {DAMAGED}")


def rows_of(path: Path) -> dict[str, dict[str, int]]:
    """Return a field for engine.json: the number of lines of each of the run's records, which must be complete."""
    files = [path / name for name in RECORDS if (path / name).exists()]
    return {ROWS: {file.name: file.read_bytes().count(b"\n") for file in files}}


def rows_written(path: Path) -> dict[str, int]:
    """Return the number of lines of each record, as engine.json says. Empty for a run that is not complete, and for a
    run of an earlier version."""
    rows = read_json(path / ENGINE).get(ROWS, {}) if (path / ENGINE).exists() else {}
    if not isinstance(rows, dict) or not all(isinstance(number, int) for number in rows.values()):
        raise RunDirError(f"{path / ENGINE}: {ROWS}: expected a number for each file")
    if unknown := sorted(rows.keys() - set(RECORDS)):
        raise RunDirError(f"{path / ENGINE}: {ROWS}: {unknown[0][:60]!r} is no record of a run ({', '.join(RECORDS)})")
    return rows
