"""Read and write the directory of a run, which holds all records of the run.

``manifest.json``               what was run (``schema.Manifest``)
``scheduler_timestamps.jsonl``  the scheduler's view, one ``schema.SchedulerEvent`` per line
``turns.jsonl``                 the client's view, one ``schema.TurnRecord`` per line
``arrivals.jsonl``              live runs: one ``schema.ArrivalRecord`` per line, written when a program arrives
``programs.jsonl``              real agents: one line per program: how it ended, whether it passed its benchmark's test
``engine.json``                 counters of the engine (steps, blocks, wall seconds), free form
``server_metrics.jsonl``        live runs: the numbers of the server's /metrics every five seconds; free form
``scheduler_time.json``         virtual engine: processor seconds of the scheduler; measured, not modelled
``summary.json``                the metrics, written by the analysis

An experiment is a directory of runs: ``runs/NAME/POLICY-seedN/``, with a manifest and a summary of its own above them.
JSON lines are flushed as they are written, and the readers ignore an incomplete last line: a killed process loses only
the events of its last moments. Other files are written under a temporary name and then renamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, takewhile
from pathlib import Path
from typing import Any, TypeVar

from continuum_traces.appender import SharedLines
from continuum_traces.schema import ArrivalRecord, Manifest, SchedulerEvent, TurnRecord
from continuum_traces.typed import FieldError, field_names, from_json, parse, read_line, to_json

MANIFEST = "manifest.json"
EVENTS = "scheduler_timestamps.jsonl"
PREVIEW_EVENTS = "scheduler_timestamps"
TURNS = "turns.jsonl"
ARRIVALS = "arrivals.jsonl"
PROGRAMS = "programs.jsonl"
ENGINE = "engine.json"
SCHEDULER_TIME = "scheduler_time.json"
SUMMARY = "summary.json"

NOT_IN_KEY = ("created", "command", "notes")
"""Entries of a manifest in which two parts of one run may differ."""
RECORDS = (EVENTS, TURNS, ARRIVALS)
ROWS = "rows"
"""The field of engine.json that holds the number of lines of each record."""
DAMAGED = "the file was cut or changed later; take it from a copy, or play the run again"

Row = TypeVar("Row", SchedulerEvent, TurnRecord, ArrivalRecord)
T = TypeVar("T")


class RunDirError(Exception):
    """A run directory cannot be written or read. The message names file, line and field."""


def compact(row: Any) -> dict[str, Any]:
    """Convert a dataclass instance to a dictionary, without the fields that are None or empty."""
    values = ((name, getattr(row, name)) for name in field_names(row.__class__))
    return {name: value for name, value in values if value is not None and value != ()}


@contextmanager
def writing(path: Path, note: str = "") -> Iterator[None]:
    """Convert an ``OSError`` into a ``RunDirError`` that names ``path`` and ends with ``note``."""
    try:
        yield
    except OSError as error:
        raise RunDirError(f"{path}: cannot write: {error.strerror or error}{note}") from error


def write_json(path: Path, data: Any, indent: int | None = 2) -> None:
    """Write a complete file, or leave the existing file as it is. With ``indent`` None it has one line."""
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        temporary.write_text(json.dumps(data, indent=indent, sort_keys=False) + "\n", encoding="utf-8")
        temporary.replace(path)


def write_text(path: Path, text: str) -> Path:
    """Write a text file. Its folder is made if it is missing."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


