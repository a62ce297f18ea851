"""Measures how long copying a policy's tool statistics takes on the scheduler's thread.

    python benchmarks/statistics_cost.py

``serve --statistics`` makes such a copy every 30 s. Here the window of every tool is full. Prints a Markdown table: the
copy, and the write of the copy by another thread.
"""

from __future__ import annotations

import random
import statistics
import tempfile
from pathlib import Path
from time import perf_counter  # noqa: TID251 - this file measures

from continuum_server.policy.facts import Machine, PrefillCurve
from continuum_server.policy.rules.continuum import Continuum, ContinuumOptions
from continuum_traces.run_dir import write_json

SIZES = ((10, 4096), (256, 4096), (10, 100_000))


def learned(tools: int, window: int) -> Continuum:
    """Return a policy with a full window of times for each of ``tools`` tools."""
    chance = random.Random(1)
    policy = Continuum(Machine(PrefillCurve(0.0, 1e-4, 0.0), 100_000), ContinuumOptions(sample_window=window))
    for number in range(tools * window):
        policy.tools.add(f"tool-{number % tools}", chance.expovariate(1.0))
    return policy


def row(tools: int, window: int, repeats: int = 5) -> str:
    policy = learned(tools, window)
    copies_ms, writes_ms = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            began_s = perf_counter()
            found = policy.export_statistics()
            copied_s = perf_counter()
            write_json(Path(folder) / "statistics.json", found)
            copies_ms.append(1e3 * (copied_s - began_s))
            writes_ms.append(1e3 * (perf_counter() - copied_s))
    return f"| {tools} | {window} | {statistics.median(copies_ms):.1f} ms | {statistics.median(writes_ms):.0f} ms |"


def main() -> None:
    print("| tools | times of each | copy | write |\n|---|---|---|---|")  # noqa: T201
    for tools, window in SIZES:
        print(row(tools, window), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
