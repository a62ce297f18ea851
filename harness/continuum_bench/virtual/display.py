"""The progress of an experiment's runs in the terminal."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from continuum_bench.show import ERR, print_notice
from continuum_bench.virtual.experiment import Experiment
from continuum_bench.virtual.pool import Report


class Display:
    """Progress bars of an experiment's runs if the output is a terminal, else one line for each run that ended."""

    def __init__(self, experiment: Experiment, quiet: bool) -> None:
        self._live = ERR.is_terminal and not quiet
        self._quiet = quiet
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} programs"),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=ERR,
            disable=not self._live,
        )
        total = int(experiment.setup.workload.facts["programs"])
        self._tasks: dict[str, TaskID] = {
            cell.name: self._progress.add_task(cell.name, total=total, start=False, detail="waiting")
            for cell in experiment.cells
        }

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
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
