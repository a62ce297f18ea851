"""Expands a grid into cells, and names the directory of each.

A group is a point of the grid: one workload on one engine at one rate. It has the directory of an experiment, whose
name ends in a digest of everything that decides the results (the workload and its file, the hardware, the engine
options, the versions). A changed grid therefore adds cells and never mixes different ones.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from continuum_server.step_times.catalog import find_model
from continuum_traces.run_dir import key_of
from continuum_traces.schema import Manifest
from continuum_traces.typed import to_json

from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.virtual.experiment import Cell, Setup, manifest_of
from continuum_bench.workload.workload import workload_of

DIGEST_CHARS = 10


@dataclass(frozen=True, slots=True)
class Group:
    """A point of the grid with everything that its runs need."""

    folder: str
    point: Point
    setup: Setup
    description: Any
    """``EngineDescription``, or None if the cells are played on a server."""

    def manifest(self, arm: Arm, seed: int) -> Manifest:
        """Return the manifest of one run."""
        made = manifest_of(self.setup, self.description, arm.label, arm.options, seed, "")
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
        """Number of turns to play, from which the time left is estimated."""
        return self.group.setup.workload.facts.turns or 0

    @property
    def bench_cell(self) -> Cell:
        return Cell(self.arm.policy, dict(self.arm.options), self.seed)


def plan(grid: Grid) -> list[SweepCell]:
    """Return every cell once, ordered by seed first, so that an interrupted sweep has complete pairs of policies.

    Raises:
        BenchError, TraceError, EngineError, StepTimesError: a point cannot be played.
    """
    groups = [group_of(point, grid) for point in grid.points]
    seeds = sorted({seed for point in grid.points for seed in point.seeds})
    cells: dict[str, SweepCell] = {}
    for seed in seeds:
        for group in groups:
            if seed in group.point.seeds:
                for cell in (SweepCell(group, arm, seed) for arm in group.point.arms):
                    cells.setdefault(cell.name, cell)  # two cases may contain the same point
    return list(cells.values())


def group_of(point: Point, grid: Grid) -> Group:
    options = point.options
    workload = workload_of(point.workload, options, find_model(options.model).max_context_tokens)
    virtual = grid.engine == "virtual"
    engine, description = engine_of(options) if virtual else (None, None)
    setup = Setup(workload, engine, options.token_times)
    if description is not None:
        made = manifest_of(setup, description, "", {}, 0, "")
        decides: object = key_of(made)
    else:
        given = {name: value for name, value in asdict(options).items() if name != "token_times" or value}
        decides = [grid.engine, to_json(workload.facts), given, dict(grid.serve)]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()
    folder = f"{point.workload}-jps{options.jps:g}-{digest[:DIGEST_CHARS]}"
    return Group(folder, point, setup, description)
