"""What the terminal shows: progress while runs go on, the table at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from continuum_analysis.words import columns, table_rows
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from continuum_bench.cell_pool import Report
from continuum_bench.experiment import Experiment

_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_notice(text: str) -> None:
    """A line for people; JSON output stays alone on standard output."""
    _err.print(text, markup=False)


def print_summary(summary: Mapping[str, Any], caption: str) -> None:
    """One row a policy; one column a policy where the terminal is too narrow for that."""
    shown = columns([summary])
    rows = [["policy", *(heading for _, heading, _ in shown)], *table_rows(summary, shown)]
    console = Console(highlight=False, width=max(_out.width, 150) if not _out.is_terminal else None)
    table = _table(caption, rows)
    if Measurement.get(console, console.options.update(max_width=1000), table).maximum > console.width:
        table = _table(caption, list(zip(*rows, strict=True)))
    console.print(table)


def print_verdict(text: str) -> None:
    """A sentence of the result, below its table; words stay whole in a terminal."""
    Console(highlight=False, soft_wrap=not _out.is_terminal).print(text, markup=False)


def _table(caption: str, rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=Text(caption), title_justify="left", title_style="")
    for index, heading in enumerate(rows[0]):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    return table


class Display:
    """Live progress of an experiment's runs; plain lines where the output is not a terminal."""

    def __init__(self, experiment: Experiment, quiet: bool) -> None:
        self._live = _err.is_terminal and not quiet
        self._quiet = quiet
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} programs"),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=_err,
            disable=not self._live,
        )
        total = int(experiment.workload.facts["programs"])
        self._tasks: dict[str, TaskID] = {
            cell.name: self._progress.add_task(cell.name, total=total, start=False, detail="waiting")
            for cell in experiment.cells
        }

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, report: Report) -> None:
        task = self._tasks[report.cell]
        self._progress.start_task(task)
        detail = report.state if report.state != "running" else f"t = {report.virtual_s:.0f} s, {report.pins_held} pins"
        if report.state == "failed":
            self._progress.update(task, detail="failed")
        else:
            self._progress.update(task, completed=report.programs_done, detail=detail)
        if not self._live and not self._quiet and report.state in ("done", "failed"):
            print_notice(f"{report.cell}: {report.state}")
