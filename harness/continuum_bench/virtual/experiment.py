"""Runs policies with the same arrivals, one process for each run, and writes a directory of runs."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from continuum_server.policy.registry import is_policy, split_arm
from continuum_traces.run_dir import (
    ARRIVALS,
    ENGINE,
    EVENTS,
    TURNS,
    begin,
)
from continuum_traces.schema import Manifest

from continuum_bench.invocation import command_line, utc_now
from continuum_bench.virtual.pool import Listener, Report
from continuum_bench.workload.workload import JobSource

LOG = "engine.log"


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a policy and a seed."""

    policy: str
    """The arm: ``continuum``, or ``continuum+offload`` with the engine's tiers."""
    options: Mapping[str, Any]
    seed: int

    @property
    def name(self) -> str:
        return f"{self.policy}-seed{self.seed}"


@dataclass(frozen=True, slots=True)
class Setup:
    """What all runs of an experiment have in common, apart from their policies and seeds."""

    workload: JobSource
    engine: Any
    """``continuum_server.virtual.config.EngineConfig``; None if a server plays the runs."""
    token_times: bool = False
    """Record the gaps between output tokens."""


def prepare(out: Path, cells: Sequence[Cell], setup: Setup, description: Any) -> list[CellTask]:
    """Make the directories and write all manifests, before any run starts.

    An experiment that was stopped in this directory goes on: complete runs are kept and the others start again.

    Args:
        out: the directory of the experiment.
        cells: its runs.
        setup: what they have in common.
        description: ``EngineDescription`` of the engine.

    Returns:
        The runs that are left.

    Raises:
        RunDirError: the directory holds another experiment, or cannot be written.
    """
    policies = ",".join(dict.fromkeys(cell.policy for cell in cells))
    begin(out, manifest_of(setup, description, policies, {}, cells[0].seed, utc_now()))
    for cell in cells:
        begin(out / cell.name, manifest_of(setup, description, cell.policy, cell.options, cell.seed, ""))
    left = [CellTask(setup, cell, cell.name, out / cell.name) for cell in cells]
    left = [task for task in left if not (task.folder / ENGINE).exists()]
    for task in left:  # a stopped run begins again, and the engine appends to existing files
        for name in (EVENTS, TURNS, ARRIVALS, LOG):
            (task.folder / name).unlink(missing_ok=True)
    return left


def manifest_of(
    setup: Setup, description: Any, policy: str, options: Mapping[str, Any], seed: int, created: str
) -> Manifest:
    if all(is_policy(arm) for arm in policy.split(",")):
        description = description.without_offload()
    return Manifest(
        created=created,
        command=command_line(),
        continuum_version=version("continuum-ttl"),
        versions=description.versions,
        engine="virtual",
        policy=policy,
        policy_options=dict(options),
        seed=seed,
        workload=setup.workload.facts,
        hardware=description.hardware,
        engine_options=replace(description.engine_options, token_times=setup.token_times or None),
        modelled=description.modelled,
        notes=_notes(setup),
    )


def _notes(setup: Setup) -> tuple[str, ...]:
    notes = {
        "programs are repeated with fresh tokens": setup.workload.repeats,
        "gaps between output tokens are recorded (--token-times)": setup.token_times,
    }
    return tuple(note for note, holds in notes.items() if holds)


@dataclass(frozen=True, slots=True)
class CellTask:
    """One cell, which is run into ``folder``."""

    setup: Setup
    cell: Cell
    name: str
    folder: Path

    def play(self, tell: Listener) -> None:
        """Run the cell as the body of a process, whose output goes to engine.log."""
        log = os.open(self.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        total = self.setup.workload.trace.number
        try:
            self.simulate(lambda now: tell(Report(self.name, now.virtual_s, now.programs_done, total, now.pins_held)))
        except Exception as error:  # noqa: BLE001 - the process's edge: the run fails and the parent reports why
            traceback.print_exc()
            tell(Report(self.name, state="failed", error=str(error) or type(error).__name__))
        else:
            tell(Report(self.name, programs_done=total, programs_total=total, state="done"))

    def simulate(self, on_progress: Callable[[Any], None] | None = None) -> None:
        """Run the cell in this process."""
        engine = import_module("continuum_server.virtual.engine")
        setup, cell = self.setup, self.cell
        jobs = setup.workload.jobs(cell.seed)
        policy, offloaded = split_arm(cell.policy)
        config = setup.engine if offloaded else replace(setup.engine, offload=None)
        lanes, limit_s = setup.workload.lanes, setup.workload.arrivals.time_limit_s
        show = on_progress, setup.token_times
        engine.simulate(config, policy, cell.options, jobs, cell.seed, self.folder, *show, lanes, limit_s)
