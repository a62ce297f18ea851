"""Draws workloads at random and plays them in virtual time: where is ``working-set`` slower than another policy?

    python benchmarks/random_draw.py [--workloads 40] [--seeds 0,1]
    python benchmarks/random_draw.py --giants [--offload dram-100] --seeds 1,2,3,4,5

Sizes, tools, pools, chunks, tiers and arrivals are drawn. Programs arrive at 0.8 to 4 times the rate at which an
H100 that never loses KV could serve them. A row has the mean JCT of ``working-set``, divided by that of each other
policy, and the same for the third of the programs with the smallest contexts. With ``--giants`` 54 small programs and 6
of 110,000 tokens arrive at 1/s and share a pool of 224,000: mean JCTs by kind. Giants have a large first prompt (half
of their tokens), or 30 turns.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import mean
from typing import Any

import numpy as np
from continuum_analysis.compare.intervals import ratio_interval
from continuum_bench.workload.arrivals import arrival_times
from continuum_bench.workload.tool_times import tool_times
from continuum_server.routers import ROUTERS
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_server.virtual.offload import read_offload
from continuum_server.virtual.replicas import ReplicaLoops
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, SchedulerEvent
from continuum_traces.synth import Spread, load_profile, mix, synthesize

GPU, BLOCK, MOST_BLOCKS = "h100-sxm", 16, 27_500
"""The card, and its KV pool with Llama-3.1-8B."""
LARGEST = 120_000
"""Tokens of the largest program that is played."""
OTHERS, OWN = ("vllm", "static-ttl", "continuum"), "working-set"
SLOWER, OF_SMALL = 1.03, 1.2
"""Ratios from which a row counts: to the fastest of the others, and of small programs to ``vllm``."""
PROFILES = {"swebench": 1.0, "bfcl": 0.3, "openhands": 1.0, "claude-code": 1.0}
"""Profiles, with the largest factor for their lengths."""
TOOLS = ("recorded", "recorded", "constant:5", "bimodal:0.8:0.5:30", "shift:10")
ARRIVALS = ("poisson", "poisson", "gamma:3")
TIERS = (None, None, "dram-20", "dram-100", "dram-20+ssd-200")
CHUNKS = (512, 2048, 8192)
GIANTS = {"large first prompts": (load_profile("swebench").turns, 12.0), "30 turns": (Spread(30, 2, 3, 60), 4.0)}
"""The giants' turns and ``first_prompt_weight``."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs in the order of their arrival, and the engine that serves them."""

    programs: Sequence[Program]
    config: EngineConfig
    jps: float
    arrivals: str
    text: str


