"""Compares the virtual and the emulated engine on the same programs, arrivals and policy.

    python benchmarks/engines_agree.py TRACE --jps 0.5 --kv-blocks 1200 --seeds 3

The emulated engine is a vLLM server that sleeps for the modelled time, so a run takes as long as its modelled time.
Prints the table of docs/results/engines.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from commands import bench, policies
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.server_config import ServerConfig

POLICIES = ("vllm", "program-fcfs", "static-ttl", "continuum")


def emulated(trace: Path, policy: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return mean results over seeds. Each seed has a new server, so that the policy has learned nothing from other
    seeds."""
    rows = []
    for seed in range(options.seeds):
        out = folder / f"emulated-{policy}-{seed}"
        config = ServerConfig(
            policy=policy,
            port=0,
            kv_blocks=options.kv_blocks,
            max_model_len=(options.kv_blocks - 1) * 16,
            record=out.with_suffix(".record"),
            emulated=EmulatedSettings(gpu=options.gpu),
        )
        with Server(config, out.with_suffix(".log")) as server:
            load = ["replay", trace, "--jps", options.jps, "--seed", seed, "--base-url", f"{server.url}/v1"]
            bench(*load, "--scheduler-records", config.record, "--label", policy, "--no-report", "--out", out)
        rows.append(policies(out)[policy])
    return {name: sum(row[name] for row in rows) / len(rows) for name in FIGURES}


HEADER = "| policy | engine | JCT mean, s | P95 | bubble | prefix hit | JCT, emulated / virtual |"
FIGURES = ("jct_mean_s", "jct_p95_s", "bubble_mean_s", "prefix_hit_ratio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--jps", type=float, default=0.5)
    parser.add_argument("--kv-blocks", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gpu", default="h100-80gb")
    parser.add_argument("--policy", default=",".join(POLICIES))
    options = parser.parse_args()
    print(HEADER + "\n" + "|---" * 7 + "|")  # noqa: T201
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        virtual = folder / "virtual"
        load = ["replay", options.trace, "--jps", options.jps, "--seeds", options.seeds]
        engine = ["--kv-blocks", options.kv_blocks, "--gpu", options.gpu, "--policy", options.policy]
        bench(*load, *engine, "--no-report", "--out", virtual)
        for policy in options.policy.split(","):
            modelled, lived = policies(virtual)[policy], emulated(options.trace, policy, options, folder)
            print(line(policy, "virtual", modelled, ""))  # noqa: T201
            ratio = lived["jct_mean_s"] / modelled["jct_mean_s"]
            print(line("", "emulated", lived, f"{ratio:.3f}"), flush=True)  # noqa: T201


def line(policy: str, engine: str, row: dict[str, Any], ratio: str) -> str:
    jct, p95, bubble, hit = (row[name] for name in FIGURES)
    return f"| {policy} | {engine} | {jct:.1f} | {p95:.1f} | {bubble:.1f} | {hit:.1%} | {ratio} |"


if __name__ == "__main__":
    main()
