"""Compares the virtual, the emulated and the cpu engine on one trace, one policy and one seed.

    python benchmarks/three_engines.py [--policy static-ttl] [--jps 0.5] [--kv-blocks 400] [--seed 0]

All engines serve the same synthetic programs with the same arrivals, in blocks of 32 tokens (the cpu engine's size).
``emulated`` is a vLLM server that sleeps for an H100's modelled step times. ``cpu`` is a vLLM server that computes a
tiny model with random weights. The cpu server is profiled (``continuum-bench profile --base-url``), and a second
virtual run uses the profile's step times, so that times can be compared with the cpu engine's too. Prints the tables of
docs/results/engines.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from commands import bench, markdown
from continuum_analysis.records.reading import read_run
from continuum_analysis.records.timeline import ProgramTimes, TurnTimes
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.launcher import Server
from continuum_server.server_config import EngineName, ServerConfig
from continuum_traces.jsonl import write_programs
from continuum_traces.schema import Program, ToolCall, Turn

BLOCK = 32
OPTIONS = {"static-ttl": {"ttl_s": 4.0}}
"""A TTL longer than any tool here: the KV of every turn but the last is held until the program returns."""
Key = tuple[str, int]


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


def virtual(trace: Path, out: Path, options: argparse.Namespace, *more: object) -> Played:
    words = ["--policy", options.policy, "--block-size", BLOCK, "--kv-blocks", options.kv_blocks, *more]
    words += [word for name, value in OPTIONS.get(options.policy, {}).items() for word in _option(options, name, value)]
    bench("replay", trace, "--jps", options.jps, "--seed", options.seed, *words, "--no-report", "--out", out)
    return played(out)


def _option(options: argparse.Namespace, name: str, value: float) -> tuple[str, str]:
    return "--policy-option", f"{options.policy}.{name}={value:g}"


def live(trace: Path, out: Path, options: argparse.Namespace, engine: EngineName, profile: Path | None) -> Played:
    config = ServerConfig(
        engine=engine,
        policy=options.policy,
        policy_options=OPTIONS.get(options.policy, {}),
        port=0,
        kv_blocks=options.kv_blocks,
        block_size=BLOCK,
        max_model_len=min(4096, (options.kv_blocks - 1) * BLOCK),
        record=out.with_suffix(".record"),
        emulated=EmulatedSettings(),
    )
    with Server(config, out.with_suffix(".log")) as server:
        url = f"{server.url}/v1"
        if profile is not None:
            bench("profile", "--base-url", url, "--out", profile)
        words = ["--base-url", url, "--scheduler-records", config.record, "--label", options.policy]
        bench("replay", trace, "--jps", options.jps, "--seed", options.seed, *words, "--no-report", "--out", out)
    return played(out)


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
    parser.add_argument("--policy", default="static-ttl")
    parser.add_argument("--jps", type=float, default=0.5)
    parser.add_argument("--kv-blocks", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--programs", type=int, default=12)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace, profile = folder / "small.jsonl.gz", folder / "cpu.json"
        write_programs(trace, small_programs(options.programs))
        runs = {
            "virtual, H100": virtual(trace, folder / "virtual", options),
            "emulated, H100": live(trace, folder / "emulated", options, "emulated", None),
            "cpu": live(trace, folder / "cpu", options, "cpu", profile),
            "virtual, profile of cpu": virtual(trace, folder / "profiled", options, "--profile", profile),
        }
        print(table(runs, "virtual, H100"))  # noqa: T201


if __name__ == "__main__":
    main()
