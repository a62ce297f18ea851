"""Play a sweep's cells on a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from continuum_bench.sweep.ray_cluster import Cluster
from continuum_bench.virtual.experiment import CellTask
from continuum_bench.virtual.pool import Listener, Outcome, Report


@dataclass(frozen=True, slots=True)
class Played:
    """What a Ray worker sends back: the files of a run, because workers share no disk with this machine."""

    name: str
    error: str = ""
    files: tuple[tuple[str, bytes], ...] = ()


def play_there(task: CellTask) -> Played:
    """Play a cell on this worker. The first cell imports vLLM, which stays loaded."""
    with TemporaryDirectory() as folder:
        here = CellTask(task.experiment, task.cell, task.name, Path(folder))
        try:
            here.simulate()
        except Exception as error:  # noqa: BLE001 - the worker's edge: the cell fails, the worker goes on
            return Played(task.name, str(error) or type(error).__name__)
        files = tuple((path.name, path.read_bytes()) for path in sorted(Path(folder).iterdir()) if path.is_file())
    return Played(task.name, files=files)


def play_on_ray(tasks: list[CellTask], address: str, jobs: int | None, on_report: Listener) -> Outcome:
    """Play the tasks on a Ray cluster, each into its ``folder``.

    Args:
        tasks: pickled with their workload, so the cluster needs no files. Continuum must be installed there.
        address: as for ``ray.init``; ``local`` starts a cluster on this machine.
        jobs: most tasks at the same time; None: as many as the cluster has CPUs.
        on_report: called at the start and the end of each cell.

    Raises:
        BenchError: Ray is not installed, or the cluster does not answer.
    """
    outcome = Outcome()
    with Cluster(address) as cluster:
        try:
            for news in cluster.map(play_there, tasks, jobs):
                if news.kind == "sent":
                    on_report(Report(news.task.name, state="loading"))
                else:
                    played = news.result if news.kind == "back" else Played(news.task.name, news.result)
                    on_report(_received(news.task, played, outcome))
        except KeyboardInterrupt:
            outcome.interrupted = True
    return outcome


def _received(task: CellTask, played: Played, outcome: Outcome) -> Report:
    for name, content in played.files:
        (task.folder / name).write_bytes(content)
    total = int(task.experiment.workload.facts["programs"])
    if played.error:
        outcome.failed[task.name] = played.error
        return Report(task.name, state="failed", error=played.error)
    outcome.done.append(task.name)
    return Report(task.name, programs_done=total, programs_total=total, state="done")