def draw(seed: int, number: int, programs: int) -> Workload:
    rng = np.random.default_rng([seed, number])

    def one(choices: Sequence[Any]) -> Any:
        return choices[rng.integers(len(choices))]

    parts = {}
    for share in (1.0,) if rng.random() < 0.5 else ((first := float(rng.uniform(0.1, 0.9))), 1.0 - first):
        profile = one(list(PROFILES))
        scale = PROFILES[profile] * float(np.exp(rng.uniform(np.log(0.1), 0.0)))
        given = synthesize(load_profile(profile), programs, seed + number, length_scale=scale)
        parts[f"{profile} x {scale:.2f}"] = (share, [each for each in given if each.final_context_tokens <= LARGEST])
    played = mix(parts, programs, number)
    played = [replace(each, program_id=f"{each.program_id}-{index}") for index, each in enumerate(played)]
    sizes = [each.final_context_tokens for each in played]
    tokens = max(1.25 * max(sizes), mean(sizes) * float(rng.uniform(2.0, 6.0)))
    tools, arrivals, tiers, chunk = one(TOOLS), one(ARRIVALS), one(TIERS), one(CHUNKS)
    config = EngineConfig(
        gpu=GPU,
        kv_blocks=min(MOST_BLOCKS, int(tokens) // BLOCK),
        block_size=BLOCK,
        chunk_tokens=chunk,
        offload=tiers and read_offload(tiers, GPU),
    )
    load = float(rng.uniform(0.8, 4.0))
    kinds = " and ".join(f"{share:.0%} {kind}" for kind, (share, _) in parts.items())
    text = f"{kinds}; {config.kv_blocks} blocks, chunks of {chunk}, {tiers or 'no tier'}, tools {tools}"
    played = tool_times(tools)(random.Random(number), played)
    return Workload(played, config, load * capacity(played, config), arrivals, f"{text}, {arrivals}, load {load:.2f}")


def giants(cell: str, seed: int, tiers: str | None) -> Workload:
    (turns, first_prompt_weight), swebench = GIANTS[cell], load_profile("swebench")
    tokens = Spread(110_000, 4000, 100_000, 118_000)
    large = replace(swebench, name="giant", turns=turns, tokens=tokens, first_prompt_weight=first_prompt_weight)
    parts = {
        "small": (0.9, synthesize(swebench, 54, seed, length_scale=0.12)),
        "giant": (0.1, synthesize(large, 6, seed)),
    }
    offload = tiers and read_offload(tiers, GPU)
    config = EngineConfig(gpu=GPU, kv_blocks=3500, block_size=64, offload=offload)
    return Workload(mix(parts, 60, seed), config, 1.0, "poisson", "")


def capacity(programs: Sequence[Program], config: EngineConfig) -> float:
    """Return the programs per second that the engine could serve if it never lost KV."""
    settings = settings_of(config, OWN, {})
    assert settings.decode is not None
    assert config.kv_blocks is not None
    token_s = settings.decode.full_token_s(config.kv_blocks * config.block_size)

    def work_s(program: Program) -> float:
        turns = zip(program.turns, program.prompt_tokens(), strict=True)
        read = sum(turn.output_tokens * (prompt + turn.output_tokens / 2) for turn, prompt in turns)
        return settings.prefill.seconds(program.final_context_tokens) + read * token_s

    return 1.0 / mean(map(work_s, programs))


class Ends:
    """When each program's last turn ended."""

    def __init__(self) -> None:
        self.last_s: dict[str, float] = {}

    def write(self, event: SchedulerEvent) -> None:
        if event.event == "finish":
            self.last_s[event.program_id] = event.t


def jcts(workload: Workload, policy: str, seed: int) -> list[float]:
    """Return the JCT of each program in seconds."""
    times = arrival_times(workload.arrivals)(np.random.default_rng(seed), workload.jps, workload.programs)
    jobs = [Job(program, float(at_s)) for program, at_s in zip(workload.programs, times, strict=True)]
    config, ends = workload.config, Ends()
    engine = build_engine(shape_of(config), times_of(config), settings_of(config, policy, {}), sink=ends)
    ReplicaLoops([engine.loop], ROUTERS["round-robin"](), jobs, least_step_s=0.0).run()
    engine.close()
    return [ends.last_s[job.program_id] - job.arrival_s for job in jobs]


def ratios(workload: Workload, seeds: Sequence[int]) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean JCT of ``working-set`` to that of each other policy: of all programs, and of the small ones."""
    every: dict[str, list[float]] = {policy: [] for policy in (*OTHERS, OWN)}
    small: dict[str, list[float]] = {policy: [] for policy in every}
    sizes = [each.final_context_tokens for each in workload.programs]
    third = sorted(range(len(sizes)), key=sizes.__getitem__)[: len(sizes) // 3]
    for seed in seeds:
        for policy in every:
            of_jobs = jcts(workload, policy, seed)
            every[policy] += of_jobs
            small[policy] += [of_jobs[index] for index in third]
    of_all, of_small = ({other: mean(by[OWN]) / mean(by[other]) for other in OTHERS} for by in (every, small))
    return of_all, of_small


def of_giants(cell: str, seeds: Sequence[int], tiers: str | None) -> Iterator[str]:
    """Yield the rows of mean JCTs, and the ratio of ``working-set`` to ``continuum`` by seed."""
    yield f"giants with {cell}:"
    means: dict[str, list[list[float]]] = {"small": [], "giant": []}
    for policy in (*OTHERS, OWN):
        for kind in means:
            means[kind].append([])
        for seed in seeds:
            workload = giants(cell, seed, tiers)
            of_jobs = list(zip(workload.programs, jcts(workload, policy, seed), strict=True))
            for kind, of_policies in means.items():
                of_policies[-1].append(
                    mean(jct for program, jct in of_jobs if (program.metadata or {})["kind"] == kind)
                )
        yield f"| {policy} | {' | '.join(f'{mean(by[-1]):.1f}' for by in means.values())} |"
    for kind, of_policies in means.items():
        yield f"{kind}: {OWN} to {OTHERS[-1]} {ratio_interval(of_policies[-1], of_policies[-2]).text('{:.2f}'.format)}"


def of_draw(options: argparse.Namespace) -> Iterator[str]:
    """Yield the row of each workload, and how many are slower."""
    slower = slow_small = 0
    for number in range(options.first, options.first + options.workloads):
        workload = draw(options.seed, number, options.programs)
        of_all, of_small = ratios(workload, options.seeds)
        slower += max(of_all.values()) > SLOWER
        slow_small += of_small["vllm"] > OF_SMALL
        cells = [f"{of_all[other]:.3f}" for other in OTHERS] + [f"{of_small['vllm']:.3f}"]
        yield f"| {number} | {workload.text} | {' | '.join(cells)} |"
    yield f"slower than the fastest of the others by over 3%: {slower} of {options.workloads}"
    yield f"small programs over {OF_SMALL} times vllm's: {slow_small} of {options.workloads}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--giants", action="store_true")
    parser.add_argument("--offload", help="tiers of --giants, such as dram-100")
    parser.add_argument("--workloads", type=int, default=40)
    parser.add_argument("--first", type=int, default=0, help="number of the first workload")
    parser.add_argument("--programs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1])
    options = parser.parse_args()
    cells = (of_giants(cell, options.seeds, options.offload) for cell in GIANTS)
    for line in chain.from_iterable(cells) if options.giants else of_draw(options):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
