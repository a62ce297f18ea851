"""Plays the missing cells of a sweep: on this machine, on a Ray cluster, or on servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from continuum_analysis.metrics import analyze_run
from continuum_analysis.records.timeline import AnalysisError
from continuum_traces.run_dir import RunDirError

from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import goes_on, print_notice
from continuum_bench.sweep.grid import Grid
from continuum_bench.sweep.on_servers import play_live
from continuum_bench.sweep.plan import Cell, CellTask
from continuum_bench.sweep.store import SweepStore
from continuum_bench.virtual.pool import Listener, Outcome, Report, play_here


def play_missing(
    store: SweepStore, grid: Grid, cells: Sequence[Cell], players: PlayerOptions, quiet: bool, what: str = "cells"
) -> Outcome:
    """Play the cells that are not done. A cell's directory appears in the sweep when the cell is complete.

    Raises:
        BenchError: Ray is not installed, or the cluster does not answer.
        RunDirError: the directory cannot be written.
    """
    todo = [cell for cell in cells if not store.is_done(cell)]
    by_name = {cell.name: cell for cell in todo}
    costs = {cell.name: cell.cost for cell in todo}
    with RunsDisplay(costs, len(cells) - len(todo), quiet, what) as display:
        if not todo:
            return Outcome()
        folders = {cell.name: store.begin(cell) for cell in todo}
        spoiled: dict[str, str] = {}

        def on_report(report: Report) -> None:
            result = ""
            if report.state == "done":
                try:
                    result = _keep(store, by_name[report.cell], folders[report.cell])
                except (RunDirError, AnalysisError) as error:
                    spoiled[report.cell] = str(error)
                    report = replace(report, state="failed", error=str(error))
            display.update(report, result)

        outcome = _player(grid, [(cell, folders[cell.name]) for cell in todo], players)(on_report)
    if outcome.interrupted:
        display.say_lost()
    outcome.done = [name for name in outcome.done if name not in spoiled]
    for name, error in {**outcome.failed, **spoiled}.items():
        log = store.keep_log(by_name[name], folders[name])
        outcome.failed[name] = error if log is None else f"{error} (details in {log})"
    return outcome


def _keep(store: SweepStore, cell: Cell, folder: Path) -> str:
    """Move a complete cell to its final directory. Returns the text to display."""
    mean = analyze_run(store.complete(cell, folder)).values["jct_mean_s"]
    return "no program finished" if mean is None else f"{mean:.1f} s"


def _player(grid: Grid, cells: Sequence[tuple[Cell, Path]], players: PlayerOptions) -> Callable[[Listener], Outcome]:
    if grid.engine != "virtual":
        return lambda on_report: play_live(cells, grid.engine, grid.serve, on_report)
    tasks = [CellTask(cell, folder) for cell, folder in cells]
    if players.ray_address is not None:
        from continuum_bench.sweep.on_ray import play_on_ray  # noqa: PLC0415 - Ray is an extra

        address = players.ray_address
        return lambda on_report: play_on_ray(tasks, address, players.jobs, on_report)
    return lambda on_report: play_here(tasks, players.jobs or os.cpu_count() or 1, on_report)


def exit_code(outcome: Outcome, store: SweepStore, cells: Sequence[Cell], what: str = "cells") -> int:
    """Print what failed or was stopped. Returns the exit code: 0, 1 if cells failed, 130 after Ctrl-C."""
    for name, error in outcome.failed.items():
        print_notice(f"error: {name}: {error}")
    if outcome.interrupted:
        done = f"{sum(map(store.is_done, cells))} of {len(cells)} {what} are complete in {store.path}"
        print_notice(f"stopped; {done}; {goes_on(store.path)}")
        return 130
    return 1 if outcome.failed else 0
