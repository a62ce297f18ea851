"""Prints how long small programs and giants take that share a KV pool, in virtual time, by policy.

    python benchmarks/giants.py [--offload dram-100] --seeds 1,2,3,4,5

54 small programs and 6 of 110,000 tokens arrive at 1/s on a modelled H100 and share a pool of 224,000 tokens. Giants
have a large first prompt (half of their tokens), or 30 turns. Mean JCTs by kind, in seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from statistics import mean

from continuum_analysis.compare.intervals import ratio_interval
from continuum_server.virtual.config import EngineConfig
from continuum_server.virtual.offload import read_offload
from continuum_traces.grouped import grouped
from continuum_traces.programs.synth import Spread, load_profile, mix, synthesize
from order import turns_of
from order_workloads import Workload

GPU = "h100-sxm"
OTHERS, OWN = ("vllm", "static-ttl", "continuum"), "working-set"
GIANTS = {"large first prompts": (load_profile("swebench").turns, 12.0), "30 turns": (Spread(30, 2, 3, 60), 4.0)}
"""The giants' turns and ``first_prompt_weight``."""


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
    return Workload(mix(parts, 60, seed), config)


def mean_jcts(workload: Workload, policy: str, seed: int) -> dict[str, float]:
    """Return the mean JCT of each kind of program in seconds."""
    kinds = {each.program_id: str((each.metadata or {})["kind"]) for each in workload.programs}
    turns = grouped((turn.program_id, turn) for turn in turns_of(workload, policy, seed))
    jcts = ((kinds[name], (each[-1].finish_s or 0.0) - each[0].due_s) for name, each in turns.items())
    return {kind: mean(each) for kind, each in grouped(jcts).items()}


def of_giants(cell: str, seeds: Sequence[int], tiers: str | None) -> Iterator[str]:
    """Yield the rows of mean JCTs, and the ratio of ``working-set`` to ``continuum`` by seed."""
    yield f"giants with {cell}:"
    means: dict[str, list[list[float]]] = {"small": [], "giant": []}
    for policy in (*OTHERS, OWN):
        for kind in means:
            means[kind].append([])
        for seed in seeds:
            for kind, jct in mean_jcts(giants(cell, seed, tiers), policy, seed).items():
                means[kind][-1].append(jct)
        yield f"| {policy} | {' | '.join(f'{mean(by[-1]):.1f}' for by in means.values())} |"
    for kind, of_policies in means.items():
        yield f"{kind}: {OWN} to {OTHERS[-1]} {ratio_interval(of_policies[-1], of_policies[-2]).text('{:.2f}'.format)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--offload", help="tiers, such as dram-100")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0, 1])
    options = parser.parse_args()
    for line in chain.from_iterable(of_giants(cell, options.seeds, options.offload) for cell in GIANTS):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