class JsonLines:
    """A file to which JSON lines are appended; flushed after every ``flush_every`` rows. A file has one writer.

    Raises:
        RunDirError: the file cannot be written (for example, the disk is full). Its complete lines stay as they are.
    """

    def __init__(self, path: Path, flush_every: int = 1) -> None:
        self._path = path
        self._rows: list[str] = []
        self._flush_every = flush_every
        self._closed = False
        with writing(path):
            self._lines = SharedLines(path)

    def write(self, row: Any) -> None:
        self._rows.append(json.dumps(compact(row), separators=(",", ":")) + "\n")
        if len(self._rows) >= self._flush_every:
            self.flush()

    def flush(self) -> None:
        data = "".join(self._rows).encode()
        self._rows.clear()
        with writing(self._path, "; earlier records are kept"):
            self._lines.append(data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self.flush()
            finally:
                self._lines.close()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def create(path: Path) -> Path:
    """Make a run directory.

    Raises:
        RunDirError: the directory holds a run already, or cannot be made.
    """
    if (path / MANIFEST).exists():
        raise RunDirError(f"{path}: holds a run already; choose another --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(f"{path}: cannot create: {error.strerror}") from error
    return path


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of a run directory, whole or not at all."""
    write_json(path / MANIFEST, to_json(manifest))


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a run directory. ``RunDirError`` names a field that is wrong."""
    return read_as(Manifest, path / MANIFEST)


def read_as(row_type: type[T], file: Path) -> T:
    """Read a file that holds one dataclass instance. ``RunDirError`` names a field that is wrong."""
    try:
        return from_json(row_type, read_json(file))
    except FieldError as error:
        raise RunDirError(f"{file}: {error}") from error


def key_of(manifest: Manifest, leave_out: Sequence[str] = NOT_IN_KEY) -> dict[str, Any]:
    """Return what makes two runs the same: every entry of the manifest by its dotted name, ``hardware.gpu``.

    Args:
        leave_out: dotted names of entries, or of objects with all their entries.
    """
    entries = dict(_entries(json.loads(json.dumps(to_json(manifest)))))
    left_out = tuple(f"{name}." for name in leave_out)
    return {name: value for name, value in entries.items() if not f"{name}.".startswith(left_out)}


def _entries(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _entries(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the first entry in which two keys differ, in words; an empty text if they are equal."""
    names = (name for name in {**one, **other} if one.get(name) != other.get(name))
    return next((f"{name} differs: {one.get(name)!r} against {other.get(name)!r}" for name in names), "")


def begin(path: Path, manifest: Manifest, may_differ: Sequence[str] = ()) -> Manifest:
    """Make ``path`` the directory of a run, or of an experiment. If it holds the same run, that goes on. Another run
    gives way only if nothing was recorded.

    Args:
        path: the directory.
        manifest: of the run that begins or goes on.
        may_differ: entries in which the run may differ from its earlier part, besides those that every run may.

    Returns:
        The manifest in the directory.

    Raises:
        RunDirError: the directory holds another run, or cannot be written. The message names the first difference.
    """
    if not (path / MANIFEST).exists():
        create(path)
    else:
        before, leave_out = read_manifest(path), (*NOT_IN_KEY, *may_differ)
        differs = difference(key_of(before, leave_out), key_of(manifest, leave_out))
        if not differs:
            return before
        if _has_records(path):
            raise RunDirError(f"{path}: holds another run: {differs} now; choose another --out")
    write_manifest(path, manifest)
    return manifest


def _has_records(path: Path) -> bool:
    """Return whether a run was recorded in this directory, or in one of the directories in it."""
    files = (file for name in (*RECORDS, PROGRAMS, ENGINE) for file in (path / name, *path.glob(f"*/{name}")))
    return any(file.is_file() and file.stat().st_size for file in files)


def read_json(file: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        RunDirError: the file cannot be read, or holds something else.
    """
    try:
        data = read_line(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunDirError(f"{file}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RunDirError(f"{file}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RunDirError(f"{file}: expected an object")
    return data


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


def replica_name(index: int) -> str:
    """Return the name of a replica's folder within a record folder, and of the replica's log."""
    return f"replica{index}"


def engine_folders(path: Path) -> list[Path]:
    """Return the folders with the records of engines that served together. These are replicas behind a router, and the
    ranks of vLLM's data parallelism, of which rank 0 writes into ``path`` itself. Empty if there is no record."""
    replicas = list(takewhile(Path.is_dir, (path / replica_name(index) for index in count())))
    folders = [folder for server in replicas or [path] for folder in (server, *_rank_folders(server))]
    return [folder for folder in folders if folder in replicas or (folder / EVENTS).is_file()]


def _rank_folders(path: Path) -> list[Path]:
    ranks = (folder for folder in path.glob("rank*") if folder.name.removeprefix("rank").isdecimal())
    return sorted(ranks, key=lambda folder: int(folder.name.removeprefix("rank")))


def runs_below(path: Path) -> list[Path]:
    """Return ``path`` if it is a run directory, otherwise the run directories in it, sorted. Directories of the papers'
    preview are included. A record of several engines counts as one run."""
    names = (EVENTS, TURNS, PREVIEW_EVENTS)
    if any((path / name).is_file() for name in names) or engine_folders(path):
        return [path]
    return sorted({file.parent for name in names for file in path.glob(f"*/{name}") if file.is_file()})


def write_rows(path: Path, rows: Iterable[SchedulerEvent | TurnRecord | ArrivalRecord]) -> None:
    """Append rows to a file, one JSON object a line."""
    with JsonLines(path, flush_every=1024) as out:
        for row in rows:
            out.write(row)
