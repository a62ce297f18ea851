"""Plays the cells of a sweep on servers, one after another. Each cell starts and stops a server of its own, unless the
grid names a running one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from continuum_server.emulated.settings import EmulatedError
from continuum_server.launcher import Server
from continuum_server.server_config import STOCK, ServerConfig, ServerError
from continuum_traces.names import which

from continuum_bench.ctrl_c import INTERRUPTED
from continuum_bench.errors import BenchError
from continuum_bench.experiment_file import REPLAY, experiment_yaml
from continuum_bench.options.run import EngineOptions, LiveOptions
from continuum_bench.options.serve import ServeOptions
from continuum_bench.options.together import settled
from continuum_bench.serve.config import server_config
from continuum_bench.sweep.grid import is_url
from continuum_bench.sweep.plan import Cell, CellTask, model_of
from continuum_bench.virtual.pool import Listener, Report

SERVE_OPTIONS = (
    *("model", "time_scale", "replies", "max_model_len", "tool_call_parser"),
    *("data_parallel_size", "vllm_arguments"),
)
"""Options of ``continuum-bench serve`` that a grid may set under ``serve``."""


def play_live(
    tasks: Sequence[CellTask],
    engine: str,
    serve: Mapping[str, Any],
    on_report: Listener,
    live: LiveOptions | None = None,
) -> bool:
    """Play the cells one after the other, and write each run into its task's folder.

    ``live`` says how the load is generated; None: as by default.

    Ctrl-C stops the server too. Return True if it stopped the play.
    """
    for task in tasks:
        on_report(Report(task.name, state="loading"))
        try:
            _play(task.cell, task.folder, engine, serve, live or LiveOptions())
        except KeyboardInterrupt:
            return True
        except (BenchError, ServerError, EmulatedError) as error:
            reason = str(error).splitlines()[0].split("; log ")[0]
            on_report(Report(task.name, state="failed", error=reason))
        else:
            on_report(Report(task.name, state="done"))
    return False


def config_of(cell: Cell, engine: str, serve: Mapping[str, Any], records: Path | None) -> ServerConfig:
    """Return the configuration of a cell's server.

    Raises:
        BenchError: the grid sets an option that ``SERVE_OPTIONS`` does not contain.
    """
    unknown = sorted(set(serve) - set(SERVE_OPTIONS))
    if unknown:
        raise BenchError(f"serve: {unknown[0]}: unknown; {which(unknown[0], SERVE_OPTIONS)}")
    run = cell.group.point.options
    given = run.shared_with(EngineOptions) | {name: value for name, value in serve.items() if name != "vllm_arguments"}
    given["model"] = model_of(cell.group.point, engine, serve)
    options = ServeOptions(
        **{**given, "replies": Path(given["replies"]) if given.get("replies") else None},
        engine=engine,
        policy=cell.arm.policy,
        port=0,
        block_size=cell.group.point.axes.get("block_size"),
        profile=run.profile if cell.arm.policy != STOCK else None,
        record=records,
    )
    return server_config(options, cell.arm.options, tuple(map(str, serve.get("vllm_arguments", ()))))


def _play(cell: Cell, folder: Path, engine: str, serve: Mapping[str, Any], live: LiveOptions) -> None:
    """Play a cell into ``folder`` as a run directory, with the server's log."""
    if is_url(engine):
        _replay(cell, folder, replace(live, base_url=engine))
        return
    records = folder.parent / f"{folder.name}.server"
    config = config_of(cell, engine, serve, records if cell.arm.policy != STOCK else None)
    with Server(config, folder / "server.log") as server:
        _replay(cell, folder, replace(live, base_url=f"{server.url}/v1", scheduler_records=config.record))


def _replay(cell: Cell, folder: Path, live: LiveOptions) -> None:
    """Play a cell by a command of its own, so that nothing else delays the load generator."""
    out, point = folder.parent / f"{folder.name}.replay", cell.group.point
    live = replace(live, label=cell.arm.label)
    options = replace(point.options, seed=cell.seed, out=out, no_report=True, json_output=True)
    file = folder.parent / f"{folder.name}.yaml"
    workload = REPLAY if options.traces else point.workload
    file.write_text(experiment_yaml(workload, settled(options, live), live), encoding="utf-8")
    command = [sys.executable, "-m", "continuum_bench", "run", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"the replay ended with status {done.returncode}"]
        raise BenchError(lines[-1])
    for path in (out / cell.run_name).iterdir():
        path.rename(folder / path.name)
