"""Compares our `vllm` arm with NVIDIA's aisimulate: the same trace, arrivals, KV blocks and source of step times.

    python benchmarks/cross_check.py TRACE --aisimulate PATH/TO/aisimulate --jps 0.02 0.03 0.05 --seeds 5
    python benchmarks/cross_check.py TRACE --aisimulate PATH/TO/aisimulate --mechanics
    python benchmarks/cross_check.py TRACE --two-steps

aisimulate takes a mixed step as the sum of its parts, so our steps are sums here too. Install
aisimulate (PyPI, --pre) in an environment of its own. Prints the tables of docs/results/cross-check.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from continuum_analysis.metrics import analyze_run
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.load import load_trace
from continuum_bench.workload.workload import load_workload
from continuum_server.step_times.catalog import kv_capacity, load_step_times
from continuum_server.step_times.model import PrefillChunk
from continuum_server.step_times.table import TableStepTimes
from continuum_server.virtual.engine import EngineConfig, simulate
from continuum_traces.exporters import mooncake_rows
from continuum_traces.schema import Program, Turn

GPU, MODEL, BLOCK, CHUNK = "a100-80gb", "llama-3.1-8b", 16, 2048


@dataclass(frozen=True)
class Result:
    """Means over programs of JCT and queue wait in seconds, and the hit ratio over all prompts."""

    jct_s: float
    bubble_s: float
    hit_ratio: float


def theirs(trace: Path, jps: float, seed: int, binary: str, folder: Path) -> Result:
    jobs = load_workload("cross-check", TraceOptions(traces=trace), ArrivalOptions(jps)).jobs(seed)
    programs = [replace(job.program, arrival_s=job.arrival_s) for job in jobs]
    return read_theirs(play_theirs(programs, binary, folder / f"{jps}-{seed}"))


def play_theirs(programs: Iterable[Program], binary: str, folder: Path) -> list[dict[str, Any]]:
    """Run aisimulate, and return its record of every request."""
    folder.mkdir()
    rows = folder / "trace.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in mooncake_rows(programs, BLOCK)))
    config = {
        "traffic": {
            "source": {"type": "trace", "paths": [str(rows)], "format": "mooncake", "block_size": BLOCK},
            "load": {"type": "trace_timestamps"},
        },
        "engine": {
            "model": "meta-llama/Meta-Llama-3.1-8B",
            "hardware": "a100_sxm",
            "backend": "vllm",
            "workers": {
                "aggregated": {
                    "scheduler": {"max_batched_tokens": 2048, "max_sequences": 256},
                    "kv_cache": {
                        "block_size": BLOCK,
                        "capacity": {"type": "fixed", "blocks": kv_capacity(GPU, MODEL).num_blocks},
                    },
                }
            },
        },
    }
    file, out = folder / "config.yaml", folder / "out"
    file.write_text(yaml.safe_dump(config))
    command = [binary, "predict", "-c", str(file), "--capture-per-request", "--output-dir", str(out), "--overwrite"]
    subprocess.run(command, check=True, capture_output=True)
    return [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]


def read_theirs(requests: Iterable[dict[str, Any]]) -> Result:
    sessions: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in requests:
        sessions[row["session_id"]].append(row)
    rows = [row for session in sessions.values() for row in session]
    jct = [max(map(_end, s)) - min(r["arrival_time_ms"] for r in s) for s in sessions.values()]
    bubble = [sum(r["first_admit_ms"] - r["arrival_time_ms"] for r in s) for s in sessions.values()]
    hit = sum(r["reused_input_tokens"] for r in rows) / sum(r["input_length"] for r in rows)
    return Result(float(np.mean(jct)) / 1e3, float(np.mean(bubble)) / 1e3, hit)


def _end(row: dict[str, Any]) -> float:
    return float(row["last_token_ms"])


def mechanics(trace: Path, binary: str, folder: Path) -> None:
    """Compare single mechanisms: decode alone, prefill alone, prefill beside decodes."""
    times = load_step_times(GPU, MODEL, 1, 0.0)
    program = replace(load_trace("one", TraceOptions(traces=trace)).programs[0], arrival_s=0.0)
    decode, prefill = [], []
    for row in play_theirs([program], binary, folder / "one"):
        length, output, reused = row["input_length"], row["output_length"], row["reused_input_tokens"]
        if output > 1:
            per_token = np.mean([times.step_s([], 1, length + k) for k in range(1, output)])
            decode.append((row["last_token_ms"] - row["first_token_ms"]) / (output - 1) / 1e3 / per_token)
        if length - reused <= CHUNK:
            alone = times.prefill_s(length - reused, reused)
            prefill.append((row["first_token_ms"] - row["first_admit_ms"]) / 1e3 / alone)
    print(f"one program: time per output token, theirs / ours: {spread(decode)}; prefill: {spread(prefill)}")  # noqa: T201
    print("| prompt | beside decodes | theirs, TTFT ms | one fused step, ms | two steps, ms |\n|---|---|---|---|---|")  # noqa: T201
    for prompt, context, beside in ((20000, 8000, 1), (20000, 8000, 4), (2000, 8000, 4), (300, 20000, 4)):
        programs = [Program(f"d{n}", (Turn(context, 3000),), arrival_s=0.0) for n in range(beside)]
        programs.append(Program("chunked", (Turn(prompt, 50),), arrival_s=20.0))
        rows = play_theirs(programs, binary, folder / f"{prompt}-{context}-{beside}")
        found = next(row for row in rows if row["session_id"] == "chunked")
        fused = split = 0.0
        for done in range(0, prompt, CHUNK - beside):
            chunk = [PrefillChunk(min(CHUNK - beside, prompt - done), done)]
            fused += times.step_s(chunk, beside, beside * (context + 1000))
            split += times.step_s(chunk, 0, 0) + times.step_s([], beside, beside * (context + 1000))
        ttft = found["first_token_ms"] - found["arrival_time_ms"]
        print(f"| {prompt} | {beside} x {context} | {ttft:.0f} | {fused * 1e3:.0f} | {split * 1e3:.0f} |")  # noqa: T201


def spread(ratios: list[float]) -> str:
    return f"{np.median(ratios):.4f} ({min(ratios):.4f}-{max(ratios):.4f})"


def ours(trace: Path, jps: float, seed: int, folder: Path) -> Result:
    jobs = load_workload("cross-check", TraceOptions(traces=trace), ArrivalOptions(jps)).jobs(seed)
    out = folder / f"ours-{jps}-{seed}"
    out.mkdir()
    simulate(EngineConfig(gpu=GPU, model=MODEL, step_overhead_ms=0.0), "vllm", {}, jobs, seed, out)
    values = analyze_run(out).values
    return Result(*(float(values[name] or 0.0) for name in ("jct_mean_s", "bubble_mean_s", "prefix_hit_ratio")))


def take_sums() -> None:
    """Make steps that mix chunks and decodes sums of the table's times, without our model of the attention kernel."""
    make = TableStepTimes.__init__

    def init(self: Any, table: Any, provenance: Any, *_: Any) -> None:
        make(self, table, provenance)
        self._launch_ms = 0.0

    TableStepTimes.__init__ = init  # type: ignore[method-assign]


