"""What each policy costs per scheduling step, with few and many requests waiting, beside stock vLLM.

    python benchmarks/policy_cost.py [--waiting 10 100 1000 5000] [--steps 300] [--table step|turn] [--json]
    python benchmarks/policy_cost.py --samples 1000 10000 100000

First form, two tables. A step: 32 requests decode, N wait, and the first of them never fits, so that every arm does
the same work; time in vLLM's ``schedule`` and ``update_from_output``, the plugin included, beside vLLM's own class. A
turn: programs come and go; time in the plugin and the policy for a turn's arrival, start, finish and pin. All arms in
one process and one run, stepping in turn (A B C A B C ...). Second form: the TTL decision alone, against looking at
every sample.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from continuum_server.policy.catalog import POLICIES
from continuum_server.policy.tool_times import ToolTimes
from continuum_server.step_times.curves import fit_prefill
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.loop import VirtualLoop
from continuum_server.virtual.oracle import ForeseeingScheduler, show_future
from continuum_server.virtual.vllm_setup import build_scheduler
from continuum_server.vllm_plugin.settings import Settings
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn
from virtual_speed import Stock, Timed

RUNNING = 32
PROMPT = 640
STEP_CONFIG = EngineConfig(gpu="a100-80gb", kv_blocks=4096, max_num_seqs=128)
TURN_CONFIG = EngineConfig(gpu="a100-80gb", kv_blocks=1 + RUNNING * 42, max_num_seqs=128)
STILL = {"autellix": {"first_quantum_s": 1e9}}
"""Options under which nobody is preempted: a step of the first table must be the same for all."""
EVENTS = ("_arrived", "_started", "_finished", "_obey")


def build(arm: str, config: EngineConfig, jobs: list[Job], options: dict[str, Any]) -> tuple[Any, VirtualLoop]:
    times, shape = times_of(config), shape_of(config)
    stock = arm == "stock"
    settings = Settings("vllm" if stock else arm, options, prefill=fit_prefill(times, shape.max_model_len))
    scheduler: Any = build_scheduler(shape, settings, Stock if stock else ForeseeingScheduler)
    loop = VirtualLoop(scheduler, times, jobs, lambda record: None, max_stretch=1)
    if not stock:
        scheduler.clock = loop.clock
        show_future(scheduler, jobs, times)
    return scheduler, loop


class Standing:
    """One arm's engine, in which 32 requests decode and the first of those waiting never fits."""

    def __init__(self, arm: str, waiting: int, steps: int) -> None:
        tokens = max(4 * steps, 900)  # some 700 by the tenth second, when those that wait come, then one a step
        decoding = [Job(Program(f"r{i}", (Turn(PROMPT, tokens),)), 0.0) for i in range(RUNNING)]
        blocked = [Job(Program(f"w{i}", (Turn(PROMPT, 16),)), 10.0) for i in range(waiting)]
        self.scheduler, self.loop = build(arm, STEP_CONFIG, [*decoding, *blocked], STILL.get(arm, {}))
        while self.loop.now_s < 9.0:
            self.loop.advance()
        self._pool = self.scheduler.kv_cache_manager.block_pool
        self._stash = self._pool.get_new_blocks(self._pool.get_num_free_blocks())
        while self.loop.now_s < 10.0:
            self.step()
        self.step()
        self._timed = Timed(self.scheduler)
        self.seconds: list[float] = []

    def step(self) -> None:
        while self._pool.get_num_free_blocks() < RUNNING:  # enough to decode on, too little for anybody's prompt
            self._pool.free_blocks([self._stash.pop()])
        self.loop.advance()

    def timed_step(self) -> None:
        before = self._timed.seconds
        self.step()
        self.seconds.append(self._timed.seconds - before)

    def check(self, arm: str, waiting: int) -> None:
        running, queued = len(self.scheduler.running), len(self.scheduler.waiting)
        if (running, queued) != (RUNNING, waiting):
            raise SystemExit(f"{arm}: {running} run and {queued} wait: no fair comparison")


def steps_us(arms: list[str], waiting: int, steps: int) -> dict[str, float]:
    """Median microseconds of a step. The arms step in turn, so that a slow moment of the machine hits all of them."""
    standing = {arm: Standing(arm, waiting, steps) for arm in arms}
    gc.collect()
    gc.disable()
    for number in range(steps):
        shift = number % len(arms)
        for arm in arms[shift:] + arms[:shift]:
            standing[arm].timed_step()
    gc.enable()
    for arm, engine in standing.items():
        engine.check(arm, waiting)
    return {arm: statistics.median(engine.seconds) * 1e6 for arm, engine in standing.items()}


