"""``sweep --predict``: plays the cells of servers in the virtual engine first, with the step times of a profile.

``DIR/profile-DIGEST.json``   measured on stock vLLM, once for each kind of server in the grid
``DIR/predicted/``            a sweep of the same cells in the virtual engine

The policies on the servers read the profile too.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from continuum_analysis.compare.runs import PREDICTED, REPEAT
from continuum_server import defaults
from continuum_server.launcher import Server
from continuum_server.server_config import STOCK
from continuum_server.step_times.catalog import find_model
from continuum_server.step_times.model import UnknownPair
from continuum_server.step_times.profile import Profile, read_profile
from continuum_server.vllm_plugin.versions import check_version
from continuum_traces.grouped import grouped

from continuum_bench.ctrl_c import INTERRUPTED
from continuum_bench.errors import BenchError
from continuum_bench.invocation import utc_now
from continuum_bench.options.declare import declared
from continuum_bench.options.run import EngineOptions, RunOptions
from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import print_notice
from continuum_bench.sweep.grid import Arm, Grid, Point, is_url
from continuum_bench.sweep.on_servers import config_of
from continuum_bench.sweep.plan import Cell, Group, digest_of, folder_of, here
from continuum_bench.sweep.play_cells import exit_code, play_missing
from continuum_bench.sweep.store import SweepStore
from continuum_bench.virtual.engine_options import engine_of

OF_THE_POOL = "kv_blocks"
"""The only setting of a server on which a profile does not depend: a small pool would bound what can be measured."""


def with_profiles(grid: Grid, out: Path) -> Grid:
    """Return the grid with the profile that each point will have, in ``out``.

    Raises:
        BenchError: the grid's cells start no servers, it has profiles of its own, or two arms have one prediction.
    """
    if grid.engine == "virtual" or is_url(grid.engine):
        raise BenchError(f"--predict: engine {grid.engine}: needs engine cpu, gpu or emulated, which starts servers")
    if any(point.options.profile for point in grid.points):
        raise BenchError("--predict: measures a profile of the server; leave out the axis profile")
    if any({STOCK, "vllm"} <= {arm.policy for arm in point.arms} for point in grid.points):
        raise BenchError(f"--predict: policies {STOCK} and vllm have one prediction; leave out one of them")
    points = (replace(point, options=replace(point.options, profile=out / _file(point, grid))) for point in grid.points)
    return replace(grid, points=tuple(points))


def _file(point: Point, grid: Grid) -> str:
    given = {name: getattr(point.options, name) for name in declared(EngineOptions) if name != OF_THE_POOL}
    return f"profile-{digest_of([grid.engine, given, point.axes.get('block_size'), dict(grid.serve), here()])}.json"


def predict(store: SweepStore, grid: Grid, cells: Sequence[Cell], players: PlayerOptions, quiet: bool) -> int:
    """Measure the profiles that are missing, and play the missing predictions. Returns the exit code, as ``exit_code``.

    Raises:
        BenchError, ServerError: a server did not start, or could not be measured.
    """
    try:
        for path, of_profile in grouped((cell.group.point.options.profile, cell) for cell in cells).items():
            assert path is not None
            _measure(path, of_profile, grid, quiet)
    except KeyboardInterrupt:
        print_notice("stopped while a profile was measured")
        return INTERRUPTED
    predicted = predicted_cells(cells, grid)
    points = tuple({cell.group.folder: cell.group.point for cell in predicted}.values())
    virtual = Grid(f"{grid.name}, predicted", "virtual", points, plot=grid.plot)
    below = SweepStore(store.path / PREDICTED)
    with below.locked():
        below.write_plan(virtual, predicted, utc_now())
        outcome = play_missing(below, virtual, predicted, players, RunsDisplay({}, 0, quiet, "predictions"))
    return exit_code(outcome, below, predicted, "predictions")


def _measure(path: Path, cells: Sequence[Cell], grid: Grid, quiet: bool) -> None:
    """Profile stock vLLM on a server of its own, up to the cells' longest request, if that was not done before."""
    programs = (program for cell in cells for program in cell.group.workload.trace.programs)
    longest = max(1024, *(program.final_context_tokens for program in programs))
    if path.exists() and _longest(read_profile(path)) >= longest:
        return
    config = config_of(replace(cells[0], arm=Arm(STOCK, STOCK)), grid.engine, grid.serve, None)
    most = None if config.max_model_len is None else max(config.max_model_len, longest + 2)
    log = path.with_suffix(".log")
    print_notice(f"a server with stock vLLM starts, to measure {path}; its log is {log}")
    with Server(replace(config, kv_blocks=None, profile=None, max_model_len=most), log) as server:
        command = [sys.executable, "-m", "continuum_bench", "profile", "--base-url", f"{server.url}/v1"]
        command += ["--out", str(path), "--longest-prompt", str(longest)]
        errors = subprocess.PIPE if quiet else None
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=errors, text=True, check=False)
    if done.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode != 0:
        lines = (done.stderr or "").strip().splitlines()
        raise BenchError(f"--predict: no profile was measured: {lines[-1] if lines else 'the lines above say why'}")


def _longest(profile: Profile) -> int:
    return max(point.tokens for point in profile.prefill_points)


def predicted_cells(cells: Sequence[Cell], grid: Grid) -> list[Cell]:
    """Return the virtual cells of these servers' cells. Repeats have one prediction, because virtual runs are equal."""
    groups: dict[str, Group] = {}
    predicted: dict[str, Cell] = {}
    for cell in cells:
        if cell.group.point.axes.get(REPEAT, 1) == 1:
            if cell.group.folder not in groups:
                groups[cell.group.folder] = _virtual(cell.group, grid.engine)
            arm = Arm("vllm", "vllm") if cell.arm.policy == STOCK else cell.arm
            each = Cell(groups[cell.group.folder], arm, cell.seed)
            predicted.setdefault(each.name, each)
    return list(predicted.values())


def _virtual(group: Group, engine: str) -> Group:
    axes = {name: value for name, value in group.point.axes.items() if name != REPEAT}
    point = replace(group.point, axes=axes, options=_virtual_options(group.point, engine))
    config, description = engine_of(point.options)
    return folder_of(Group("", point, group.workload, config, description), "virtual", {})


def _virtual_options(point: Point, engine: str) -> RunOptions:
    """Return the options of the virtual engine that stands for the server. Step times and model are the profile's."""
    options = point.options
    assert options.profile is not None
    measured = read_profile(options.profile).block_size
    try:
        find_model(options.model)
    except UnknownPair:
        options = replace(options, model=defaults.MODEL)
    block_size = point.axes.get("block_size") or measured or defaults.BLOCK_SIZE
    ahead = None if engine == "cpu" else check_version()  # vLLM's CPU platform does not schedule ahead
    return replace(options, block_size=block_size, vllm=ahead)
