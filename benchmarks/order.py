"""Plays policies on many small workloads in virtual time, and prints geometric means of ratios with 95% intervals.

    python benchmarks/order.py play OUT.jsonl [--sets pressed,draw] [--policies vllm,working-set] [--traces FOLDER]
    python benchmarks/order.py table OUT.jsonl [MORE.jsonl ...] --to working-set

``play`` adds a line for each cell of the sets, policy and seed that the file lacks; it can be stopped at any time. A
policy is a name or ``module:Class``; ``order_variants.py`` has ``working-set`` without one of its parts each. With
``--policies old=working-set`` it is recorded as ``old``: so the environment of an older checkout can play this script.

``table`` prints for each policy and set the ratio to the policy ``--to``, in the geometric mean over cells and seeds:
the mean and the 95th percentile of programs' completion times (JCT), the 95th percentiles of programs' first tokens and
of the longest wait for a first token within a program, and finished programs per second. ``worst`` is the largest ratio
of the mean JCT to that of the best of the policies ``--others`` in any cell (the mean of its seeds).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from continuum_server.routers import ROUTERS
from continuum_server.virtual.config import shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_server.virtual.replicas import ReplicaLoops
from continuum_traces.schema import TurnRecord
from order_workloads import Sets, Workload
from scipy.special import stdtrit

OTHERS = ("vllm", "program-fcfs", "static-ttl", "continuum")
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


def play(workload: Workload, policy: str, seed: int) -> Row:
    """Play a workload and return its metrics; times are in seconds."""
    config, jobs, turns, began_s = workload.config, workload.jobs(seed), [], time.process_time()
    settings = settings_of(config, policy, {})
    engine = build_engine(shape_of(config), times_of(config), settings, jobs, turns.append)
    loops = ReplicaLoops([engine.loop], ROUTERS["round-robin"](), jobs, least_step_s=0.0, lanes=workload.lanes)
    loops.run()
    missing = engine.close()
    assert not missing, f"{missing} blocks leaked"
    assert len({turn.program_id for turn in turns}) == len(jobs)
    return _metrics(turns) | {"cpu_s": round(time.process_time() - began_s, 2)}


def _metrics(turns: Sequence[TurnRecord]) -> Row:
    by_program: dict[str, list[TurnRecord]] = defaultdict(list)
    for turn in turns:
        by_program[turn.program_id].append(turn)
    jcts, firsts, longest = [], [], []
    for each in by_program.values():
        each.sort(key=lambda turn: turn.turn)
        waits = [_known(turn.first_token_s) - turn.due_s for turn in each]
        jcts.append(_known(each[-1].finish_s) - each[0].due_s)
        firsts.append(waits[0])
        longest.append(max(waits))
    begin_s, end_s = min(turn.due_s for turn in turns), max(_known(turn.finish_s) for turn in turns)
    row = {
        "jct": fmean(jcts),
        "jct95": np.percentile(jcts, 95),
        "first95": np.percentile(firsts, 95),
        "wait95": np.percentile(longest, 95),
        "longest": max(longest),
        "per_s": len(jcts) / (end_s - begin_s),
    }
    return {name: round(float(value), 5) for name, value in row.items()} | {"programs": len(jcts)}


def _known(instant_s: float | None) -> float:
    assert instant_s is not None, "every program ends"
    return instant_s


def read(paths: Iterable[Path]) -> dict[Key, Row]:
    rows = [json.loads(line) for path in paths if path.exists() for line in path.read_text("utf-8").splitlines()]
    return {(row["set"], row["cell"], row["policy"], row["seed"]): row for row in rows}


def _play(options: argparse.Namespace) -> Iterator[str]:
    """Play what the file lacks. All policies of a cell are played before the next cell."""
    have, cells = read([options.out]), Sets(options.draws, options.mixes, options.traces).cells
    names = dict(each.partition("=")[::2] if "=" in each else (each, each) for each in options.policies)
    for seed in options.seeds:
        for set_name in options.sets:
            for cell, workload_of in cells[set_name].items():
                missing = [name for name in names if (set_name, cell, name, seed) not in have]
                if not missing or (options.cells and cell not in options.cells):
                    continue
                workload = workload_of(seed)
                for name in missing:
                    place = {"set": set_name, "cell": cell, "policy": name, "seed": seed}
                    row = place | play(workload, names[name], seed)
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    yield json.dumps(row)


# ------------------------------------------------------------------------------------------------------------ tables


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


def worst(rows: Mapping[Key, Row], policy: str, others: Sequence[str], sets: Sequence[str]) -> tuple[float, str] | None:
    """Return the largest ratio of a cell's mean JCT to that of the best of the others, and the cell."""
    means: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (set_name, cell, name, _), row in rows.items():
        if set_name in sets:
            means[cell][name].append(row["jct"])
    beside = [
        (fmean(by[policy]) / min(fmean(by[other]) for other in others), cell)
        for cell, by in means.items()
        if policy in by and all(len(by[other]) == len(by[policy]) for other in others)
    ]
    return max(beside, default=None)


