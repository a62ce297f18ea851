"""Compares the engines on the same programs, arrivals and policy. Prints the tables of docs/results/trust.md.

    python benchmarks/engines_agree.py TRACE --jps 0.5 --kv-blocks 1200 --seeds 3
    python benchmarks/engines_agree.py

First form: the virtual and the emulated engine. The emulated engine is a vLLM server that sleeps for the modelled time,
so a run takes as long as its modelled time.
Second form: the cpu engine too, turn by turn, with one policy and one seed, in blocks of 32 tokens (the cpu engine's
size). The cpu engine is a vLLM server that computes a tiny model with random weights. It is profiled
(``continuum-bench profile --base-url``), and a second virtual run uses the profile's step times, so that times can be
compared with the cpu engine's too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from commands import bench, markdown, policies
from continuum_analysis.records.reading import read_run
from continuum_analysis.records.timeline import ProgramTimes, TurnTimes
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.server_config import ServerConfig
from continuum_traces.jsonl import write_programs
from continuum_traces.schema import Program, ToolCall, Turn

POLICIES = ("vllm", "program-fcfs", "static-ttl", "continuum")
HEADER = "| policy | engine | JCT mean, s | P95 | bubble | prefix hit | JCT, emulated / virtual |"
FIGURES = ("jct_mean_s", "jct_p95_s", "bubble_mean_s", "prefix_hit_ratio")
STATIC_TTL_S = 4.0
"""Of the three engines' run: longer than any tool there, so the KV of every turn but the last waits for the next."""


def play_live(config: ServerConfig, trace: Path, jps: float, seed: int, out: Path, profile: Path | None = None) -> None:
    """Replay the trace on a server with this config; make the server's profile first if ``profile`` names a file."""
    with Server(config, out.with_suffix(".log")) as server:
        url = f"{server.url}/v1"
        if profile is not None:
            bench("profile", "--base-url", url, "--out", profile)
        load = ["replay", trace, "--jps", jps, "--seed", seed, "--base-url", url, "--label", config.policy]
        bench(*load, "--scheduler-records", config.record, "--no-report", "--out", out)


# ------------------------------------------------------------------------------------- virtual and emulated


def two_engines(options: argparse.Namespace, folder: Path) -> None:
    print(HEADER + "\n" + "|---" * 7 + "|")  # noqa: T201
    load = ["replay", options.trace, "--jps", options.jps, "--seeds", options.seeds]
    engine = ["--kv-blocks", options.kv_blocks, "--gpu", options.gpu, "--policy", options.policy]
    bench(*load, *engine, "--no-report", "--out", folder / "virtual")
    for policy in options.policy.split(","):
        modelled, lived = policies(folder / "virtual")[policy], emulated(policy, options, folder)
        print(line(policy, "virtual", modelled, ""))  # noqa: T201
        ratio = lived["jct_mean_s"] / modelled["jct_mean_s"]
        print(line("", "emulated", lived, f"{ratio:.3f}"), flush=True)  # noqa: T201