def turn_us(arm: str, waiting: int, turns: int = 1_500) -> float:
    """Microseconds in the plugin for one turn, while programs come and go."""
    call = (ToolCall("ls", 0.05),)
    made = (Turn(512, 16, tool_calls=call), *[Turn(32, 16, kept_tokens=512, tool_calls=call)] * 200)
    jobs = [Job(Program(f"p{i}", made), 0.0) for i in range(RUNNING + waiting)]
    scheduler, loop = build(arm, TURN_CONFIG, jobs, {})
    while loop.turns_done < turns // 3:
        loop.advance()
    timed = Timed(scheduler, EVENTS, time.thread_time)  # of this thread: the machine's other work does not count
    before = loop.turns_done
    while loop.turns_done < before + turns:
        loop.advance()
    return timed.seconds / (loop.turns_done - before) * 1e6


def stepping(waiting: list[int], steps: int) -> dict[int, dict[str, float]]:
    """Microseconds of a step by how many requests wait, and by arm."""
    return {count: steps_us(["stock", *POLICIES], count, steps) for count in waiting}


def print_steps(found: dict[int, dict[str, float]], steps: int) -> None:
    waiting = list(found)
    _head(f"A step, us (ratio to stock), medians of {steps}", waiting)
    for arm in found[waiting[0]]:
        cells = [f"{found[count][arm]:.0f} ({found[count][arm] / found[count]['stock']:.3f})" for count in waiting]
        sys.stdout.write(f"| {arm} | {' | '.join(cells)} |\n")


def turning(waiting: list[int]) -> None:
    _head("A turn, us of the processor in plugin and policy, least of 3 runs", waiting)
    for arm in POLICIES:
        cells = [f"{min(turn_us(arm, count) for _ in range(3)):.0f}" for count in waiting]
        sys.stdout.write(f"| {arm} | {' | '.join(cells)} |\n")


def _head(title: str, waiting: list[int]) -> None:
    heads = "".join(f" | {count:,} waiting" for count in waiting)
    sys.stdout.write(f"\n{title}\n\n| policy{heads} |\n|{'---|' * (1 + len(waiting))}\n")


# ---------------------------------------------------------------------------------------------- one decision


def best_of_all(samples: list[float], gain_s: float) -> float:
    """The same decision by looking at every sample: what it costs without the tree."""
    per_sample, best_value, best_s = gain_s / len(samples), 0.0, 0.0
    for rank, seconds in enumerate(samples, 1):
        value = rank * per_sample - seconds
        if value > best_value:
            best_value, best_s = value, seconds
    return best_s


def micros(action: Callable[[float], object], values: list[float]) -> float:
    """Of this thread's processor time: the machine's other work does not count."""
    start = time.thread_time()
    for value in values:
        action(value)
    return (time.thread_time() - start) / len(values) * 1e6


def deciding(sizes: list[int]) -> None:
    sys.stdout.write(
        "us of the processor; log-normal tool times (median 0.4 s); the window is full, so a sample also\n"
    )
    sys.stdout.write(
        "removes one. G: seconds that a return in time is worth; small: 10 times a tool time drawn anew.\n\n"
    )
    sys.stdout.write(
        "| samples | a sample | sample and decision, G = 30 s | the same, small G | looking at every sample |\n"
    )
    sys.stdout.write("|---|---|---|---|---|\n")
    for size in sizes:
        draw = random.Random(1)
        fresh = [draw.lognormvariate(-1.0, 1.5) for _ in range(size + 6_000)]
        times = ToolTimes(size)
        for seconds in fresh[:size]:
            times.add(seconds)

        def steady(seconds: float, times: ToolTimes = times) -> None:
            times.add(seconds)
            times.best_ttl(30.0)

        def small(seconds: float, times: ToolTimes = times) -> None:
            times.add(seconds)
            times.best_ttl(10.0 * seconds)

        batches = [fresh[size + at : size + at + 2_000] for at in (0, 2_000, 4_000)]
        cells = [micros(action, batch) for action, batch in zip((times.add, steady, small), batches, strict=True)]
        ordered = sorted(times.recent())
        plain = micros(lambda s, o=ordered: best_of_all(o, 10.0 * s), fresh[: max(5, 200_000 // size)])  # type: ignore[misc]
        sys.stdout.write(f"| {size:,} | {cells[0]:.1f} | {cells[1]:.0f} | {cells[2]:.0f} | {plain:.0f} |\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, nargs="+", default=[10, 100, 1_000, 5_000])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--samples", type=int, nargs="+", help="measure the TTL decision alone, at so many samples")
    parser.add_argument("--table", choices=["step", "turn"], help="one of the two tables only")
    parser.add_argument("--json", action="store_true", help="the step table only: {waiting: {arm: us}}")
    options = parser.parse_args()
    if options.json:
        json.dump(stepping(options.waiting, options.steps), sys.stdout)
        return
    if options.samples:
        deciding(options.samples)
        return
    if options.table != "turn":
        print_steps(stepping(options.waiting, options.steps), options.steps)
    if options.table != "step":
        turning(options.waiting)


if __name__ == "__main__":
    main()
