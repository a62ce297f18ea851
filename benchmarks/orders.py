"""Computes what the order of programs alone can gain, if all programs are present from the start on one server.

    python benchmarks/orders.py benchmarks/own_policy/cells_pressure.json --traces DIR [--only syn]

The model has no memory limit, no arrivals and no batches. It prints the mean completion time relative to a random order
(which equals the order of arrival if sizes are unknown) for three orders. Shortest program first knows every size. The
Gittins index by turns done knows the distribution of sizes, but of a program only how many turns it has done; it is the
best such order (Aalto, Ayesta, Righter 2009). The third is shortest first prompt first. The size of a program is its
engine time in a full batch: its new prompt tokens by the prefill curve, and its context's share of the decode steps.
The Gittins index uses the distribution of the sample itself, which flatters it.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from pathlib import Path

import numpy as np
from continuum_server.step_times.curves import fit_decode, fit_prefill
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_traces.conversation import Job
from own_policy import jobs_of, read_cells

Sizes = list[list[float]]
"""The seconds of each turn of each program."""


def sizes_of(jobs: list[Job], config: EngineConfig) -> Sizes:
    times, shape = times_of(config), shape_of(config)
    prefill, tokens = fit_prefill(times, shape.max_model_len), shape.num_blocks * shape.block_size
    token_s = fit_decode(times).full_token_s(tokens)
    programs = []
    for job in jobs:
        turns = zip(job.program.turns, job.program.prompt_tokens(), strict=True)
        programs.append(
            [
                prefill.seconds(prompt)
                - prefill.seconds(prompt - turn.new_input_tokens)
                + turn.output_tokens * token_s * (prompt + turn.output_tokens / 2)
                for turn, prompt in turns
            ]
        )
    return programs


def gittins(sizes: Sizes, done: int) -> float:
    """Return the Gittins index of a program with ``done`` turns done: the highest chance of ending per second."""
    alive = [turns[done:] for turns in sizes if len(turns) > done]
    further = range(1, max(map(len, alive)) + 1)
    return max(
        sum(len(turns) <= more for turns in alive) / sum(sum(turns[:more]) for turns in alive) for more in further
    )


def mean_completion_s(sizes: Sizes, index: list[float], order: np.ndarray) -> float:
    """Serve one turn at a time of the program with the highest ``index`` for its turns done; ties in ``order``."""
    waiting = [(-index[0], place, int(program), 0) for place, program in enumerate(order)]
    heapq.heapify(waiting)
    now_s, total_s = 0.0, 0.0
    while waiting:
        _, place, program, done = heapq.heappop(waiting)
        now_s, done = now_s + sizes[program][done], done + 1
        if done == len(sizes[program]):
            total_s += now_s
        else:
            heapq.heappush(waiting, (-index[done], place, program, done))
    return total_s / len(sizes)


def in_order(totals: np.ndarray, keys: np.ndarray) -> float:
    return float(np.cumsum(totals[np.argsort(keys, kind="stable")]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=Path)
    parser.add_argument("--traces", type=Path, default=Path())
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    sys.stdout.write(
        "| cell | programs | size, CV | shortest first | Gittins by turns | shortest first prompt first |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|\n")
    for name, cell in read_cells(given.cells, given.only, given.traces).items():
        jobs = jobs_of(cell, 0)
        sizes = sizes_of(jobs, EngineConfig(gpu=cell.get("gpu", "a100-80gb"), kv_blocks=cell.get("kv_blocks")))
        totals = np.array([sum(turns) for turns in sizes])
        random_s = (len(totals) + 1) / 2 * totals.mean()
        index = [gittins(sizes, done) for done in range(max(map(len, sizes)))]
        dice = np.random.default_rng(0)
        by_age_s = np.mean([mean_completion_s(sizes, index, dice.permutation(len(sizes))) for _ in range(20)])
        prompts = np.array([job.program.prompt_tokens()[0] for job in jobs])
        ratios = [in_order(totals, totals), by_age_s, in_order(totals, prompts)]
        columns = [totals.std() / totals.mean(), *(seconds / random_s for seconds in ratios)]
        sys.stdout.write(f"| {name} | {len(totals)} | " + " | ".join(f"{column:.2f}" for column in columns) + " |\n")


if __name__ == "__main__":
    main()
