"""A sweep's cells on live servers, one after the other: each starts its own, is played against it, and stops it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from continuum_server.emulated.settings import EmulatedError, EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.policy.program_table import Guards
from continuum_server.server_config import EngineName, ServerConfig, ServerError

from continuum_bench.errors import BenchError
from continuum_bench.options import RunOptions
from continuum_bench.serve import gpu_arguments
from continuum_bench.sweep.plan import SweepCell
from continuum_bench.virtual.pool import Listener, Outcome, Report

SERVE_OPTIONS = ("model", "time_scale", "replies", "max_model_len", "tool_call_parser", "vllm_arguments")
"""What a grid's ``serve`` may hold, as ``continuum-bench serve`` knows it."""


def play_live(
    cells: Sequence[tuple[SweepCell, Path]], engine: str, serve: Mapping[str, Any], on_report: Listener
) -> Outcome:
    """Play each cell into its folder; Ctrl-C stops the server and keeps what is done."""
    outcome = Outcome()
    for cell, folder in cells:
        on_report(Report(cell.name, state="loading"))
        try:
            _play(cell, folder, engine, serve)
        except KeyboardInterrupt:
            outcome.interrupted = True
            return outcome
        except (BenchError, ServerError, EmulatedError) as error:
            reason = str(error).splitlines()[0].split("; log ")[0]
            outcome.failed[cell.name] = reason
            on_report(Report(cell.name, state="failed", error=reason))
        else:
            outcome.done.append(cell.name)
            on_report(Report(cell.name, state="done"))
    return outcome


def server_config(cell: SweepCell, engine: str, serve: Mapping[str, Any], records: Path | None) -> ServerConfig:
    """The server of one cell.

    Raises:
        BenchError: an option ``serve`` does not have.
    """
    unknown = sorted(set(serve) - set(SERVE_OPTIONS))
    if unknown:
        raise BenchError(f"serve: {unknown[0]}: unknown; there are {', '.join(SERVE_OPTIONS)}")
    options = cell.group.point.options
    further = {k: v for k, v in serve.items() if k not in ("time_scale", "replies", "vllm_arguments")}
    return ServerConfig(
        engine=cast(EngineName, engine),
        policy=cell.arm.policy,
        policy_options=dict(cell.arm.options),
        guards=Guards(pins_yield_to=options.pins_yield_to),  # type: ignore[arg-type]
        emulated=EmulatedSettings(
            gpu=options.gpu,
            model=options.model,
            tensor_parallel=options.tp,
            gpu_memory_utilization=options.gpu_memory_utilization,
            step_overhead_ms=options.step_overhead_ms,
            time_scale=serve.get("time_scale", 1.0),
            replies=serve.get("replies"),
        ),
        port=0,
        gpus=options.tp,
        block_size=cell.group.point.axes.get("block_size"),
        max_num_seqs=options.max_num_seqs,
        chunk_tokens=options.chunk_tokens,
        kv_blocks=options.kv_blocks,
        profile=options.profile,
        record=records,
        vllm_arguments=(
            *map(str, serve.get("vllm_arguments", ())),
            *gpu_arguments(engine, options.tp, options.gpu_memory_utilization),
        ),
        **further,
    )


def _play(cell: SweepCell, folder: Path, engine: str, serve: Mapping[str, Any]) -> None:
    """Into ``folder`` as a run directory; the server's log beside the records."""
    beside = folder.parent
    records = beside / f"{folder.name}.server"
    config = server_config(cell, engine, serve, records if cell.arm.policy != "stock" else None)
    with Server(config, folder / "server.log") as server:
        out = beside / f"{folder.name}.replay"
        command = replay_command(cell, server.url, out)
        if config.record is not None:
            command += ["--scheduler-records", str(records)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 130:
        raise KeyboardInterrupt
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"the replay ended with status {done.returncode}"]
        raise BenchError(lines[-1])
    for path in (out / cell.run_name).iterdir():
        path.rename(folder / path.name)


def replay_command(cell: SweepCell, url: str, out: Path) -> list[str]:
    """``continuum-bench`` itself, playing this cell."""
    options: RunOptions = cell.group.point.options
    what = ["replay", str(options.traces)] if options.traces else [cell.group.point.workload]
    named: dict[str, object] = {
        "--base-url": f"{url}/v1",
        "--label": cell.arm.label,
        "--jps": options.jps,
        "--seed": cell.seed,
        "--arrivals": options.arrivals,
        "--tool-times": options.tool_times,
        "--turn-scale": options.turn_scale,
        "--length-scale": options.length_scale,
        "--shared-prefix": options.shared_prefix,
        "--tokens-reading": options.tokens_reading,
        "--out": out,
    }
    if options.num_programs is not None:
        named["--num-programs"] = options.num_programs
    flags = ["--no-report", "--json", *(["--skip-invalid"] if options.skip_invalid else [])]
    pairs = [str(part) for pair in named.items() for part in pair]
    return [sys.executable, "-m", "continuum_bench", *what, *pairs, *flags]
