"""Measures how long a report takes and how large it is.

    python benchmarks/report_cost.py [--programs 1000] [--turns 11] [--policies 4]

The records are generated without an engine. They have as many events for each turn as a real run, with waits, pins,
hits and expiries. Prints the time to read the records and compute the metrics, and the time and size of the report.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from continuum_analysis.compare.runs import load_runs
from continuum_analysis.report.page import write_report
from continuum_traces.run_dir import EVENTS, TURNS, write_json, write_manifest, write_rows
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord

POOL_TOKENS = 440_000
E = SchedulerEvent


def write_run(path: Path, policy: str, programs: int, turns: int) -> None:
    """Write records like those of a run of the virtual engine."""
    path.mkdir()
    hardware = {"gpu": "made up", "tensor_parallel": 1, "kv_capacity": {"tokens": POOL_TOKENS}}
    options = {"block_size": 16, "max_pinned_share": 0.95}
    manifest = Manifest(
        policy=policy, engine="made up", workload={"jps": 0.13}, hardware=hardware, engine_options=options
    )
    write_manifest(path, manifest)
    random = np.random.default_rng(0)
    events: list[SchedulerEvent] = []
    records: list[TurnRecord] = []
    for number in range(programs):
        name, t, prompt = f"program-{number:05d}", number / 0.13 + float(random.random()), 4000
        for index in range(turns):
            wait, decode, tool = (float(random.exponential(mean)) for mean in (2.0, 5.0, 1.0))
            hit = prompt // 16 * 16 if index and random.random() < 0.8 else 0
            finish, last = t + wait + 0.3 + decode, index == turns - 1
            records.append(
                TurnRecord(
                    name,
                    index,
                    t,
                    t,
                    t + wait + 0.3,
                    finish,
                    prompt,
                    300,
                    None,
                    prompt - 900,
                    ("sh",),
                    tool,
                    is_last=last,
                )
            )
            events.append(E(t, "arrive", name, index, f"{number}/{index}", prompt_tokens=prompt))
            events.append(E(t + wait, "start", name, index, f"{number}/{index}", prompt_tokens=prompt, hit_tokens=hit))
            tool_name = ("cat", "grep", "python", "pip")[int(random.integers(4))]
            events.append(E(finish, "finish", name, index, f"{number}/{index}", None, None, 300, tool_name, "stop"))
            if policy != "vllm" and not last:
                events.append(E(finish, "pin", name, index, ttl_s=2.0, tokens=prompt, delay_estimate_s=3.0, eta=0.5))
                reason = "hit" if tool < 2 else "expired"
                events.append(E(finish + min(tool, 2.0), "unpin", name, index, tokens=prompt, reason=reason))
            t, prompt = finish + tool, prompt + 900
    write_rows(path / EVENTS, events)
    write_rows(path / TURNS, records)
    write_json(path / "engine.json", {})


def seconds(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("programs", 1000), ("turns", 11), ("policies", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        for policy in ("vllm", "continuum", "static-ttl", "program-fcfs", "a", "b", "c", "d")[: given.policies]:
            write_run(path / f"{policy}-seed0", policy, given.programs, given.turns)
        turns = given.programs * given.turns
        print(f"{given.policies} runs of {given.programs:,} programs, {turns:,} turns each; CPU seconds of one process")  # noqa: T201
        print(f"read and measure: {seconds(lambda: load_runs(path)):.1f} s")  # noqa: T201
        cost = seconds(lambda: write_report(path))
        print(f"report, reading included: {cost:.1f} s, {(path / 'report.html').stat().st_size / 1e6:.1f} MB")  # noqa: T201


if __name__ == "__main__":
    main()
