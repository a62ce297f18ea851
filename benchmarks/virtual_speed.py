"""Measures the speed of the virtual engine beside aisimulate, and of the plugin beside stock vLLM (64 programs).

    python benchmarks/virtual_speed.py TRACE [--aisimulate PATH] [--jps 0.05] [--repeats 3]
    python benchmarks/virtual_speed.py TRACE --shares

All arms run in turn (A B A B ...) in one process, because the speed of a machine changes over time. Prints medians.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.workload import load_workload
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import Engine, build_engine, settings_of
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_traces.conversation import Job
from cross_check import MODEL, theirs
from vllm.v1.core.sched.scheduler import Scheduler

CONFIG = EngineConfig(gpu="a100-80gb", model=MODEL)


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


def build(jobs: list[Job], policy: str, kind: type[Scheduler], stretch: int) -> Engine:
    settings = settings_of(CONFIG, policy, {})
    return build_engine(shape_of(CONFIG), times_of(CONFIG), settings, jobs, scheduler_type=kind, max_stretch=stretch)


def play(jobs: list[Job], policy: str, kind: type[Scheduler], stretch: int) -> tuple[float, float, int]:
    """Wall seconds, seconds inside the scheduler, scheduler calls."""
    engine = build(jobs, policy, kind, stretch)
    timed, loop = Timed(engine.scheduler), engine.loop
    start = time.perf_counter()  # noqa: TID251
    loop.run()
    return time.perf_counter() - start, timed.seconds, loop.counters.scheduler_calls  # noqa: TID251


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
    parser.add_argument("--shares", action="store_true", help="print where the time is spent instead of the table")
    options = parser.parse_args()
    jobs = load_workload("speed", TraceOptions(traces=options.trace), ArrivalOptions(options.jps)).jobs(0)
    if options.shares:
        shares(jobs)
        return
    arms: dict[str, tuple[str, type[Scheduler], int]] = {
        "stock Scheduler, stepwise": ("vllm", Stock, 1),
        "plugin, vllm, stepwise": ("vllm", ProgramScheduler, 1),
        "plugin, vllm": ("vllm", ProgramScheduler, 512),
        "plugin, continuum": ("continuum", ProgramScheduler, 512),
    }
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in arms}
    peer: list[float] = []
    for _ in range(options.repeats):
        for name, arm in arms.items():
            found[name].append(play(jobs, *arm))
        if options.aisimulate:
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()  # noqa: TID251
                theirs(options.trace, options.jps, 0, options.aisimulate, Path(folder))
                peer.append(time.perf_counter() - start)  # noqa: TID251
    sys.stdout.write("| arm | wall s | in schedule + update + add s | calls |\n|---|---|---|---|\n")
    for name, rows in found.items():
        walls, inside = (statistics.median(row[i] for row in rows) for i in (0, 1))
        sys.stdout.write(f"| {name} | {walls:.2f} | {inside:.2f} | {rows[0][2]} |\n")
    if peer:
        sys.stdout.write(f"| aisimulate, whole process | {statistics.median(peer):.2f} | - | - |\n")
    stock, plugin = (found[name] for name in list(arms)[:2])
    ratios = [ours[1] / theirs_[1] for ours, theirs_ in zip(plugin, stock, strict=True)]
    sys.stdout.write(f"\nplugin / stock, time in the scheduler, run by run: {', '.join(f'{r:.3f}' for r in ratios)}\n")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"aisimulate failed: {error.stderr.decode()[-500:] if error.stderr else error}")
