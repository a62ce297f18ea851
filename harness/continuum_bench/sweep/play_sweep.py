"""``continuum-bench sweep``: plays the missing cells of a grid, then writes the table, the plot and the report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from continuum_analysis.sweep.capacity import capacity_of
from continuum_analysis.sweep.report import sweep_answer, sweep_json, sweep_line, write_sweep_report, write_tables
from continuum_analysis.sweep.tables import BESIDE, MODELLED, Sweep, read_sweep

from continuum_bench.ctrl_c import INTERRUPTED
from continuum_bench.invocation import utc_now
from continuum_bench.options.run import RunOptions
from continuum_bench.options.sweep import FigureOptions, SweepOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import print_json, print_notice, print_table, print_verdict
from continuum_bench.sweep.grid import Grid, read_grid
from continuum_bench.sweep.plan import Cell, plan
from continuum_bench.sweep.play_cells import exit_code, play_missing
from continuum_bench.sweep.predict import predict, with_profiles
from continuum_bench.sweep.store import SweepStore


def run_sweep(options: SweepOptions) -> int:
    """Play a grid. Returns the exit code: 0, 1 if cells failed, 130 after Ctrl-C."""
    grid = read_grid(options.grid, options.overrides or ())
    out, quiet = options.out or Path("runs") / grid.name, options.json_output
    grid = with_profiles(grid, out) if options.predict else grid

    def first(store: SweepStore, cells: Sequence[Cell]) -> int:
        return predict(store, grid, cells, options, quiet or options.quiet) if options.predict else 0

    return play_grid(grid, out, options, lambda sweep: show_sweep(sweep, options), quiet, first)


def play_grid(
    grid: Grid,
    out: Path,
    options: SweepOptions | FigureOptions,
    show: Callable[[Sweep], None],
    quiet: bool = False,
    first: Callable[[SweepStore, Sequence[Cell]], int] = lambda store, cells: 0,
) -> int:
    """Play the cells of ``grid`` that are missing in ``out``, write the tables, and ``show`` what is complete.

    With ``--dry-run``, only the names of the cells are printed. Returns the exit code, as ``run_sweep`` does. ``first``
    is called before any cell is played, and returns an exit code too.
    """
    cells, store = plan(grid), SweepStore(out)
    if options.dry_run:
        for cell in cells:
            sys.stdout.write(f"{cell.name}{' (done)' if store.is_done(cell) else ''}\n")
        return 0
    with store.locked():
        store.write_plan(grid, cells, utc_now())
        code = first(store, cells)
        if code == INTERRUPTED:
            return code
        outcome = play_missing(store, grid, cells, options, RunsDisplay({}, 0, quiet or options.quiet, "cells"))
        sweep = read_sweep(out)
        if any(group.summary for group in sweep.groups):
            write_tables(sweep)
            show(sweep)
    return exit_code(outcome, store, cells) or code


def show_sweep(sweep: Sweep, options: SweepOptions | RunOptions) -> None:
    """Write the report of a sweep, and print its table and its answer."""
    capacity = capacity_of(sweep)
    if not options.no_report:
        page = write_sweep_report(sweep)
        if not options.quiet:
            print_notice(f"report: {page}")
    if options.json_output:
        print_json({**sweep_json(sweep), "out": str(sweep.path)})
        return
    table = sweep.table() if capacity is None else capacity.table()
    caption = f"{sweep.name}: {sweep_line(sweep)}; {MODELLED.get(sweep.engine, sweep.engine)}"
    print_table(table, caption, words=("policy",))
    if (predicted := sweep.prediction_table()) is not None:
        print_table(predicted, f"{BESIDE}; {MODELLED.get(sweep.engine, sweep.engine)}")
    print_verdict(" ".join(sweep_answer(sweep)))
    for warning in sweep.warnings():
        print_notice(f"warning: {warning}")
