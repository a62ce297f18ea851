"""The cells of an experiment or a sweep: which runs there are, their manifests, and what plays one.

A group is a point of the grid: one workload on one engine at one rate. In a sweep it has the directory of an
experiment, whose name ends in a digest of everything that decides the results: the workload and its file, the hardware
(of servers that the sweep starts: this machine), the engine options, the versions. A changed grid therefore adds cells
and never mixes different ones. An experiment is one group, in the directory itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from continuum_analysis.compare.runs import REPEAT
from continuum_server.local_model import RANDOM, TINY
from continuum_server.machine import machine
from continuum_server.policy.registry import is_policy, split_arm
from continuum_server.step_times.catalog import find_model
from continuum_server.step_times.model import UnknownPair
from continuum_server.virtual.config import check_programs, shape_of
from continuum_server.vllm_plugin.versions import check_version
from continuum_traces.json_io import read_json
from continuum_traces.records.run_dir import key_of
from continuum_traces.schema import Manifest
from continuum_traces.typed import to_json

from continuum_bench.errors import OptionError
from continuum_bench.invocation import command_line
from continuum_bench.options.run import RunOptions, uses_rate
from continuum_bench.show import notices_once, print_notice
from continuum_bench.sweep.grid import MODEL_ENGINES, Arm, Grid, Point, is_url
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.virtual.pool import Listener, Report
from continuum_bench.workload.workload import JobSource, load_workload

DIGEST_CHARS = 10
UNKNOWN_CONTEXT_TOKENS = 131_072
"""Assumed of a model that vLLM looks up."""
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
        options = description.engine_options
        notes = {
            "programs are repeated with fresh tokens": self.workload.repeats,
            "gaps between output tokens are recorded": token_times,
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
            engine_options=replace(options, more={**options.more, "token_times": token_times or None}),
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
        arrivals = workload.arrivals
        limits = workload.lanes, arrivals.time_limit_s, arrivals.max_idle_all_s
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
    say = notices_once()
    groups = [group_of(point, grid, say) for point in grid.points]
    seeds = sorted({seed for point in grid.points for seed in point.seeds})
    cells: dict[str, Cell] = {}
    for seed in seeds:
        for group in groups:
            if seed in group.point.seeds:
                for cell in (Cell(group, arm, seed) for arm in group.point.arms):
                    cells.setdefault(cell.name, cell)  # two cases may contain the same point
    return list(cells.values())


def group_of(point: Point, grid: Grid, say: Callable[[str], None] = print_notice) -> Group:
    options = point.options
    _check_caching(options, point.arms)
    workload = load_workload(point.workload, options, options, _context_tokens(point, grid), say)
    engine, description = engine_of(options) if grid.engine == "virtual" else (None, None)
    if engine is not None and len(grid.points) < 2:  # of several points, one that cannot be played fails by itself
        check_programs(workload.trace.programs, engine, shape_of(engine))
    return folder_of(Group("", point, workload, engine, description), grid.engine, grid.serve)


def _check_caching(options: RunOptions, arms: Sequence[Arm]) -> None:
    """Refuse policies that hold KV where no KV is ever found again.

    Raises:
        OptionError: prefix caching is off, and a policy is not ``vllm``.
    """
    holding = [arm.policy for arm in arms if split_arm(arm.policy)[0] != "vllm"]
    if options.no_prefix_caching and holding:
        raise OptionError(f"--no-prefix-caching: policy {holding[0]} holds KV for that cache; only vllm can run")


def folder_of(group: Group, engine: str, serve: Mapping[str, Any]) -> Group:
    """Return the group with its ``folder``: the workload, the rate and a digest of all that decides the results."""
    point, options = group.point, group.point.options
    if group.description is not None:
        decides: object = key_of(group.manifest(Arm("", ""), 0))
    else:
        given = {name: value for name, value in asdict(options).items() if name != "token_times" or value}
        given["profile"] = options.profile and options.profile.name
        played = () if is_url(engine) else here()
        decides = [engine, to_json(group.workload.facts), given, dict(serve), point.axes.get(REPEAT), played]
    return replace(group, folder=f"{point.workload}-{_pace(options)}-{digest_of(decides)}")


def _pace(options: RunOptions) -> str:
    """Return the rate of the arrivals, or their form if they have none, as a part of a file's name."""
    return f"jps{options.jps:g}" if uses_rate(options.arrivals) else options.arrivals.replace(":", "")


def digest_of(decides: object) -> str:
    """Return the end of a name, from all that decides the content."""
    return hashlib.sha256(json.dumps(decides, sort_keys=True, default=str).encode()).hexdigest()[:DIGEST_CHARS]


def here() -> tuple[str, ...]:
    """Return the versions and the machine on which the numbers of a server depend that this command starts."""
    return version("continuum-ttl"), check_version(), platform.python_version(), machine()


def _context_tokens(point: Point, grid: Grid) -> int:
    """Return the model's longest context, as far as it is known before a server runs."""
    if grid.engine not in MODEL_ENGINES:
        return find_model(point.options.model).max_context_tokens
    name = str(model_of(point, grid.engine, grid.serve) or TINY.name)
    try:
        return (RANDOM.get(name) or find_model(name)).max_context_tokens
    except UnknownPair:
        config = Path(name).expanduser() / "config.json"
        longest = read_json(config).get("max_position_embeddings") if config.is_file() else None
        return longest if isinstance(longest, int) else UNKNOWN_CONTEXT_TOKENS


def model_of(point: Point, engine: str, serve: Mapping[str, Any]) -> str | None:
    """Return the model of a point's server; None: the engine's own. Only modelled GPUs have a default for it."""
    model = serve.get("model") or point.axes.get("model")
    return model if engine in MODEL_ENGINES else model or point.options.model
