"""Policies side by side: one process a run, the same arrivals for all, a directory of runs out."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from continuum_traces.run_dir import create, write_manifest
from continuum_traces.schema import Manifest

from continuum_bench.workload import BenchError, Play, Workload, arrivals

ENGINE_MODULE = "continuum_server.virtual.engine"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a policy and a seed."""

    policy: str
    options: Mapping[str, Any]
    seed: int

    @property
    def name(self) -> str:
        return f"{self.policy}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Report:
    """News of a cell, from its process."""

    cell: str
    virtual_s: float = 0.0
    programs_done: int = 0
    programs_total: int = 0
    pins_held: int = 0
    state: str = "running"
    """loading, running, done or failed."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Experiment:
    cells: tuple[Cell, ...]
    workload: Workload
    jps: float
    engine: Any
    """``continuum_server.virtual.config.EngineConfig``."""
    out: Path
    command: tuple[str, ...] = ()
    jobs: int = 2


@dataclass(slots=True)
class Outcome:
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: bool = False


def prepare(experiment: Experiment, description: Any) -> None:
    """Make the directories and write every manifest before anything runs.

    Raises:
        RunDirError: a directory that exists already or cannot be written.
    """
    create(experiment.out)
    for cell in experiment.cells:
        folder = create(experiment.out / cell.name)
        write_manifest(folder, _manifest(experiment, description, cell.policy, cell.options, cell.seed, ""))
    now = datetime.now(UTC).isoformat(timespec="seconds")
    policies = ",".join(dict.fromkeys(cell.policy for cell in experiment.cells))
    write_manifest(experiment.out, _manifest(experiment, description, policies, {}, experiment.cells[0].seed, now))


def _manifest(
    experiment: Experiment, description: Any, policy: str, options: Mapping[str, Any], seed: int, created: str
) -> Manifest:
    return Manifest(
        created=created,
        command=experiment.command,
        continuum_version=version("continuum-ttl"),
        versions=description.versions,
        engine="virtual",
        policy=policy,
        policy_options=dict(options),
        seed=seed,
        workload=experiment.workload.facts,
        hardware=description.hardware,
        engine_options=description.engine_options,
        modelled=description.modelled,
        notes=("programs are repeated with fresh tokens",) if experiment.workload.repeats > 1 else (),
    )


def run(experiment: Experiment, on_report: Callable[[Report], None]) -> Outcome:
    """Run every cell, at most ``jobs`` at once. Ctrl-C stops what runs and keeps what is done."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([ENGINE_MODULE])  # vLLM is imported once, not once a run
    pending, live, outcome = list(experiment.cells), dict[Connection, tuple[Cell, BaseProcess]](), Outcome()
    try:
        _start_forkserver()
        while pending or live:
            while pending and len(live) < experiment.jobs:
                cell = pending.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_play_cell, args=(experiment, cell, sender), daemon=True)
                process.start()
                sender.close()
                live[receiver] = (cell, process)
                on_report(Report(cell.name, state="loading"))
            for ready in wait(list(live)):
                _listen(ready, live, outcome, on_report)  # type: ignore[arg-type]
    except KeyboardInterrupt:
        outcome.interrupted = True
        for _, process in live.values():
            process.kill()
            process.join()
    return outcome


def _start_forkserver() -> None:
    """Start it deaf to Ctrl-C: stopping is this process's business, and a traceback from there helps nobody.

    Blocked, not ignored: it inherits the mask, and a Ctrl-C in this very moment reaches us afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(
    ready: Connection,
    live: dict[Connection, tuple[Cell, BaseProcess]],
    outcome: Outcome,
    on_report: Callable[[Report], None],
) -> None:
    cell, process = live[ready]
    try:
        report: Report = ready.recv()
    except EOFError:
        process.join()
        report = Report(cell.name, state="failed", error=f"its process ended with exit code {process.exitcode}")
    if report.state == "done":
        outcome.done.append(cell.name)
    elif report.state == "failed":
        outcome.failed[cell.name] = report.error
    on_report(report)
    if report.state in ("done", "failed"):
        process.join()
        ready.close()
        del live[ready]


def _play_cell(experiment: Experiment, cell: Cell, sender: Connection) -> None:
    """Body of a run's process. Its own output goes to engine.log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = experiment.out / cell.name
    log = os.open(folder / "engine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    engine = import_module(ENGINE_MODULE)
    total = int(experiment.workload.facts["programs"])

    def progress(now: Any) -> None:
        sender.send(Report(cell.name, now.virtual_s, now.programs_done, total, now.pins_held))

    try:
        plays = arrivals(experiment.workload, experiment.jps, cell.seed)
        jobs = [engine.Job(play.program, play.arrival_s, play.salt) for play in plays]
        engine.simulate(experiment.engine, cell.policy, cell.options, jobs, cell.seed, folder, progress)
    except Exception as error:  # noqa: BLE001 - the process's edge: the run fails and the parent says why
        traceback.print_exc()
        sender.send(Report(cell.name, state="failed", error=str(error) or type(error).__name__))
    else:
        sender.send(Report(cell.name, programs_done=total, programs_total=total, state="done"))


def cells_for(policies: Sequence[str], options: Mapping[str, Mapping[str, Any]], seeds: Sequence[int]) -> list[Cell]:
    return [Cell(policy, dict(options.get(policy, {})), seed) for seed in seeds for policy in policies]


__all__ = ["BenchError", "Cell", "Experiment", "Outcome", "Play", "Report", "cells_for", "prepare", "run"]
