"""Measures the speed of the virtual engine beside aisimulate, and of the plugin beside stock vLLM (64 programs).

    python benchmarks/virtual_speed.py TRACE [--aisimulate PATH] [--jps 0.05] [--repeats 3] [--skipping-only]
    python benchmarks/virtual_speed.py TRACE --shares

All arms run in turn (A B A B ...) in one process, because the speed of a machine changes over time. Prints medians.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.workload import load_workload
from continuum_server.step_times.catalog import kv_capacity
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import Engine, build_engine, settings_of
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_traces.conversation import Job
from continuum_traces.exporters import mooncake_rows
from vllm.v1.core.sched.scheduler import Scheduler

CONFIG = EngineConfig(gpu="a100-80gb", model="llama-3.1-8b")


class Stock(Scheduler):
    """vLLM's scheduler alone, dressed in what the loop asks of one."""

    class _NoPrograms:
        pins: dict[str, Any] = {}  # noqa: RUF012

        def next_deadline_s(self) -> None:
            return None

    table: Any = _NoPrograms()


class Timed:
    """Seconds spent in the scheduler's own methods."""

    NAMES = ("schedule", "update_from_output", "add_request")

    def __init__(
        self,
        scheduler: Any,
        names: Sequence[str] = NAMES,
        clock: Callable[[], float] = time.perf_counter,  # noqa: TID251
    ) -> None:
        self.seconds = 0.0
        self._clock = clock
        for name in names:
            setattr(scheduler, name, self._timed(getattr(scheduler, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._clock()
            result = method(*args, **kwargs)
            self.seconds += self._clock() - start
            return result

        return timed


class Row(NamedTuple):
    """One run of one arm."""

    wall_s: float
    processor_s: float
    """Of this process and of those it started: on a busy machine less of it is chance."""
    inside_s: float = math.nan
    """Wall seconds inside the scheduler."""
    calls: int = 0


def processor_s() -> float:
    return sum(os.times()[:4])


def build(jobs: list[Job], policy: str, kind: type[Scheduler], stretch: int) -> Engine:
    settings = settings_of(CONFIG, policy, {})
    return build_engine(shape_of(CONFIG), times_of(CONFIG), settings, jobs, scheduler_type=kind, max_stretch=stretch)


def play(jobs: list[Job], policy: str, kind: type[Scheduler], stretch: int) -> Row:
    engine = build(jobs, policy, kind, stretch)
    timed, loop = Timed(engine.scheduler), engine.loop
    start, began_s = time.perf_counter(), processor_s()  # noqa: TID251
    loop.run()
    wall_s = time.perf_counter() - start  # noqa: TID251
    return Row(wall_s, processor_s() - began_s, timed.seconds, loop.counters.scheduler_calls)


def play_peer(options: argparse.Namespace) -> Row:
    """NVIDIA's aisimulate (PyPI, ``--pre``, in an environment of its own): the same programs, arrivals and blocks.

    The time includes making its input and reading its output.
    """
    start, began_s = time.perf_counter(), processor_s()  # noqa: TID251
    programs = [replace(job.program, arrival_s=job.arrival_s) for job in jobs_of(options)]
    with tempfile.TemporaryDirectory() as name:
        rows, file, out = (Path(name) / part for part in ("trace.jsonl", "config.yaml", "out"))
        rows.write_text("".join(json.dumps(row) + "\n" for row in mooncake_rows(programs, CONFIG.block_size)))
        file.write_text(json.dumps(peer_config(rows)))
        command = [options.aisimulate, "predict", "-c", file, "--capture-per-request", "--output-dir", out]
        subprocess.run([*command, "--overwrite"], check=True, capture_output=True)
        for line in (out / "requests.jsonl").read_text().splitlines():
            json.loads(line)
    return Row(time.perf_counter() - start, processor_s() - began_s)  # noqa: TID251


def jobs_of(options: argparse.Namespace) -> list[Job]:
    return load_workload("speed", TraceOptions(traces=options.trace), ArrivalOptions(options.jps)).jobs(0)


def peer_config(rows: Path) -> dict[str, Any]:
    capacity = {"type": "fixed", "blocks": kv_capacity(CONFIG.gpu, CONFIG.model).num_blocks}
    workers = {
        "scheduler": {"max_batched_tokens": 2048, "max_sequences": 256},
        "kv_cache": {"block_size": CONFIG.block_size, "capacity": capacity},
    }
    return {
        "traffic": {
            "source": {"type": "trace", "paths": [str(rows)], "format": "mooncake", "block_size": CONFIG.block_size},
            "load": {"type": "trace_timestamps"},
        },
        "engine": {
            "model": "meta-llama/Meta-Llama-3.1-8B",
            "hardware": "a100_sxm",
            "backend": "vllm",
            "workers": {"aggregated": workers},
        },
    }


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def shares(jobs: list[Job]) -> None:
    """Where the time of the plugin's ``vllm`` arm goes: vLLM's prefix lookup, its allocation and freeing of blocks."""
    engine = build(jobs, "vllm", ProgramScheduler, 512)
    manager = engine.scheduler.kv_cache_manager
    timed = {
        "find_longest_cache_hit": Timed(manager.coordinator, ["find_longest_cache_hit"]),
        "allocate_slots, free": Timed(manager, ["allocate_slots", "free"]),
    }
    start = time.perf_counter()  # noqa: TID251
    engine.loop.run()
    wall = time.perf_counter() - start  # noqa: TID251
    for name, found in timed.items():
        sys.stdout.write(f"{name}: {found.seconds:.1f} s of {wall:.1f} s, {found.seconds / wall:.0%}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--aisimulate")
    parser.add_argument("--jps", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--skipping-only", action="store_true", help="leave out the arms that take every step")
    parser.add_argument("--shares", action="store_true", help="print where the time is spent instead of the table")
    options = parser.parse_args()
    jobs = jobs_of(options)
    if options.shares:
        shares(jobs)
        return
    arms: dict[str, tuple[str, type[Scheduler], int]] = {
        "stock Scheduler, stepwise": ("vllm", Stock, 1),
        "plugin, vllm, stepwise": ("vllm", ProgramScheduler, 1),
        "plugin, vllm": ("vllm", ProgramScheduler, 512),
        "plugin, continuum": ("continuum", ProgramScheduler, 512),
    }
    if options.skipping_only:
        arms = {name: arm for name, arm in arms.items() if arm[2] > 1}
    found: dict[str, list[Row]] = {name: [] for name in arms}
    peer: list[Row] = []
    for _ in range(options.repeats):
        for name, arm in arms.items():
            found[name].append(play(jobs, *arm))
        if options.aisimulate:
            peer.append(play_peer(options))
    show(found, peer)


def show(found: dict[str, list[Row]], peer: list[Row]) -> None:
    """The table, and ratios of runs that stood side by side."""
    write = sys.stdout.write
    write("| arm | wall, s | processor, s | in schedule + update + add, s | calls |\n|---|---|---|---|---|\n")
    for name, rows in found.items():
        cells = (spread([row[i] for row in rows]) for i in range(3))
        write(f"| {name} | {' | '.join(cells)} | {rows[0].calls:,} |\n")
    if peer:
        wall, processor = (spread([row[i] for row in peer]) for i in range(2))
        write(f"| aisimulate, whole process | {wall} | {processor} | | |\n")
    *stepwise, vllm, continuum = found
    pairs = [(plugin, stock, found[stock], 2) for stock, plugin in pairwise(stepwise)]
    pairs += [(name, "aisimulate", peer, i) for name in (vllm, continuum) for i in (0, 1)]
    for name, other, rows, i in pairs:
        ratios = [ours[i] / row[i] for ours, row in zip(found[name], rows, strict=False)]
        if ratios:
            what = ("wall", "processor", "time in the scheduler")[i]
            write(f"\n{name} / {other}, {what}, run by run: {spread(ratios, 2)}\n")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"aisimulate failed: {error.stderr.decode()[-500:] if error.stderr else error}")
