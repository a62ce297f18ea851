"""Plays the cells of a sweep on a Ray cluster, whose workers stay alive and play one cell after another."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from continuum_bench.errors import BenchError
from continuum_bench.sweep.plan import CellTask
from continuum_bench.virtual.pool import Listener, Report

OBJECT_STORE_BYTES = 200 * 2**20
"""Enough for workloads and records; Ray's default is 30% of the machine's memory."""

Played = dict[str, bytes] | str
"""The result of a cell: the files of its run, because workers may share no disk with this machine; or an error."""


class _Player:
    """The actor that runs in a worker. Its first cell imports vLLM, which stays loaded."""

    def play(self, task: CellTask) -> Played:
        with TemporaryDirectory() as folder:
            try:
                task.cell.simulate(Path(folder))
            except Exception as error:  # noqa: BLE001 - the worker's edge: the cell fails, the worker continues
                return str(error) or type(error).__name__
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir()) if path.is_file()}


def play_on_ray(tasks: Sequence[CellTask], address: str, jobs: int | None, on_report: Listener) -> bool:
    """Play the tasks on a Ray cluster, each into its ``folder``.

    Args:
        tasks: pickled with their workload, so the cluster needs no files. Continuum must be installed there.
        address: as for ``ray.init`` (``auto``, ``HOST:6379``, ``ray://HOST:10001``); ``local`` starts a cluster on this
            machine.
        jobs: largest number of tasks at the same time; None: as many as the cluster has CPUs.
        on_report: called at the start and the end of each cell.

    Returns:
        True if Ctrl-C stopped the play.

    Raises:
        BenchError: Ray is not installed, or the cluster does not answer.
    """
    ray = _connect(address)
    try:
        _play_all(ray, tasks, jobs, on_report)
    except KeyboardInterrupt:
        return True
    finally:
        ray.shutdown()
    return False


def _connect(address: str) -> Any:
    """Connect to a cluster. Returns the module ``ray``."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise BenchError("--ray-address: Ray is not installed; pip install ray") from error
    where: dict[str, Any] = {"address": address}
    if address == "local":
        where = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **where)
    except Exception as error:  # Ray raises the errors of its transport
        raise BenchError(f"--ray-address {address}: {str(error).splitlines()[0]}") from error
    return ray


def _play_all(ray: Any, tasks: Sequence[CellTask], jobs: int | None, on_report: Listener) -> None:
    """Play the tasks. If a worker dies, its task fails and the worker is replaced."""
    cpus = int(ray.cluster_resources().get("CPU", 1))
    environment = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    player = ray.remote(num_cpus=1, runtime_env={"env_vars": environment})(_Player)
    idle = [player.remote() for _ in range(max(1, min(jobs or cpus, cpus, len(tasks))))]
    pending, running = list(tasks), dict[Any, Any]()
    while pending or running:
        while pending and idle:
            task, worker = pending.pop(0), idle.pop()
            running[worker.play.remote(task)] = task, worker
            on_report(Report(task.name, state="loading"))
        for reference in ray.wait(list(running))[0]:
            task, worker = running.pop(reference)
            try:
                played = ray.get(reference)
            except ray.exceptions.RayError as error:
                played = f"its Ray worker failed: {str(error).splitlines()[0]}"
                worker = player.remote()
            idle.append(worker)
            on_report(_received(task, played))


def _received(task: CellTask, played: Played) -> Report:
    if isinstance(played, str):
        return Report(task.name, state="failed", error=played)
    for name, content in played.items():
        (task.folder / name).write_bytes(content)
    total = task.cell.group.workload.trace.number
    return Report(task.name, programs_done=total, programs_total=total, state="done")
