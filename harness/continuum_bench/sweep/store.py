"""A sweep on disk. A cell is played under ``.partial`` and renamed when it is complete, so no half cell is ever seen.

``runs/NAME/sweep.json``               the grid's cells, in order
``runs/NAME/GROUP/POLICY-seedN/``      the run directory of a cell
``runs/NAME/failed/``                  logs of cells that failed
``runs/NAME/sweep.csv``, ``summary.json``, ``report.html``, ``sweep.svg``, ``sweep.png``   written from them
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from continuum_traces.run_dir import ENGINE, MANIFEST, TURNS, RunDirError, read_json, write_json, write_manifest
from continuum_traces.schema import RECORD_VERSION

from continuum_bench.errors import BenchError
from continuum_bench.sweep.grid import Grid
from continuum_bench.sweep.plan import SweepCell

SWEEP = "sweep.json"
PARTIAL = ".partial"
LOCK = ".lock"
FAILED = "failed"
LOGS = ("server.log", "engine.log")


class SweepStore:
    """The directory of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory while cells are played, so that no second command plays the same cells.

        Cells that a killed command left incomplete are removed.

        Raises:
            BenchError: another command holds the lock.
            RunDirError: the directory holds something else, or cannot be written.
        """
        if (self.path / MANIFEST).exists() and not (self.path / SWEEP).exists():
            raise RunDirError(f"{self.path}: holds a run already; choose another --out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / LOCK).open("w")
        except OSError as error:
            raise RunDirError(f"{self.path}: cannot write: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise BenchError(f"{self.path}: another sweep is at work there") from error
            shutil.rmtree(self.path / PARTIAL, ignore_errors=True)
            try:
                yield
            finally:
                shutil.rmtree(self.path / PARTIAL, ignore_errors=True)

    def write_plan(self, grid: Grid, cells: Sequence[SweepCell], command: Sequence[str], created: str) -> None:
        """Write sweep.json before anything runs. The analysis reads it."""
        groups: dict[str, dict[str, Any]] = {}
        for cell in cells:
            axes = {name: _plain(value) for name, value in cell.group.point.axes.items()}
            group = groups.setdefault(cell.group.folder, {"folder": cell.group.folder, "axes": axes, "cells": []})
            group["cells"].append({"name": cell.run_name, "policy": cell.arm.label, "seed": cell.seed})
        write_json(
            self.path / SWEEP,
            {
                "schema": "continuum-sweep",
                "version": RECORD_VERSION,
                "name": grid.name,
                "created": created,
                "command": list(command),
                "engine": grid.engine,
                "plot": dict(grid.plot),
                "groups": list(groups.values()),
            },
        )

    def is_done(self, cell: SweepCell) -> bool:
        return (self.path / cell.name / ENGINE).is_file()

    def begin(self, cell: SweepCell) -> Path:
        """Make an empty directory for the cell. The manifest of a virtual cell is written into it."""
        folder = self.path / PARTIAL / f"{os.getpid()}" / cell.name
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise RunDirError(f"{folder}: cannot create: {error.strerror}") from error
        if cell.group.description is not None:
            write_manifest(folder, cell.group.manifest(cell.arm, cell.seed))
        return folder

    def complete(self, cell: SweepCell, played: Path) -> Path:
        """Move a finished cell to its place, in one step.

        Raises:
            RunDirError: the cell is not complete: a file is missing or damaged, or turns are missing.
        """
        read_json(played / MANIFEST)
        read_json(played / ENGINE)
        with (played / TURNS).open("rb") as turns:
            ended = sum(line.endswith(b"\n") for line in turns)
        if ended < cell.cost:
            raise RunDirError(f"{cell.name}: {ended} of {cell.cost} turns were recorded")
        _to_disk(played)
        target = self.path / cell.name
        target.parent.mkdir(exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        played.rename(target)
        _to_disk(target.parent)
        return target

    def keep_log(self, cell: SweepCell, played: Path) -> Path | None:
        """Keep the log of a failed cell where the next command does not remove it. None if the cell wrote no log."""
        found = [played / name for name in LOGS if (played / name).exists()]
        if not found:
            return None
        target = self.path / FAILED / f"{cell.name.replace('/', '-')}.log"
        target.parent.mkdir(exist_ok=True)
        return found[0].replace(target)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _to_disk(folder: Path) -> None:
    """Flush the files before the rename. After a power cut, a cell that exists is complete."""
    for path in [*(child for child in folder.iterdir() if child.is_file()), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
