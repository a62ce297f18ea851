"""The cells of an experiment or a sweep: which runs there are, their manifests, and what plays one.

A group is a point of the grid: one workload on one engine at one rate. In a sweep it has the directory of an
experiment, whose name ends in a digest of everything that decides the results (the workload and its file, the hardware,
the engine options, the versions). A changed grid therefore adds cells and never mixes different ones. An experiment is
one group, in the directory itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from continuum_server.policy.registry import is_policy, split_arm
from continuum_server.step_times.catalog import find_model
from continuum_traces.run_dir import key_of
from continuum_traces.schema import Manifest
from continuum_traces.typed import to_json

from continuum_bench.invocation import command_line
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.virtual.pool import Listener, Report
from continuum_bench.workload.workload import JobSource, load_workload

DIGEST_CHARS = 10
LOG = "engine.log"


@dataclass(frozen=True, slots=True)
class Group:
    """A point of the grid with everything that its runs need."""

    folder: str
    """Empty: the runs are in the experiment's directory itself."""
    point: Point
    workload: JobSource
    engine: Any
    """``EngineConfig``; None if the cells are played on a server."""
    description: Any
    """``EngineDescription``; None if the cells are played on a server."""

    def manifest(self, arm: Arm, seed: int, created: str = "") -> Manifest:
        """Return the manifest of a virtual run."""
        description, token_times = self.description, self.point.options.token_times
        if all(is_policy(name) for name in arm.label.split(",")):
            description = description.without_offload()
        notes = {
            "programs are repeated with fresh tokens": self.workload.repeats,
            "gaps between output tokens are recorded (--token-times)": token_times,
            f"policy {arm.policy}": arm.label != arm.policy,
        }
        return Manifest(
            created=created,
            command=command_line(),
            continuum_version=version("continuum-ttl"),
            versions=description.versions,
            engine="virtual",
            policy=arm.label,
            policy_options=dict(arm.options),
            seed=seed,
            workload=self.workload.facts,
            hardware=description.hardware,
            engine_options=replace(description.engine_options, token_times=token_times or None),
            modelled=description.modelled,
            notes=tuple(note for note, holds in notes.items() if holds),
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: an arm and a seed."""

    group: Group
    arm: Arm
    seed: int

    @property
    def run_name(self) -> str:
        return f"{self.arm.label}-seed{self.seed}"

    @property
    def name(self) -> str:
        """The path of its directory in that of the experiment or sweep."""
        return str(Path(self.group.folder, self.run_name))

    @property
    def cost(self) -> int:
        """Number of turns to play, from which the time left is estimated."""
        return self.group.workload.facts.turns or 0

    @property
    def manifest(self) -> Manifest:
        return self.group.manifest(self.arm, self.seed)

    def simulate(self, folder: Path, on_progress: Callable[[int], None] | None = None) -> None:
        """Run the cell on the virtual engine, in this process, into ``folder``."""
        engine = import_module("continuum_server.virtual.engine")
        group, workload = self.group, self.group.workload
        policy, offloaded = split_arm(self.arm.policy)
        config = group.engine if offloaded else replace(group.engine, offload=None)
        jobs, show = workload.jobs(self.seed), (on_progress, group.point.options.token_times)
        limits = workload.lanes, workload.arrivals.time_limit_s
        engine.simulate(config, policy, dict(self.arm.options), jobs, self.seed, folder, *show, *limits)


@dataclass(frozen=True, slots=True)
class CellTask:
    """A cell that is played into ``folder``."""

    cell: Cell
    folder: Path

    @property
    def name(self) -> str:
        return self.cell.name

    def play(self, tell: Listener) -> None:
        """Run the cell on the virtual engine, as the body of a process, whose output goes to engine.log."""
        log = os.open(self.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        total = self.cell.group.workload.trace.number

        def on_progress(programs_done: int) -> None:
            tell(Report(self.name, programs_done, total))

        try:
            self.cell.simulate(self.folder, on_progress)
        except Exception as error:  # noqa: BLE001 - the process's edge: the run fails and the parent reports why
            traceback.print_exc()
            tell(Report(self.name, state="failed", error=str(error) or type(error).__name__))
        else:
            tell(Report(self.name, programs_done=total, programs_total=total, state="done"))


def plan(grid: Grid) -> list[Cell]:
    """Return every cell once, ordered by seed first, so that an interrupted sweep has complete pairs of policies.

    Raises:
        BenchError, TraceError, EngineError, StepTimesError: a point cannot be played.
    """
    groups = [group_of(point, grid) for point in grid.points]
    seeds = sorted({seed for point in grid.points for seed in point.seeds})
    cells: dict[str, Cell] = {}
    for seed in seeds:
        for group in groups:
            if seed in group.point.seeds:
                for cell in (Cell(group, arm, seed) for arm in group.point.arms):
                    cells.setdefault(cell.name, cell)  # two cases may contain the same point
    return list(cells.values())


def group_of(point: Point, grid: Grid) -> Group:
    options = point.options
    workload = load_workload(point.workload, options, options, find_model(options.model).max_context_tokens)
    engine, description = engine_of(options) if grid.engine == "virtual" else (None, None)
    group = Group("", point, workload, engine, description)
    if description is not None:
        decides: object = key_of(group.manifest(Arm("", ""), 0))
    else:
        given = {name: value for name, value in asdict(options).items() if name != "token_times" or value}
        decides = [grid.engine, to_json(workload.facts), given, dict(grid.serve)]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()
    return replace(group, folder=f"{point.workload}-jps{options.jps:g}-{digest[:DIGEST_CHARS]}")
