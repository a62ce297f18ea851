"""Our `vllm` arm beside NVIDIA's aisimulate: the same trace, arrivals, KV blocks and step-time source.

    python benchmarks/cross_check.py TRACE --aisimulate PATH/TO/aisimulate --jps 0.02 0.03 0.05 --seeds 5

aisimulate (PyPI, --pre) belongs in an environment of its own. Prints the table of docs/results/cross-check.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from continuum_analysis.compare import load_runs
from continuum_bench.workload import WorkloadRequest, arrivals, load_workload
from continuum_server.step_times.catalog import kv_capacity
from continuum_traces.exporters import mooncake_rows

GPU, MODEL, BLOCK = "a100-80gb", "llama-3.1-8b", 16


@dataclass(frozen=True)
class Result:
    """Means over programs: JCT and queueing seconds; hit ratio over all prompts; wall seconds."""

    jct_s: float
    bubble_s: float
    hit_ratio: float


def theirs(trace: Path, jps: float, seed: int, binary: str, folder: Path) -> Result:
    workload = load_workload(WorkloadRequest("cross-check", traces=trace, jps=jps))
    programs = [replace(play.program, arrival_s=play.arrival_s) for play in arrivals(workload, jps, seed)]
    rows = folder / f"{jps}-{seed}.jsonl"
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
    file, out = folder / "config.yaml", folder / f"out-{jps}-{seed}"
    file.write_text(yaml.safe_dump(config))
    command = [binary, "predict", "-c", str(file), "--capture-per-request", "--output-dir", str(out), "--overwrite"]
    subprocess.run(command, check=True, capture_output=True)
    return read_theirs(out / "requests.jsonl")


def read_theirs(path: Path) -> Result:
    sessions: dict[str, list[dict[str, float]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        sessions[row["session_id"]].append(row)
    rows = [row for session in sessions.values() for row in session]
    jct = [max(map(_end, s)) - min(r["arrival_time_ms"] for r in s) for s in sessions.values()]
    bubble = [sum(r["first_admit_ms"] - r["arrival_time_ms"] for r in s) for s in sessions.values()]
    hit = sum(r["reused_input_tokens"] for r in rows) / sum(r["input_length"] for r in rows)
    return Result(float(np.mean(jct)) / 1e3, float(np.mean(bubble)) / 1e3, hit)


def _end(row: dict[str, float]) -> float:
    return row["last_token_ms"]


def ours(trace: Path, jps: float, seeds: int, folder: Path) -> dict[int, Result]:
    out = folder / f"ours-{jps}"
    command = [sys.executable, "-m", "continuum_bench", "replay", str(trace), "--jps", str(jps), "--seeds", str(seeds)]
    command += ["--policy", "vllm", "--gpu", GPU, "--step-overhead-ms", "0", "--no-report", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    results = {}
    for run in load_runs(out):
        values = run.metrics.values
        figures = [float(values[name] or 0.0) for name in ("jct_mean_s", "bubble_mean_s", "prefix_hit_ratio")]
        results[run.manifest.seed] = Result(*figures)
    return results


def line(name: str, results: Iterable[Result]) -> str:
    found = list(results)
    jct = " ".join(f"{r.jct_s:.0f}" for r in found)
    means = (np.mean([getattr(r, f) for r in found]) for f in ("jct_s", "bubble_s", "hit_ratio"))
    return "| {} | {} | {:.0f} | {:.1f} | {:.3f} |".format(name, jct, *means)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--aisimulate", required=True)
    parser.add_argument("--jps", type=float, nargs="+", default=[0.02, 0.03, 0.05])
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    print("| JPS, arm | mean JCT by seed, s | mean | bubble, s | hit ratio |\n|---|---|---|---|---|")  # noqa: T201
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for jps in options.jps:
            peer = [theirs(options.trace, jps, seed, options.aisimulate, folder) for seed in range(options.seeds)]
            own = ours(options.trace, jps, options.seeds, folder)
            print(line(f"{jps:g} aisimulate", peer))  # noqa: T201
            print(line(f"{jps:g} continuum `vllm`", (own[seed] for seed in sorted(own))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
