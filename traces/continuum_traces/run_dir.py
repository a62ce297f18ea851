"""The directory of a run: it holds everything that is known of the run. Standard library only.

``manifest.json``               what was run (``schema.Manifest``)
``scheduler_timestamps.jsonl``  the scheduler's view, one ``schema.SchedulerEvent`` per line
``turns.jsonl``                 the client's view, one ``schema.TurnRecord`` per line
``arrivals.jsonl``              live runs: one ``schema.ArrivalRecord`` per line, written when a program arrives
``programs.jsonl``              real agents: one line per program: how it ended, whether it passed its benchmark's test
``engine.json``                 counters of the engine (steps, blocks, wall seconds), free form
``scheduler_time.json``         virtual engine: processor seconds of the scheduler; measured, not modelled
``summary.json``                written by analysis

An experiment is a directory of such runs: ``runs/NAME/POLICY-seedN/`` with its own manifest and summary above them.
JSON lines are flushed as they are written, and the readers ignore an incomplete last line: a killed process loses only
its last moments. Other files are written under a temporary name and then renamed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from continuum_traces.schema import ArrivalRecord, Manifest, SchedulerEvent, TurnRecord

MANIFEST = "manifest.json"
EVENTS = "scheduler_timestamps.jsonl"
PREVIEW_EVENTS = "scheduler_timestamps"
TURNS = "turns.jsonl"
ARRIVALS = "arrivals.jsonl"
PROGRAMS = "programs.jsonl"
ENGINE = "engine.json"
SCHEDULER_TIME = "scheduler_time.json"
SUMMARY = "summary.json"

Row = TypeVar("Row", SchedulerEvent, TurnRecord, ArrivalRecord)


class RunDirError(Exception):
    """A run directory cannot be written or read. The message names file, line and field."""


def compact(row: Any) -> dict[str, Any]:
    """A dataclass as a dictionary, without the fields that are None or empty."""
    values = ((f.name, getattr(row, f.name)) for f in dataclasses.fields(row))
    return {name: value for name, value in values if value is not None and value != ()}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A fault of the file system while ``path`` is written becomes a ``RunDirError`` that names it."""
    try:
        yield
    except OSError as error:
        raise RunDirError(f"{path}: cannot write: {error.strerror or error}") from error


def write_json(path: Path, data: Any) -> None:
    """Write a complete file, or leave the old one as it is."""
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        temporary.write_text(json.dumps(data, indent=2, sort_keys=False) + "\n", encoding="utf-8")
        temporary.replace(path)


class JsonLines:
    """Appends JSON lines to a file and flushes after every ``flush_every`` rows. A file has one writer.

    Raises:
        RunDirError: the file cannot be written (the disk is full). Complete lines stay as they are.
    """

    def __init__(self, path: Path, flush_every: int = 1) -> None:
        self._path = path
        self._lines: list[str] = []
        self._flush_every = flush_every
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunDirError(f"{path}: cannot write: {error.strerror}") from error

    def write(self, row: Any) -> None:
        self._lines.append(json.dumps(compact(row), separators=(",", ":")) + "\n")
        if len(self._lines) >= self._flush_every:
            self.flush()

    def flush(self) -> None:
        data = memoryview("".join(self._lines).encode())
        self._lines.clear()
        size = os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, size)  # otherwise an incomplete line would stay in the middle of the file
            raise RunDirError(f"{self._path}: cannot write: {error.strerror}; earlier records are kept") from error

    def close(self) -> None:
        if self._file >= 0:
            try:
                self.flush()
            finally:
                os.close(self._file)
                self._file = -1

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def create(path: Path) -> Path:
    """Make a run directory. A directory that holds a run is refused."""
    if (path / MANIFEST).exists():
        raise RunDirError(f"{path}: holds a run already; choose another --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirError(f"{path}: cannot create: {error.strerror}") from error
    return path


def write_manifest(path: Path, manifest: Manifest) -> None:
    write_json(path / MANIFEST, dataclasses.asdict(manifest))


def read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    data = read_json(file)
    known = {f.name for f in dataclasses.fields(Manifest)}
    unknown = sorted(set(data) - known)
    if unknown:
        raise RunDirError(f"{file}: unknown field {unknown[0]!r}; written by a newer version?")
    for name in ("command", "modelled", "notes"):
        data[name] = tuple(data.get(name, ()))
    return Manifest(**data)


def read_json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunDirError(f"{file}: cannot read: {error.strerror}") from error
    except ValueError as error:
        raise RunDirError(f"{file}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RunDirError(f"{file}: expected an object")
    return data


def read_events(path: Path) -> Iterator[SchedulerEvent]:
    return _read_rows(path / EVENTS, SchedulerEvent)


def read_verdicts(path: Path) -> dict[str, bool]:
    """Whether each program passed its benchmark's test, by program id. Programs without a test are left out."""
    found = {}
    for number, line in enumerate((path / PROGRAMS).read_text(encoding="utf-8").splitlines(keepends=True), 1):
        if line.endswith("\n"):
            try:
                data = json.loads(line)
                name, passed = data["program_id"], data.get("passed")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RunDirError(f"{path / PROGRAMS}:{number}: expected a program's record: {error}") from error
            if isinstance(passed, bool):
                found[str(name)] = passed
    return found


def read_turns(path: Path) -> Iterator[TurnRecord]:
    return _read_rows(path / TURNS, TurnRecord)


def read_arrivals(path: Path) -> Iterator[ArrivalRecord]:
    return _read_rows(path / ARRIVALS, ArrivalRecord)


def _read_rows(file: Path, row_type: type[Row]) -> Iterator[Row]:
    try:
        lines = file.open(encoding="utf-8")
    except OSError as error:
        raise RunDirError(f"{file}: cannot read: {error.strerror}") from error
    number = 0
    with lines:
        try:
            for number, line in enumerate(lines, 1):
                if line.endswith("\n"):  # a killed writer leaves an incomplete last line
                    yield _row(file, number, line, row_type)
        except UnicodeDecodeError as error:
            raise RunDirError(f"{file}: not UTF-8 text after line {number}: {error}") from error


def _row(file: Path, number: int, line: str, row_type: type[Row]) -> Row:
    try:
        data = json.loads(line)
        for name in ("tools", "failed_tries"):
            if name in data:
                data[name] = tuple(data[name])
        return row_type(**data)
    except (TypeError, ValueError) as error:
        raise RunDirError(f"{file}:{number}: {error}") from error


def replica_name(index: int) -> str:
    """The name of a replica's folder within a record folder, and of the replica's log."""
    return f"replica{index}"


def replica_folders(path: Path) -> list[Path]:
    """The record folders of the servers behind a router, by number; empty for the record of a single server."""
    folders: list[Path] = []
    while (path / replica_name(len(folders))).is_dir():
        folders.append(path / replica_name(len(folders)))
    return folders


def runs_below(path: Path) -> list[Path]:
    """The run directories at or below ``path``, by name. A record of several replicas counts as one run."""
    if (path / EVENTS).exists() or (path / TURNS).exists() or replica_folders(path):
        return [path]
    return sorted({p.parent for name in (EVENTS, TURNS) for p in path.glob(f"*/{name}")})


def write_rows(path: Path, rows: Iterable[SchedulerEvent | TurnRecord | ArrivalRecord]) -> None:
    with JsonLines(path, flush_every=1024) as out:
        for row in rows:
            out.write(row)
