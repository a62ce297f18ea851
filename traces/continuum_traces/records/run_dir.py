"""The directory of a run, which holds all records of the run (``records``).

``manifest.json``               what was run (``schema.Manifest``)
``scheduler_timestamps.jsonl``  the scheduler's view, one ``schema.SchedulerEvent`` per line
``turns.jsonl``                 the client's view, one ``schema.TurnRecord`` per line
``arrivals.jsonl``              live runs: one ``schema.ArrivalRecord`` per line, written when a program arrives
``programs.jsonl``              real agents: one line per program: how it ended, whether it passed its benchmark's test
``engine.json``                 counters of the engine (steps, blocks, wall seconds), free form
``server_metrics.jsonl``        live runs: the numbers of the server's /metrics every second; free form
``scheduler_time.json``         virtual engine: processor seconds of the scheduler; measured, not modelled
``summary.json``                the metrics, written by the analysis

An experiment is a directory of runs: ``runs/NAME/POLICY-seedN/``, with a manifest and a summary of its own above them.
JSON lines are flushed as they are written, and the readers ignore an incomplete last line: a killed process loses only
the events of its last moments. Other files are written under a temporary name and then renamed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from continuum_traces.json_io import RunDirError, read_as, write_json
from continuum_traces.records.scheduler_timestamps import served_together
from continuum_traces.schema import Manifest
from continuum_traces.typed import to_json

MANIFEST = "manifest.json"
EVENTS = "scheduler_timestamps.jsonl"
PREVIEW_EVENTS = "scheduler_timestamps"
TURNS = "turns.jsonl"
ARRIVALS = "arrivals.jsonl"
PROGRAMS = "programs.jsonl"
ENGINE = "engine.json"
SCHEDULER_TIME = "scheduler_time.json"
SERVER_METRICS = "server_metrics.jsonl"
SUMMARY = "summary.json"

NOT_IN_KEY = ("created", "command", "notes")
"""Entries of a manifest in which two parts of one run may differ."""
RECORDS = (EVENTS, TURNS, ARRIVALS)


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
    preview are included. A record of several engines counts as one run, as do the preview's files of several servers
    that shared a run."""
    names = (EVENTS, TURNS, PREVIEW_EVENTS)
    if any((path / name).is_file() for name in names) or engine_folders(path) or preview_files(path):
        return [path]
    runs = {file.parent for name in names for file in path.glob(f"*/{name}") if file.is_file()}
    return sorted(runs | {folder for folder in path.glob("*/") if folder not in runs and preview_files(folder)})


def preview_files(path: Path) -> list[Path]:
    """Return the preview's files of servers that shared one run, each in a folder of its own within ``path``; empty if
    they are of several runs.

    Raises:
        RunDirError: a file cannot be read.
    """
    files = sorted(path.glob(f"*/{PREVIEW_EVENTS}"))
    return files if served_together(files) else []