def _table(options: argparse.Namespace) -> Iterator[str]:
    rows = read(options.files)
    policies = options.policies or list(dict.fromkeys(key[2] for key in rows))
    sets = options.sets or list(dict.fromkeys(key[0] for key in rows))
    yield f"| set | policy | pairs | {' | '.join(METRICS.values())} | worst |"
    yield "|---" * (len(METRICS) + 4) + "|"
    for set_name in sets:
        for policy in policies:
            found = {metric: ratios(rows, policy, options.to, metric, [set_name]) for metric in METRICS}
            if not found["jct"]:
                continue
            cells = [geometric(list(of_metric.values())) for of_metric in found.values()]
            of_worst = worst(rows, policy, options.others, [set_name])
            text = "" if of_worst is None else f"{of_worst[0]:.3f} {of_worst[1]}"
            yield f"| {set_name} | {policy} | {len(found['jct'])} | {' | '.join(cells)} | {text} |"
        if options.by_cell:
            yield from _by_cell(rows, policies, options.to, set_name)


def _by_cell(rows: Mapping[Key, Row], policies: Sequence[str], to: str, set_name: str) -> Iterator[str]:
    for cell in dict.fromkeys(key[1] for key in rows if key[0] == set_name):
        for policy in policies:
            of_cell = {key: row for key, row in rows.items() if key[1] == cell}
            found = {metric: ratios(of_cell, policy, to, metric, [set_name]) for metric in METRICS}
            if found["jct"] and policy != to:
                cells = " | ".join(geometric(list(of_metric.values())) for of_metric in found.values())
                yield f"| {cell} | {policy} | {len(found['jct'])} | {cells} | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    commands = parser.add_subparsers(required=True)
    of_play = commands.add_parser("play", help="play what a file lacks")
    of_play.add_argument("out", type=Path)
    of_play.add_argument("--policies", type=names, default=[*OTHERS, "working-set"])
    of_play.add_argument("--sets", type=names, default=["pressed"], help=", ".join(Sets().cells))
    of_play.add_argument("--cells", type=names, help="default: all of the sets")
    of_play.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0])
    of_play.add_argument("--draws", type=int, default=60)
    of_play.add_argument("--mixes", type=int, default=12)
    of_play.add_argument("--traces", type=Path, help="folder of recorded sessions (*.jsonl.gz)")
    of_play.set_defaults(run=_play)
    of_table = commands.add_parser("table", help="print ratios")
    of_table.add_argument("files", type=Path, nargs="+")
    of_table.add_argument("--to", default="vllm")
    of_table.add_argument("--policies", type=names, help="default: all")
    of_table.add_argument("--sets", type=names, help="default: all")
    of_table.add_argument("--others", type=names, default=OTHERS)
    of_table.add_argument("--by-cell", action="store_true")
    of_table.set_defaults(run=_table)
    options = parser.parse_args()
    for line in options.run(options):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
