"""The directory of a sweep or an experiment. A cell is played below ``.partial`` and moved when it is complete.

``runs/NAME/sweep.json``               the grid's cells, in order
``runs/NAME/GROUP/POLICY-seedN/``      the run directory of a cell
``runs/NAME/failed/``                  logs of cells that failed
``runs/NAME/sweep.csv``, ``summary.json``, ``report.html``, ``sweep.svg``   written from them
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from continuum_analysis.compare.runs import SWEEP
from continuum_traces.json_io import RunDirError, read_json, write_json
from continuum_traces.records.run_dir import ENGINE, MANIFEST, TURNS, create, write_manifest
from continuum_traces.schema import RECORD_VERSION

from continuum_bench.invocation import command_line
from continuum_bench.lock import locked
from continuum_bench.sweep.grid import Grid
from continuum_bench.sweep.plan import Cell

PARTIAL = ".partial"
FAILED_LOGS = "failed"
LOGS = ("server.log", "engine.log")


class SweepStore:
    """The directory of one sweep or experiment."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self, other: str = MANIFEST) -> Iterator[None]:
        """Lock the directory while cells are played, and remove the incomplete cells of a killed command.

        Args:
            other: as for ``locked``: the file of a directory of the other kind.

        Raises:
            RunDirError: another command holds the lock, or the directory holds something else or cannot be written.
        """
        with locked(self.path, other):
            shutil.rmtree(self.path / PARTIAL, ignore_errors=True)
            try:
                yield
            finally:
                shutil.rmtree(self.path / PARTIAL, ignore_errors=True)

    def write_plan(self, grid: Grid, cells: Sequence[Cell], created: str) -> None:
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
                "command": list(command_line()),
                "engine": grid.engine,
                "plot": dict(grid.plot),
                "groups": list(groups.values()),
            },
        )

    def is_done(self, cell: Cell) -> bool:
        return (self.path / cell.name / ENGINE).is_file()

    def begin(self, cell: Cell) -> Path:
        """Create an empty directory for the cell, with the manifest if the cell is virtual."""
        folder = self.path / PARTIAL / f"{os.getpid()}" / cell.name
        shutil.rmtree(folder, ignore_errors=True)
        create(folder)
        if cell.group.description is not None:
            write_manifest(folder, cell.manifest)
        return folder

    def complete(self, cell: Cell, played: Path) -> Path:
        """Move a finished cell to its final directory, in one step.

        Raises:
            RunDirError: the cell is not complete: a file is missing or damaged, or turns are missing.
        """
        read_json(played / MANIFEST)
        read_json(played / ENGINE)
        with (played / TURNS).open("rb") as turns:
            ended = sum(line.endswith(b"\n") for line in turns)
        options = cell.group.point.options
        if ended < cell.cost and options.time_limit_s is None:
            raise RunDirError(f"{cell.name}: {ended} of {cell.cost} turns were recorded")
        _to_disk(played)
        target = self.path / cell.name
        target.parent.mkdir(exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        played.rename(target)
        _to_disk(target.parent)
        return target

    def keep_log(self, cell: Cell, played: Path) -> Path | None:
        """Move the log of a failed cell to ``failed/``. Returns its path; None: the cell wrote no log."""
        logs = [played / name for name in LOGS if (played / name).exists()]
        if not logs:
            return None
        target = self.path / FAILED_LOGS / f"{cell.name.replace('/', '-')}.log"
        target.parent.mkdir(exist_ok=True)
        return logs[0].replace(target)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _to_disk(folder: Path) -> None:
    """Flush the files of a folder, so that a cell is complete even after a power failure."""
    for path in [*(child for child in folder.iterdir() if child.is_file()), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
