"""Experiments that differ in their router alone, as one Markdown table: the rows of docs/results/replicas.md.

python benchmarks/replicas_table.py runs/replicas-round-robin runs/replicas-affinity ...

Ratios are to ``vllm`` of the first experiment, paired by seed and program.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from itertools import groupby
from pathlib import Path

import numpy as np
from continuum_analysis.compare import Run, compare_to, load_runs
from continuum_analysis.timeline import ProgramTimes

HEADER = "| router | policy | JCT mean | P95 | bubble | prefix hit | pin hit | elsewhere | busiest | speed to first |"


def main() -> None:
    arms = [(router, policy, runs) for folder in sys.argv[1:] for router, policy, runs in arms_of(Path(folder))]
    base = arms[0][2]
    print(HEADER + "\n" + "|---" * (HEADER.count("|") - 1) + "|")  # noqa: T201
    for router, policy, runs in arms:
        print(line(router, policy, runs, base))  # noqa: T201


def arms_of(folder: Path) -> list[tuple[str, str, list[Run]]]:
    runs = sorted(load_runs(folder), key=lambda run: (run.manifest.policy != "vllm", run.manifest.policy))
    return [
        (str(group[0].manifest.engine_options["router"]), policy, group)
        for policy, found in groupby(runs, key=lambda run: run.manifest.policy)
        if (group := list(found))
    ]


def line(router: str, policy: str, runs: list[Run], base: list[Run]) -> str:
    def mean(name: str) -> float:
        return float(np.mean([run.metrics.values[name] or 0.0 for run in runs]))

    compared = compare_to(base, runs)
    assert compared is not None
    low, high = compared.ratio.low, compared.ratio.high
    seeds = ", ".join(f"{run.metrics.values['jct_mean_s']:.0f}" for run in runs)
    cells = [
        router,
        policy,
        f"{mean('jct_mean_s'):.0f} ({seeds})",
        f"{mean('jct_p95_s'):.0f}",
        f"{mean('bubble_mean_s'):.0f}",
        f"{mean('prefix_hit_ratio'):.1%}",
        f"{mean('pin_hit_ratio'):.0%}" if mean("pins") else "-",
        f"{np.mean([moved(run.metrics.facts.programs) for run in runs]):.0%}",
        f"{np.mean([busiest(run.metrics.facts.programs) for run in runs]):.2f}",
        f"{compared.ratio.mean:.2f}" + (f" ({low:.2f}-{high:.2f})" if low is not None and high is not None else ""),
    ]
    return "| " + " | ".join(cells) + " |"


def moved(programs: tuple[ProgramTimes, ...]) -> float:
    """Share of returning turns that went to another replica than the turn before."""
    pairs = [(a.replica, b.replica) for p in programs for a, b in zip(p.turns, p.turns[1:], strict=False)]
    return sum(before != after for before, after in pairs) / max(1, len(pairs))


def busiest(programs: tuple[ProgramTimes, ...]) -> float:
    """Turns of the replica with the most, over the mean of all."""
    counts: dict[int | None, int] = defaultdict(int)
    for program in programs:
        for turn in program.turns:
            counts[turn.replica] += 1
    return max(counts.values()) / (sum(counts.values()) / len(counts))


if __name__ == "__main__":
    main()