def charge_two_steps() -> None:
    """Make a step with prompt chunks and decodes take as long as one step of each, as in aisimulate."""
    fused = TableStepTimes.step_s

    def step_s(self: Any, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        if not (chunks and decodes):
            return fused(self, chunks, decodes, decode_context_tokens)
        return fused(self, chunks, 0, 0) + fused(self, (), decodes, decode_context_tokens)

    TableStepTimes.step_s = step_s  # type: ignore[method-assign]


def line(name: str, results: Iterable[Result]) -> str:
    found = list(results)
    jct = " ".join(f"{r.jct_s:.0f}" for r in found)
    means = (np.mean([getattr(r, f) for r in found]) for f in ("jct_s", "bubble_s", "hit_ratio"))
    return "| {} | {} | {:.0f} | {:.1f} | {:.3f} |".format(name, jct, *means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--aisimulate", help="path of aisimulate; without it only our arm is run")
    parser.add_argument("--jps", type=float, nargs="+", default=[0.02, 0.03, 0.05])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mechanics", action="store_true", help="compare single mechanisms instead of whole runs")
    parser.add_argument("--two-steps", action="store_true", help="count a prompt chunk beside decodes as two steps")
    options = parser.parse_args()
    if options.mechanics and not options.aisimulate:
        parser.error("--mechanics needs --aisimulate")
    take_sums()
    with tempfile.TemporaryDirectory() as name:
        if options.mechanics:
            mechanics(options.trace, options.aisimulate, Path(name))
        else:
            whole_runs(options, Path(name))


def whole_runs(options: argparse.Namespace, folder: Path) -> None:
    if options.two_steps:
        charge_two_steps()
    label = "continuum `vllm`" + ", two steps" * options.two_steps
    print("| JPS, arm | mean JCT by seed, s | mean | bubble, s | hit ratio |\n|---|---|---|---|---|")  # noqa: T201
    for jps in options.jps:
        if options.aisimulate:
            peer = [theirs(options.trace, jps, seed, options.aisimulate, folder) for seed in range(options.seeds)]
            print(line(f"{jps:g} aisimulate", peer))  # noqa: T201
        own = [ours(options.trace, jps, seed, folder) for seed in range(options.seeds)]
        print(line(f"{jps:g} {label}", own), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
