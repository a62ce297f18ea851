"""Plays the missing cells of a sweep: on this machine, on a Ray cluster, or on servers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from continuum_analysis.metrics import analyze_run
from continuum_analysis.records.timeline import AnalysisError
from continuum_traces.json_io import RunDirError

from continuum_bench.ctrl_c import INTERRUPTED
from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import goes_on, print_notice
from continuum_bench.sweep.grid import Grid
from continuum_bench.sweep.on_servers import play_live
from continuum_bench.sweep.plan import Cell, CellTask
from continuum_bench.sweep.store import SweepStore
from continuum_bench.virtual.pool import Listener, Report, play_here


@dataclass(slots=True)
class SweepOutcome:
    failed: dict[str, str] = field(default_factory=dict)
    """Why a cell failed, by its name."""
    interrupted: bool = False


def play_missing(
    store: SweepStore, grid: Grid, cells: Sequence[Cell], players: PlayerOptions, display: RunsDisplay
) -> SweepOutcome:
    """Play the cells that are not done. A cell's directory appears in the sweep when the cell is complete.

    Raises:
        BenchError: Ray is not installed, or the cluster does not answer.
        RunDirError: the directory cannot be written.
    """
    todo = {cell.name: cell for cell in cells if not store.is_done(cell)}
    outcome, done = SweepOutcome(), len(cells) - len(todo)
    display.expect({name: cell.cost for name, cell in todo.items()}, done, store.path)
    with display:
        folders = {name: store.begin(cell) for name, cell in todo.items()}

        def on_report(report: Report) -> None:
            result, cell, folder = "", todo[report.cell], folders[report.cell]
            if report.state == "done":
                try:
                    result = _keep(store, cell, folder)
                except (RunDirError, AnalysisError) as error:
                    report = replace(report, state="failed", error=str(error))
            if report.state == "failed":
                log = store.keep_log(cell, folder)
                outcome.failed[cell.name] = report.error if log is None else f"{report.error} (details in {log})"
            display.update(report, result)

        if todo:
            tasks = [CellTask(cell, folders[name]) for name, cell in todo.items()]
            outcome.interrupted = _play(grid, tasks, players, on_report)
    if outcome.interrupted:
        display.say_lost()
    return outcome


def _keep(store: SweepStore, cell: Cell, folder: Path) -> str:
    """Move a complete cell to its final directory. Return the text to display."""
    mean = analyze_run(store.complete(cell, folder)).values["jct_mean_s"]
    return "no program finished" if mean is None else f"mean JCT {mean:.1f} s"


def _play(grid: Grid, tasks: Sequence[CellTask], players: PlayerOptions, on_report: Listener) -> bool:
    """Play the cells, and write each run into its task's folder. Return True if Ctrl-C stopped the play."""
    if grid.engine != "virtual":
        return play_live(tasks, grid.engine, grid.serve, on_report, grid.live)
    if players.ray_address is not None:
        from continuum_bench.sweep.on_ray import play_on_ray  # noqa: PLC0415 - Ray is an extra

        return play_on_ray(tasks, players.ray_address, players.jobs, on_report)
    return play_here({task.name: task.play for task in tasks}, players.jobs or os.cpu_count() or 1, on_report)


def exit_code(outcome: SweepOutcome, store: SweepStore, cells: Sequence[Cell], what: str = "cells") -> int:
    """Print why cells failed, or how many are complete after Ctrl-C. Return the exit code: 0, 1 (a cell failed) or 130
    (Ctrl-C)."""
    for name, error in outcome.failed.items():
        print_notice(f"error: {name}: {error}")
    if outcome.interrupted:
        done = f"{sum(map(store.is_done, cells))} of {len(cells)} {what} are complete in {store.path}"
        print_notice(f"stopped; {done}; {goes_on(store.path)}")
        return INTERRUPTED
    return 1 if outcome.failed else 0
