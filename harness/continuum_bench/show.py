"""What the terminal shows: progress while runs go on, the table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from continuum_analysis.words import COLUMNS, table_rows
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from continuum_bench.experiment import Experiment, Report

_out = Console(highlight=False, soft_wrap=True)
_err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_notice(text: str) -> None:
    """A line for people; JSON output stays alone on standard output."""
    _err.print(text, markup=False)


def print_summary(summary: Mapping[str, Any], caption: str) -> None:
    table = Table(title=caption, title_justify="left", title_style="")
    table.add_column("policy", no_wrap=True)
    for _, heading, _ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in table_rows(summary):
        table.add_row(*row)
    console = Console(highlight=False, width=max(_out.width, 130) if not _out.is_terminal else None)
    console.print(table)


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
        if not self._live and not self._quiet and report.state != "running":
            print_notice(f"{report.cell}: {report.state}")
