"""Measures how much load one process of the load generator makes, and how punctually.

    python benchmarks/generator.py [--programs 2000] [--tokens 32] [--processes 1] [--token-times] [--runs 5]

The server is ``light_server.py``, in a process of its own on the last core. The generator may use every core. The
synthetic programs have six turns: 2,000 tokens at first, 500 more in each turn. Each answer is streamed in ``--tokens``
chunks, the first after 200 ms and the others 40 ms apart. Tools take 1 s on average, exponentially distributed.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from commands import bench
from continuum_traces.json_io import read_json
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_arrivals, read_turns
from continuum_traces.schema import Program, ToolCall, Turn

HERE = Path(__file__).parent
TURNS, TTFT_MS, TPOT_MS, TOOL_S = 6, 200, 40, 1.0


@contextmanager
def light_server() -> Iterator[str]:
    """Start the server, and yield its URL without a path."""
    last_core = str(max(os.sched_getaffinity(0)))
    times = ["--ttft-ms", TTFT_MS, "--tpot-ms", TPOT_MS, "--cpu", last_core]
    command = [str(word) for word in (sys.executable, HERE / "light_server.py", *times)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


# ------------------------------------------------------------------------------------------------ programs


def agent_programs(count: int, tokens: int) -> list[Program]:
    chance = random.Random(1)

    def turn(index: int) -> Turn:
        calls = (ToolCall("ls", chance.expovariate(1 / TOOL_S)),) if index < TURNS - 1 else ()
        return Turn(2000 if index == 0 else 500, tokens, tool_calls=calls)

    return [Program(f"p{i}", tuple(turn(n) for n in range(TURNS)), synthetic=True) for i in range(count)]


def most_at_once(folder: Path) -> int:
    """Return the largest number of programs that ran at the same time, from the records."""
    starts = [(arrival.due_s, 1) for arrival in read_arrivals(folder)]
    ends = [(record.finish_s or 0.0, -1) for record in read_turns(folder) if record.is_last]
    steps = sorted([*starts, *ends], key=lambda step: (step[0], step[1]))
    return int(np.cumsum([step for _, step in steps]).max())


def measure_programs(options: argparse.Namespace, trace: Path, out: Path) -> dict[str, float]:
    with light_server() as url:
        before = os.times()
        spec = f"concurrency:{options.programs}:{options.ramp_s:g}"
        load = ["--arrivals", spec, "--processes", options.processes, *options.token_times]
        bench("replay", trace, "--base-url", f"{url}/v1", "--no-report", "--out", out, *load)
        after = os.times()
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    facts, turns = read_json(folder / "engine.json"), list(read_turns(folder))
    late_ms = [1e3 * (turn.sent_s - turn.due_s) for turn in turns]
    finishes = np.array(sorted(turn.finish_s or 0.0 for turn in turns))
    low, high = np.percentile(finishes, [20, 80])
    rate = float(((finishes >= low) & (finishes <= high)).sum() / (high - low))
    return {
        "at once": most_at_once(folder),
        "turns/s": rate,
        "chunks/s": rate * options.tokens,
        **{
            f"late {name}, ms": float(np.percentile(late_ms, q)) for name, q in (("P50", 50), ("P99", 99), ("max", 100))
        },
        "CPU of generator": cpu_s / facts["wall_s"],
        "failed": facts["programs_failed"],
    }


def programs(options: argparse.Namespace) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "agents.jsonl.gz"
        write_programs(trace, agent_programs(round(options.programs * options.rounds), options.tokens))
        for number in range(options.runs):
            rows.append(measure_programs(options, trace, Path(name) / str(number)))
            show(f"run {number + 1}", rows[-1])
    print(f"| median (least to most) of {len(rows)} | " + " | ".join(spread(rows, key) for key in rows[0]) + " |")  # noqa: T201


def show(label: str, row: dict[str, float]) -> None:
    print(f"{label}: " + ", ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)  # noqa: T201


def spread(rows: Sequence[dict[str, float]], key: str) -> str:
    values = [row[key] for row in rows]
    return f"{key} {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument(
        "--rounds", type=float, default=1.5, help="number of programs, as a multiple of the concurrency"
    )
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--ramp-s", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--token-times", action="store_const", const=["--token-times"], default=[])
    parser.add_argument("--runs", type=int, default=5)
    programs(parser.parse_args())


if __name__ == "__main__":
    main()
