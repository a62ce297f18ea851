"""Plays policies on many small workloads in virtual time, for ``order_table.py``.

    python benchmarks/order.py OUT.jsonl [--sets pressed,draw] [--policies vllm,working-set] [--traces FOLDER]

Adds a line for each cell of the sets, policy and seed that the file lacks; it can be stopped at any time. A policy is a
name or ``module:Class``; ``order_variants.py`` has ``working-set`` without one of its parts each. With ``--policies
old=working-set`` it is recorded as ``old``: so the environment of an older checkout can play this script. With
``--first-token-s 2`` first turns have this target, and ``vllm`` is recorded as ``vllm first token 2``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
from continuum_server.policy.program_table import Guards
from continuum_server.routers import ROUTERS
from continuum_server.virtual.config import shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_server.virtual.replicas import ReplicaLoops
from continuum_traces.schema import TurnRecord
from order_table import OTHERS, Row, read
from order_workloads import Sets, Workload


def turns_of(workload: Workload, policy: str, seed: int, guards: Guards = Guards()) -> list[TurnRecord]:  # noqa: B008
    """Play a workload and return its turns."""
    config, jobs = replace(workload.config, guards=guards), workload.jobs(seed)
    turns: list[TurnRecord] = []
    settings = settings_of(config, policy, {})
    engine = build_engine(shape_of(config), times_of(config), settings, jobs, turns.append)
    loops = ReplicaLoops([engine.loop], ROUTERS["round-robin"](), jobs, least_step_s=0.0, lanes=workload.lanes)
    loops.run()
    missing = engine.close()
    assert not missing, f"{missing} blocks leaked"
    assert len({turn.program_id for turn in turns}) == len(jobs)
    return turns


def play(workload: Workload, policy: str, seed: int, guards: Guards) -> Row:
    """Play a workload and return its metrics; times are in seconds."""
    began_s = time.process_time()
    row = _metrics(turns_of(workload, policy, seed, guards))
    return row | {"cpu_s": round(time.process_time() - began_s, 2)}


def _metrics(turns: Sequence[TurnRecord]) -> Row:
    by_program: dict[str, list[TurnRecord]] = defaultdict(list)
    for turn in turns:
        by_program[turn.program_id].append(turn)
    jcts, firsts, longest = [], [], []
    for each in by_program.values():
        each.sort(key=lambda turn: turn.turn)
        waits = [_instant(turn.first_token_s) - turn.due_s for turn in each]
        jcts.append(_instant(each[-1].finish_s) - each[0].due_s)
        firsts.append(waits[0])
        longest.append(max(waits))
    begin_s, end_s = min(turn.due_s for turn in turns), max(_instant(turn.finish_s) for turn in turns)
    row = {
        "jct": fmean(jcts),
        "jct95": np.percentile(jcts, 95),
        "first95": np.percentile(firsts, 95),
        "wait95": np.percentile(longest, 95),
        "longest": max(longest),
        "per_s": len(jcts) / (end_s - begin_s),
    }
    return {name: round(float(value), 5) for name, value in row.items()} | {"programs": len(jcts)}


def _instant(instant_s: float | None) -> float:
    assert instant_s is not None, "every program ends"
    return instant_s


def _play(options: argparse.Namespace) -> Iterator[str]:
    """Play what the file lacks. All policies of a cell are played before the next cell."""
    have, cells = read([options.out]), Sets(options.draws, options.mixes, options.traces).cells
    target = f" first token {options.first_token_s:g}" if options.first_token_s is not None else ""
    names = {name + target: policy or name for name, _, policy in (each.partition("=") for each in options.policies)}
    guards = Guards(first_token_s=options.first_token_s)
    for seed in options.seeds:
        for set_name in options.sets:
            for cell, workload_of in cells[set_name].items():
                missing = [name for name in names if (set_name, cell, name, seed) not in have]
                if not missing or (options.cells and cell not in options.cells):
                    continue
                workload = workload_of(seed)
                for name in missing:
                    place = {"set": set_name, "cell": cell, "policy": name, "seed": seed}
                    row = place | play(workload, names[name], seed, guards)
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    yield json.dumps(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("out", type=Path)
    parser.add_argument("--policies", type=names, default=[*OTHERS, "working-set"])
    parser.add_argument("--sets", type=names, default=["pressed"], help=", ".join(Sets().cells))
    parser.add_argument("--cells", type=names, help="default: all of the sets")
    parser.add_argument("--seeds", type=lambda text: [int(part) for part in text.split(",")], default=[0])
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--mixes", type=int, default=12)
    parser.add_argument("--first-token-s", type=float, help="as of continuum-bench serve")
    parser.add_argument("--traces", type=Path, help="folder of recorded sessions (*.jsonl.gz)")
    for line in _play(parser.parse_args()):
        print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