def emulated(policy: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
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
        play_live(config, options.trace, options.jps, seed, out)
        rows.append(policies(out)[policy])
    return {name: sum(row[name] for row in rows) / len(rows) for name in FIGURES}


def line(policy: str, engine: str, row: dict[str, Any], ratio: str) -> str:
    jct, p95, bubble, hit = (row[name] for name in FIGURES)
    return f"| {policy} | {engine} | {jct:.1f} | {p95:.1f} | {bubble:.1f} | {hit:.1%} | {ratio} |"


# ------------------------------------------------------------------------------------------- three engines


def three_engines(folder: Path) -> None:
    blocks, block, jps = 400, 32, 0.5
    trace, profile, cpu, slept = (folder / name for name in ("small.jsonl.gz", "cpu.json", "cpu", "emulated"))
    write_programs(trace, small_programs(12))

    def virtual(name: str, *more: object) -> Played:
        words = [
            "--policy",
            "static-ttl",
            "--policy-option",
            f"static-ttl.ttl_s={STATIC_TTL_S:g}",
            "--block-size",
            block,
        ]
        load = ["replay", trace, "--jps", jps, "--seed", 0, *words, "--kv-blocks", blocks, *more]
        bench(*load, "--no-report", "--out", folder / name)
        return played(folder / name)

    common: dict[str, Any] = {"policy": "static-ttl", "policy_options": {"ttl_s": STATIC_TTL_S}, "port": 0}
    common |= {"kv_blocks": blocks, "block_size": block, "max_model_len": 4096, "emulated": EmulatedSettings()}
    play_live(ServerConfig(record=folder / "emulated.record", **common), trace, jps, 0, slept)
    play_live(ServerConfig(engine="cpu", record=folder / "cpu.record", **common), trace, jps, 0, cpu, profile)
    runs = {"virtual, H100": virtual("virtual"), "emulated, H100": played(slept), "cpu": played(cpu)}
    runs["virtual, profile of cpu"] = virtual("profiled", "--profile", profile)
    print(table(runs, "virtual, H100"))  # noqa: T201


def small_programs(count: int) -> list[Program]:
    """Make programs with four to seven turns: 300 to 900 tokens at first, 50 to 200 more in each turn, tools of 1 s on
    average."""
    chance = random.Random(3)
    programs = []
    for number in range(count):
        last = chance.randint(3, 6)
        turns = [
            Turn(
                chance.randint(300, 900) if index == 0 else chance.randint(50, 200),
                chance.randint(16, 48),
                tool_calls=(ToolCall("ls", min(3.0, chance.expovariate(1.0))),) if index < last else (),
            )
            for index in range(last + 1)
        ]
        programs.append(Program(f"p{number}", tuple(turns), synthetic=True))
    return programs


Key = tuple[str, int]


@dataclass(frozen=True)
class Played:
    """The programs as one engine ran them."""

    programs: tuple[ProgramTimes, ...]

    @property
    def turns(self) -> dict[Key, TurnTimes]:
        return {(program.program_id, turn.index): turn for program in self.programs for turn in program.turns}

    def total(self, name: str) -> int:
        return sum(getattr(turn, name) or 0 for turn in self.turns.values())

    def jct_s(self) -> float:
        return statistics.mean(program.jct_s for program in self.programs)

    def ttft_s(self) -> float:
        return statistics.mean(turn.ttft_s or 0.0 for turn in self.turns.values())

    def tpot_s(self) -> float:
        return statistics.mean(turn.tpot_s for turn in self.turns.values() if turn.tpot_s is not None)

    def bubble_s(self) -> float:
        return statistics.mean(program.bubble_s or 0.0 for program in self.programs)


def same_order(ours: Played, theirs: Played) -> float:
    """Return the share of pairs of turns, of different programs, that both engines started in the same order."""
    at, other = ({key: turn.start_s or 0.0 for key, turn in played.turns.items()} for played in (ours, theirs))
    pairs = [(a, b) for a, b in combinations(at, 2) if a[0] != b[0]]
    return statistics.mean((at[a] < at[b]) == (other[a] < other[b]) for a, b in pairs)


def same_hits(ours: Played, theirs: Played) -> int:
    return sum(turn.hit_tokens == theirs.turns[key].hit_tokens for key, turn in ours.turns.items())


def played(out: Path) -> Played:
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return Played(tuple(read_run(folder)))


def table(runs: dict[str, Played], base: str) -> str:
    first = runs[base]
    rows: list[tuple[str, list[str]]] = [
        ("turns", [f"{len(run.turns)}" for run in runs.values()]),
        ("prompt tokens", [f"{run.total('prompt_tokens')}" for run in runs.values()]),
        ("output tokens", [f"{run.total('output_tokens')}" for run in runs.values()]),
        ("prompt tokens found in cache", [f"{run.total('hit_tokens')}" for run in runs.values()]),
        (f"turns with the hits of {base}", [f"{same_hits(run, first)}" for run in runs.values()]),
        (
            "pins, of them hit",
            [f"{len(pins)}, {sum(p.reason == 'hit' for p in pins)}" for pins in map(pins_of, runs.values())],
        ),
        (f"pairs of turns started in the order of {base}", [f"{same_order(run, first):.1%}" for run in runs.values()]),
        ("JCT mean, s", [f"{run.jct_s():.2f}" for run in runs.values()]),
        ("TTFT mean, ms", [f"{run.ttft_s() * 1e3:.0f}" for run in runs.values()]),
        ("TPOT mean, ms", [f"{run.tpot_s() * 1e3:.1f}" for run in runs.values()]),
        ("bubble mean, s", [f"{run.bubble_s():.3f}" for run in runs.values()]),
    ]
    return markdown(["", *runs], [[name, *cells] for name, cells in rows])


def pins_of(run: Played) -> list[object]:
    return [pin for program in run.programs for pin in program.pins]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--jps", type=float, default=0.5)
    parser.add_argument("--kv-blocks", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gpu", default="h100-80gb")
    parser.add_argument("--policy", default=",".join(POLICIES))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        two_engines(options, Path(name)) if options.trace else three_engines(Path(name))


if __name__ == "__main__":
    main()
