"""Compares stock vLLM with the plugin on a real GPU, and the virtual engine with both.

    python benchmarks/gpu_replay.py TRACE --jps 0.5 --num-programs 40 --kv-blocks 27500 --out runs/gpu
    python benchmarks/gpu_replay.py TRACE --engine emulated ...     # the same without a GPU: tests the script

The model has the geometry of Llama-3.1-8B, random weights (vLLM's dummy loader) and a vocabulary of 8,192. Its answers
mean nothing, but their lengths are exact, and a scheduler sees only lengths. Each policy gets a new server and the same
arrivals. First the server is profiled, and after each live run the virtual engine runs the same workload with the
profile. ``--live`` leaves the virtual runs out; the same command with ``--virtual`` makes them later, without a GPU,
beside the live runs in --out. Prints the tables of docs/results/trust.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from commands import bench, policies, show
from continuum_analysis.compare.intervals import number_text
from continuum_analysis.compare.words import markdown
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.local_model import ensure_model
from continuum_server.server_config import ServerConfig
from continuum_server.step_times.catalog import find_model

HEADINGS = ("policy", "where", "JCT mean, s", "P95", "bubble", "prefix hit", "pin hit")
METRICS = {
    "jct_mean_s": "{:.1f}",
    "jct_p95_s": "{:.1f}",
    "bubble_mean_s": "{:.1f}",
    "prefix_hit_ratio": "{:.1%}",
    "pin_hit_ratio": "{:.0%}",
}


def config_of(options: argparse.Namespace, policy: str, profile: Path | None) -> ServerConfig:
    common: dict[str, Any] = {
        "policy": policy,
        "port": 0,
        "kv_blocks": options.kv_blocks,
        "block_size": 16,
        "max_model_len": options.max_model_len,
        "record": options.out / f"{policy}.record" if policy != "stock" else None,
        "profile": profile,
    }
    if options.engine == "gpu":
        folder = ensure_model(find_model("llama-3.1-8b"))
        arguments = ("--load-format", "dummy", *options.server_argument)
        return ServerConfig(engine="gpu", model=str(folder), vllm_arguments=arguments, **common)
    common["vllm_arguments"] = tuple(options.server_argument)
    if options.engine == "cpu":
        return ServerConfig(engine="cpu", **{**common, "block_size": 32, "kv_blocks": options.kv_blocks // 2})
    return ServerConfig(engine="emulated", emulated=EmulatedSettings(gpu=options.gpu), **common)


def workload(options: argparse.Namespace) -> list[Any]:
    load = ["replay", options.trace, "--jps", options.jps, "--num-programs", options.num_programs]
    return [*load, "--length-scale", options.length_scale, "--seed", options.seed]


def play(options: argparse.Namespace, policy: str, profile: Path | None) -> dict[str, Any]:
    config, out = config_of(options, policy, profile), options.out / f"live-{policy}"
    with Server(config, options.out / f"{policy}.log") as server:
        load = workload(options)
        load += ["--base-url", f"{server.url}/v1", "--label", policy, "--no-report", "--skip-invalid", "--out", out]
        if options.time_limit_s is not None:
            load += ["--time-limit-s", options.time_limit_s]
        if config.record is not None:
            load += ["--scheduler-records", config.record]
        bench(*load)
    return policies(out)[policy]


def play_virtually(options: argparse.Namespace, policy: str, profile: Path) -> dict[str, Any]:
    name = "vllm" if policy == "stock" else policy
    out = options.out / f"virtual-{name}"
    load = [*workload(options), "--profile", profile, "--kv-blocks", options.kv_blocks, "--policy", name]
    bench(*load, "--skip-invalid", "--no-report", "--out", out)
    return policies(out)[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--engine", choices=("gpu", "emulated", "cpu"), default="gpu")
    parser.add_argument("--gpu", default="h200-141gb", help="with --engine emulated: the GPU whose step times are used")
    parser.add_argument("--jps", type=float, default=0.5)
    parser.add_argument("--num-programs", type=int, default=40)
    parser.add_argument("--kv-blocks", type=int, default=27_500, help="KV blocks of 16 tokens; an A100-80GB has 27,500")
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--policy", default="stock,continuum")
    parser.add_argument("--length-scale", type=float, default=1.0, help="multiplies the lengths of the trace")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals")
    parser.add_argument(
        "--time-limit-s", type=float, help="end a live replay after so long; what is unfinished is counted"
    )
    parser.add_argument(
        "--server-argument", action="append", default=[], help="passed on to vLLM; repeat it for each word"
    )
    parser.add_argument("--live", action="store_true", help="live runs only")
    parser.add_argument("--virtual", action="store_true", help="virtual runs only, beside the live ones in --out")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.live and options.virtual:
        parser.error("--live and --virtual exclude each other")
    profile = options.out / "profile.json"
    if not options.virtual:
        options.out.mkdir(parents=True)
        with Server(config_of(options, "stock", None), options.out / "profile.log") as server:
            bench("profile", "--base-url", f"{server.url}/v1", "--out", profile)
    rows = []
    for policy in options.policy.split(","):
        folder = options.out / f"live-{policy}"
        live = policies(folder)[policy] if options.virtual else play(options, policy, profile)
        rows.append([policy, f"live ({options.engine})", *cells(live)])
        if not options.live:
            rows.append(["", "virtual, with the profile", *cells(play_virtually(options, policy, profile))])
    show(markdown(HEADINGS, rows))


def cells(row: dict[str, Any]) -> list[str]:
    return [number_text(row.get(name), form) for name, form in METRICS.items()]


if __name__ == "__main__":
    main()
