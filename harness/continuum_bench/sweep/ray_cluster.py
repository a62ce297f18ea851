"""The part of Ray that sweeps need: workers that stay alive and play one task after the other."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from continuum_bench.errors import BenchError

OBJECT_STORE_BYTES = 200 * 2**20
"""Enough for workloads and records; Ray's default is 30% of the machine's memory."""


@dataclass(frozen=True, slots=True)
class News:
    """News of one task: it was sent to a worker, came back with its result, or was lost for a reason."""

    kind: Literal["sent", "back", "lost"]
    task: Any
    result: Any = None


class _Player:
    """What runs in a worker."""

    def play(self, work: Callable[[Any], Any], task: Any) -> Any:
        return work(task)


class Cluster:
    """A connection to Ray. Leaving its context closes the connection and stops the workers.

    Args:
        address: as ``ray.init`` takes it (``auto``, ``HOST:6379``, ``ray://HOST:10001``), or ``local``.

    Raises:
        BenchError: Ray is not installed, or the cluster does not answer.
    """

    def __init__(self, address: str) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            self._ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError as error:
            raise BenchError("--ray-address: Ray is not installed; install continuum-ttl[sweep]") from error
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            if address == "local":
                self._ray.init(include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **quiet)
            else:
                self._ray.init(address=address, **quiet)
        except Exception as error:  # Ray raises whatever its transport does
            raise BenchError(f"--ray-address {address}: {str(error).splitlines()[0]}") from error

    def map(self, work: Callable[[Any], Any], tasks: Sequence[Any], jobs: int | None) -> Iterator[News]:
        """Play the tasks and yield their news. The task of a worker that dies is lost; the worker is replaced."""
        ray = self._ray
        cpus = int(ray.cluster_resources().get("CPU", 1))
        environment = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
        player = ray.remote(num_cpus=1, runtime_env={"env_vars": environment})(_Player)
        idle = [player.remote() for _ in range(max(1, min(jobs or cpus, cpus, len(tasks))))]
        pending, running = list(tasks), dict[Any, Any]()
        while pending or running:
            while pending and idle:
                task, worker = pending.pop(0), idle.pop()
                running[worker.play.remote(work, task)] = task, worker
                yield News("sent", task)
            for reference in ray.wait(list(running))[0]:
                task, worker = running.pop(reference)
                try:
                    yield News("back", task, ray.get(reference))
                except ray.exceptions.RayError as error:
                    yield News("lost", task, f"its Ray worker failed: {str(error).splitlines()[0]}")
                    worker = player.remote()
                idle.append(worker)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.shutdown()
