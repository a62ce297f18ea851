"""``continuum-bench sweep``: a grid in, its missing cells played, a table, a plot and a report out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from continuum_analysis.sweep.tables import Sweep, read_sweep, write_tables

from continuum_bench.options.sweep import SweepOptions
from continuum_bench.show import print_notice, print_table
from continuum_bench.sweep.grid import Grid, read_grid
from continuum_bench.sweep.plan import SweepCell, plan
from continuum_bench.sweep.run import play_missing
from continuum_bench.sweep.store import SweepStore
from continuum_bench.virtual.pool import Outcome


def run_sweep(options: SweepOptions) -> int:
    """0; 1 where cells failed; 130 for Ctrl-C."""
    grid = read_grid(options.grid, options.overrides or ())
    out = options.out or Path("runs") / grid.name
    return play_grid(grid, out, options)


def play_grid(grid: Grid, out: Path, options: SweepOptions) -> int:
    """Play what is missing of ``grid`` in ``out``, then write and show what is there."""
    command = tuple(["continuum-bench", *sys.argv[1:]])
    cells, store = plan(grid, out, command), SweepStore(out)
    if options.dry_run:
        return show_plan(store, cells)
    with store.locked():
        store.write_plan(grid, cells, command, datetime.now(UTC).isoformat(timespec="seconds"))
        todo = sum(not store.is_done(cell) for cell in cells)
        print_notice(f"{len(cells)} cells, {len(cells) - todo} done before, {todo} to play, into {out}")
        outcome = play_missing(store, grid, cells, options, quiet=options.json_output)
        conclude(out, options)
    return exit_code(outcome, out)


def exit_code(outcome: Outcome, out: Path) -> int:
    for cell, error in outcome.failed.items():
        print_notice(f"error: {cell}: {error}")
    if outcome.interrupted:
        print_notice(f"stopped; what is complete stays in {out}, the same command goes on from there")
        return 130
    return 1 if outcome.failed else 0


def conclude(out: Path, options: SweepOptions) -> Sweep | None:
    """Tables, plots and report of what is complete; None where nothing is."""
    sweep = read_sweep(out)
    if not any(group.summary for group in sweep.groups):
        return None
    write_tables(sweep)
    if not options.no_report:
        from continuum_analysis.sweep.report import write_sweep_report  # noqa: PLC0415 - matplotlib is slow to import

        print_notice(f"report: {write_sweep_report(sweep)}")
    if options.json_output:
        sys.stdout.write(json.dumps({**sweep.as_json(), "out": str(out)}, indent=2) + "\n")
    else:
        print_sweep(sweep)
    return sweep


def print_sweep(sweep: Sweep) -> None:
    """One row a point and policy."""
    print_table(sweep.table(), sweep.name)
    for warning in sweep.warnings():
        print_notice(f"warning: {warning}")


def show_plan(store: SweepStore, cells: Sequence[SweepCell]) -> int:
    """The cells' names, and whether they are there."""
    for cell in cells:
        sys.stdout.write(f"{cell.name}{' (done)' if store.is_done(cell) else ''}\n")
    return 0
