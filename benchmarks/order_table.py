"""Prints ratios of what ``order.py`` played: geometric means over cells and seeds, with 95% intervals.

    python benchmarks/order_table.py OUT.jsonl [MORE.jsonl ...] --to working-set [--by-cell]

A row has, for a set and a policy, the ratio to the policy ``--to`` of the mean and the 95th percentile of programs'
completion times (JCT), of the 95th percentiles of programs' first tokens and of the longest wait for a first token
within a program, and of finished programs per second. ``worst`` is the largest ratio of the mean JCT to that of the
best of the policies ``--others`` but itself in any cell (the mean of its seeds), with the number of cells above 1.05.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from commands import show, tabular
from scipy.special import stdtrit

OTHERS = ("vllm", "program-fcfs", "static-ttl", "continuum")
SLOWER = 1.05
"""From this ratio on a policy counts as slower than the best of the others."""
METRICS = {
    "jct": "mean JCT",
    "jct95": "P95 JCT",
    "first95": "first tokens P95",
    "wait95": "longest wait P95",
    "per_s": "finished/s",
}
Row = dict[str, Any]
Key = tuple[str, str, str, int]
"""Set, cell, policy and seed."""


def read(paths: Iterable[Path]) -> dict[Key, Row]:
    rows = [json.loads(line) for path in paths if path.exists() for line in path.read_text("utf-8").splitlines()]
    return {(row["set"], row["cell"], row["policy"], row["seed"]): row for row in rows}


def geometric(ratios: Sequence[float]) -> str:
    """Return the geometric mean, with its 95% interval if there are three or more."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = fmean(logs)
    if len(logs) < 3:
        return f"{math.exp(middle):.3f}"
    half = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
    return f"{math.exp(middle):.3f} ({math.exp(middle - half):.3f}-{math.exp(middle + half):.3f})"


def ratios(rows: Mapping[Key, Row], of: str, to: str, metric: str, sets: Sequence[str]) -> dict[tuple[str, int], float]:
    """Return the ratio of each cell and seed that both policies played."""
    found = {}
    for (set_name, cell, policy, seed), row in rows.items():
        base = rows.get((set_name, cell, to, seed))
        if policy == of and base is not None and set_name in sets and base[metric] > 0.0 and row[metric] > 0.0:
            found[cell, seed] = row[metric] / base[metric]
    return found


def beside_best(
    rows: Mapping[Key, Row], policy: str, others: Sequence[str], sets: Sequence[str]
) -> list[tuple[float, str]]:
    """Return the ratio of each cell's mean JCT to that of the best of the others, and the cell, the largest last."""
    means: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (set_name, cell, name, _), row in rows.items():
        if set_name in sets:
            means[cell][name].append(row["jct"])
    others = [each for each in others if each != policy]
    return sorted(
        (fmean(by[policy]) / min(fmean(by[other]) for other in others), cell)
        for cell, by in means.items()
        if policy in by and all(len(by[other]) == len(by[policy]) for other in others)
    )


@tabular("set", "policy", "pairs", *METRICS.values(), "worst")
def _table(options: argparse.Namespace) -> Iterator[list[Any]]:
    rows = read(options.files)
    policies = options.policies or list(dict.fromkeys(key[2] for key in rows))
    sets = options.sets or list(dict.fromkeys(key[0] for key in rows))
    for set_name in sets:
        for policy in policies:
            found = {metric: ratios(rows, policy, options.to, metric, [set_name]) for metric in METRICS}
            if not found["jct"]:
                continue
            cells = [geometric(list(of_metric.values())) for of_metric in found.values()]
            beside = beside_best(rows, policy, options.others, [set_name])
            slower = sum(ratio > SLOWER for ratio, _ in beside)
            text = f"{beside[-1][0]:.3f} {beside[-1][1]}, {slower} above {SLOWER}" if beside else ""
            yield [set_name, policy, len(found["jct"]), *cells, text]
        if options.by_cell:
            yield from _by_cell(rows, policies, options.to, set_name)


def _by_cell(rows: Mapping[Key, Row], policies: Sequence[str], to: str, set_name: str) -> Iterator[list[Any]]:
    for cell in dict.fromkeys(key[1] for key in rows if key[0] == set_name):
        for policy in policies:
            of_cell = {key: row for key, row in rows.items() if key[1] == cell}
            found = {metric: ratios(of_cell, policy, to, metric, [set_name]) for metric in METRICS}
            if found["jct"] and policy != to:
                cells = [geometric(list(of_metric.values())) for of_metric in found.values()]
                yield [cell, policy, len(found["jct"]), *cells, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--to", default="vllm")
    parser.add_argument("--policies", type=names, help="default: all")
    parser.add_argument("--sets", type=names, help="default: all")
    parser.add_argument("--others", type=names, default=OTHERS)
    parser.add_argument("--by-cell", action="store_true")
    show(_table(parser.parse_args()))


if __name__ == "__main__":
    main()
