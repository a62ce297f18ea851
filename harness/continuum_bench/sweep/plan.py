"""From a grid to cells: which runs there are and in which directory each run is.

A group is a point of the grid: one workload on one engine at one rate. Its directory is that of an experiment. The
directory's name ends in a digest of everything that decides the results (the workload and the digest of its file, the
hardware, the engine options, the versions). A changed grid therefore adds cells and never mixes unlike ones.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from continuum_server.step_times.attention import BANDS
from continuum_server.step_times.catalog import find_model
from continuum_traces.schema import Manifest

from continuum_bench.errors import BenchError
from continuum_bench.options.run import BAND
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.virtual.experiment import Cell, Experiment, manifest_of
from continuum_bench.workload.workload import Workload, workload_of

DIGEST_CHARS = 10


@dataclass(frozen=True, slots=True)
class Group:
    """A point of the grid with everything that its runs need."""

    folder: str
    point: Point
    workload: Workload
    experiment: Experiment
    """``out`` is the sweep's directory. ``engine`` is None if the cells are played on a server."""
    description: Any
    """``EngineDescription``, or None if the cells are played on a server."""

    def manifest(self, arm: Arm, seed: int) -> Manifest:
        """The manifest of one run."""
        made = manifest_of(self.experiment, self.description, arm.label, arm.options, seed, "")
        return made if arm.label == arm.policy else replace(made, notes=(*made.notes, f"policy {arm.policy}"))


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One run of a sweep."""

    group: Group
    arm: Arm
    seed: int

    @property
    def run_name(self) -> str:
        return f"{self.arm.label}-seed{self.seed}"

    @property
    def name(self) -> str:
        return f"{self.group.folder}/{self.run_name}"

    @property
    def cost(self) -> int:
        """Number of turns to play. The time left is estimated from it."""
        return int(self.group.workload.facts["turns"])

    @property
    def bench_cell(self) -> Cell:
        return Cell(self.arm.policy, dict(self.arm.options), self.seed)


def plan(grid: Grid, out: Path, command: Sequence[str]) -> list[SweepCell]:
    """Every cell once, ordered by seed first, so that an interrupted sweep has complete pairs of policies.

    Raises:
        BenchError, TraceError, EngineError, StepTimesError: a point that cannot be played.
    """
    groups = [group_of(point, grid, out, command) for point in grid.points]
    seeds = sorted({seed for point in grid.points for seed in point.seeds})
    cells: dict[str, SweepCell] = {}
    for seed in seeds:
        for group in groups:
            if seed in group.point.seeds:
                for cell in (SweepCell(group, arm, seed) for arm in group.point.arms):
                    cells.setdefault(cell.name, cell)  # two cases may contain the same point: the first case has it
    return list(cells.values())


def group_of(point: Point, grid: Grid, out: Path, command: Sequence[str]) -> Group:
    options = point.options
    workload = workload_of(point.workload, options, find_model(options.model).max_context_tokens)
    virtual = grid.engine == "virtual"
    if options.step_times == BAND:
        raise BenchError(f"step_times={BAND}: a sweep plays {','.join(BANDS)} as points of its grid")
    engine, description = engine_of(options) if virtual else (None, None)
    experiment = Experiment((), workload, engine, out, tuple(command), token_times=options.token_times)
    if description is not None:
        made = manifest_of(experiment, description, "", {}, 0, "")
        decides = [made.workload, made.hardware, made.engine_options, made.versions, made.continuum_version]
        decides += ["token_times"] if options.token_times else []
    else:
        given = {name: value for name, value in asdict(options).items() if name != "token_times" or value}
        decides = [grid.engine, workload.facts, given, dict(grid.serve)]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()
    folder = f"{point.workload}-jps{options.jps:g}-{digest[:DIGEST_CHARS]}"
    return Group(folder, point, workload, experiment, description)
