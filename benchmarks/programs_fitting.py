"""How well the gauge ``continuum:programs_fitting`` says how many programs at a time an engine should be given.

    continuum-bench replay TRACE --how-many --out runs/many
    python benchmarks/programs_fitting.py runs/many [DIR ...]

Reads the runs of ``--how-many``. An orchestrator that raises the number of programs until it reaches the gauge settles
at the largest number that was played and is not above the gauge of its own run. Beside it stand the number within the
service level, the number with the most throughput, and which share of that throughput the engine has at the settled
number and at the first that is at least twice as large.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from commands import show
from continuum_analysis.compare.words import markdown
from continuum_analysis.sweep.capacity import AT_A_TIME, PolicyCapacity, capacity_of
from continuum_analysis.sweep.tables import Sweep, read_sweep
from continuum_traces.records.run_dir import ENGINE

HEADS = ("trace", "policy", "gauge", "settles at", "within the level", "best", "throughput there", "at twice as many")


def gauges(sweep: Sweep) -> dict[str, dict[int, float]]:
    """Return the gauge at the end of each run, by policy and number at a time; the mean over seeds."""
    found: dict[str, dict[int, list[float]]] = {}
    for group in sweep.groups:
        for cell in group.cells:
            run = sweep.path / group.folder / f"{cell.policy}-seed{cell.seed}"
            shown = json.loads((run / ENGINE).read_text(encoding="utf-8"))["programs_fitting"]
            found.setdefault(cell.policy, {}).setdefault(int(group.axes[AT_A_TIME]), []).append(shown)
    return {policy: {number: fmean(shown) for number, shown in by.items()} for policy, by in found.items()}


def row(trace: str, each: PolicyCapacity, gauge: Mapping[int, float]) -> list[str]:
    settled = max((n for n in each.throughput if n <= gauge[n]), default=min(each.throughput))
    twice = min((n for n in each.throughput if n >= 2 * settled), default=None)
    most = each.throughput[each.best]
    shares = ["-" if n is None else f"{each.throughput[n] / most:.0%} ({n})" for n in (settled, twice)]
    return [trace, each.policy, f"{gauge[settled]:.1f}", str(settled), each.text, str(each.best), *shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="output folders of --how-many")
    rows: list[list[str]] = []
    for folder in parser.parse_args().folders:
        sweep = read_sweep(folder)
        capacity = capacity_of(sweep)
        if capacity is None:
            raise SystemExit(f"{folder}: no runs of --how-many")
        by_policy = gauges(sweep)
        rows += [row(folder.name, each, by_policy[each.policy]) for each in capacity.policies]
    show(markdown(HEADS, rows))


if __name__ == "__main__":
    main()
