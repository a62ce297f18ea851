"""Measures the speed of the virtual engine beside aisimulate.

    python benchmarks/virtual_speed.py TRACE [--aisimulate PATH] [--jps 0.05] [--repeats 3]

All arms run in turn (A B A B ...) in one process, because the speed of a machine changes over time. Prints medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from commands import show
from continuum_analysis.compare.words import markdown
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.workload import load_workload
from continuum_server.step_times.catalog import kv_capacity
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_traces.exporters import mooncake_rows
from continuum_traces.playing.conversation import Job

CONFIG = EngineConfig(gpu="a100-80gb", model="llama-3.1-8b")


class Row(NamedTuple):
    """One run of one arm."""

    wall_s: float
    processor_s: float
    """Of this process and of those it started: on a busy machine less of it is chance."""


def processor_s() -> float:
    return sum(os.times()[:4])


def play(jobs: list[Job], policy: str) -> Row:
    engine = build_engine(shape_of(CONFIG), times_of(CONFIG), settings_of(CONFIG, policy, {}), jobs)
    start, began_s = time.perf_counter(), processor_s()  # noqa: TID251
    engine.play(jobs)
    return Row(time.perf_counter() - start, processor_s() - began_s)  # noqa: TID251


def play_peer(options: argparse.Namespace) -> Row:
    """NVIDIA's aisimulate (PyPI, ``--pre``, in an environment of its own): the same programs, arrivals and blocks.

    The time includes making its input and reading its output.
    """
    start, began_s = time.perf_counter(), processor_s()  # noqa: TID251
    programs = [replace(job.program, arrival_s=job.arrival_s) for job in jobs_of(options)]
    with tempfile.TemporaryDirectory() as name:
        rows, file, out = (Path(name) / part for part in ("trace.jsonl", "config.yaml", "out"))
        rows.write_text(
            "".join(json.dumps(row) + "\n" for row in mooncake_rows(programs, block_tokens=CONFIG.block_size))
        )
        file.write_text(json.dumps(peer_config(rows)))
        command = [options.aisimulate, "predict", "-c", file, "--capture-per-request", "--output-dir", out]
        subprocess.run([*command, "--overwrite"], check=True, stdout=subprocess.DEVNULL)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--aisimulate")
    parser.add_argument("--jps", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    jobs = jobs_of(options)
    arms: dict[str, Callable[[], Row]] = {policy: partial(play, jobs, policy) for policy in ("vllm", "continuum")}
    if options.aisimulate:
        arms["aisimulate"] = partial(play_peer, options)
    rows_of: dict[str, list[Row]] = {name: [] for name in arms}
    for _ in range(options.repeats):
        for name, arm in arms.items():
            rows_of[name].append(arm())
    base = rows_of.get("aisimulate", rows_of["vllm"])
    table = []
    for name, rows in rows_of.items():
        ratios = [one.wall_s / other.wall_s for one, other in zip(rows, base, strict=True)]
        seconds = (spread([row.wall_s for row in rows]), spread([row.processor_s for row in rows]))
        table.append([name, *seconds, spread(ratios, 2)])
    last = f"wall to {'aisimulate' if options.aisimulate else 'vllm'}, run by run"
    show(markdown(("arm", "wall, s", "processor, s", last), table))


if __name__ == "__main__":
    main()
