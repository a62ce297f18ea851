"""Compares ``working-set`` with other policies: cells of (workload, GPU, rate) by arms of (policy, options).

    python benchmarks/own_policy.py CELLS.json --arms ARMS.json --traces DIR --seeds 5 --out results.jsonl [--jobs 2]
    python benchmarks/own_policy.py --table results.jsonl [--base continuum]
    python benchmarks/own_policy.py --verdicts results.jsonl [--of working-set]

All arms of a cell serve the same arrivals.
CELLS.json: {"name": {"traces": a file in --traces, or null, "workload": "replay", "jps": 0.07, "gpu": "a100-80gb",
"num_programs": 24, "kv_blocks": null, "turn_scale": 1, "arrivals": "poisson", "tool_times": "recorded"}}. These are
options of ``continuum-bench``, as are "length_scale", "shared_prefix", "step_times" (low, mid or high), "block_size"
and "offload": the tiers of arms whose policy is named NAME+offload.
Two more: "lengths_later": 2.5 multiplies the lengths of the programs that arrive in the second half; "turns": [2, 4]
ends programs with their second, third or fourth turn. "is" describes the cell in the tables of docs/results.
ARMS.json: {"label": ["policy", {options}, {"max_ttl_s": 600, "pins_yield_to": "policy"}, {"hints": "tool_s",
"hint_error": "0.5"}]}. The third item, the limits that hold for every policy, and the fourth, what clients tell the
server, may be left out.
Runs that are in ``--out`` already are not repeated, unless the code has changed what they give: the one with the least
work is played first, and if it differs, all are (the old ones stay in ``.old``).
It runs in memory, with the engine of ``continuum-bench`` but without its files. Unlike the cells of ``continuum-bench
sweep``, these may change lengths and turns, and arms may have guards and hints. The numbers in
docs/results/own-policy.md come from the files in benchmarks/own_policy; cells_drawn.json and cells_draw2.json were
drawn at random (by this file's ``--draw`` at commit 4ebc28b), and the second was not looked at before the policy was
finished.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from continuum_analysis.compare.intervals import Interval, interval_text, mean_interval
from continuum_bench.errors import BenchError
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.hints import hint_error, lies
from continuum_bench.workload.workload import load_workload
from continuum_server.policy.program_table import Guards
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_server.virtual.loop import VirtualLoop
from continuum_server.virtual.offload import read_offload
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, TurnRecord
from continuum_traces.synth import scale_lengths

CHUNK_TOKENS = 256
"""Tokens that tiers move and evict as one, as in presets."""
OF_THE_TRACE = ("num_programs", "turn_scale", "length_scale", "shared_prefix")
OF_THE_ARRIVALS = ("jps", "arrivals", "tool_times")
HINTS = ("hints", "hint_error")
A_THIRD = hint_error("adversarial:0.3334")
"""The programs that tell the truth under this setting are compared in every arm, in the column ``honest``."""
BESIDE = ("jct", "p95", "honest", "wall")
OF_THE_ENGINE = ("gpu", "model", "tensor_parallel", "kv_blocks", "block_size", "step_times")
OF_ITSELF = ("is", "traces", "workload", "offload", "lengths_later", "turns")
OF_THE_CELL = (*OF_ITSELF, *OF_THE_ENGINE, *OF_THE_TRACE, *OF_THE_ARRIVALS)


def jobs_of(cell: dict[str, Any], seed: int) -> list[Job]:
    """Return the programs of a cell with their arrivals, which are equal for every arm."""
    programs = TraceOptions(
        traces=Path(cell["traces"]) if cell.get("traces") else None,
        skip_invalid=True,
        **{name: cell[name] for name in OF_THE_TRACE if name in cell},
    )
    arrivals = ArrivalOptions(**{name: cell[name] for name in (*OF_THE_ARRIVALS, *HINTS) if name in cell})
    workload = load_workload(cell.get("workload", "replay"), programs, arrivals)
    jobs = sorted(workload.jobs(seed), key=lambda job: job.arrival_s)
    return [
        replace(job, program=_changed(job.program, cell, number, number >= len(jobs) // 2))
        for number, job in enumerate(jobs)
    ]


def _changed(program: Program, cell: dict[str, Any], number: int, later: bool) -> Program:
    """Apply the cell's changes to a program. ``later``: the program arrives in the second half."""
    lengths = cell.get("lengths_later", 1.0) if later else 1.0
    changed = program if lengths == 1 else scale_lengths(program, lengths)
    if "turns" not in cell:
        return changed
    fewest, most = cell["turns"]
    *before, last = changed.turns[: fewest + number % (most - fewest + 1)]
    return replace(changed, turns=(*before, replace(last, tool_calls=())))


def engine_of(cell: dict[str, Any], policy: str) -> EngineConfig:
    """Return the cell's engine, which has tiers if the policy is named ``NAME+offload``."""
    gpu = cell.get("gpu", "a100-80gb")
    config = EngineConfig(**{"gpu": gpu, **{name: cell[name] for name in OF_THE_ENGINE if name in cell}})
    if not policy.endswith("+offload"):
        return config
    tiers = read_offload(cell["offload"], gpu)
    return replace(config, offload=replace(tiers, blocks_per_chunk=CHUNK_TOKENS // config.block_size))


def play(task: tuple[str, dict[str, Any], str, list[Any], int]) -> dict[str, Any]:
    """Play one run of an arm and summarise it. Times are in seconds."""
    cell_name, cell, label, (policy, options, *rest), seed = task
    guards, hints = (*rest, {}, {})[:2]
    config = replace(engine_of(cell, policy), guards=Guards(**guards))
    settings = settings_of(config, policy.removesuffix("+offload"), options)
    jobs, turns, events = jobs_of(cell | hints, seed), list[TurnRecord](), _Events()
    engine = build_engine(shape_of(config), times_of(config), settings, jobs, turns.append, events)
    engine.loop.run()
    if engine.close():
        raise RuntimeError(f"{label} leaked blocks")
    return {"cell": cell_name, "arm": label, "seed": seed, **_summary(jobs, turns, events, engine.loop)}


class _Events:
    """Sums over the events of a scheduler."""

    def __init__(self) -> None:
        self.hit = self.prompt = self.preemptions = 0

    def write(self, event: Any, /) -> None:
        if event.event == "start":
            self.hit += event.hit_tokens or 0
            self.prompt += event.prompt_tokens or 0
        self.preemptions += event.event == "preempt"


def _summary(jobs: list[Job], turns: list[TurnRecord], events: _Events, loop: VirtualLoop) -> dict[str, Any]:
    ends, first = dict[str, float](), dict[str, float]()
    for turn in turns:
        ends[turn.program_id] = max(ends.get(turn.program_id, 0.0), turn.finish_s or math.inf)
        first[turn.program_id] = min(first.get(turn.program_id, math.inf), turn.sent_s or math.inf)
    if len(ends) != len(jobs) or len(turns) != sum(len(job.program.turns) for job in jobs):
        raise RuntimeError("not every program finished")
    jct = np.array([ends[name] - first[name] for name in ends])
    honest = [job.program_id for number, job in enumerate(jobs) if not lies(number, A_THIRD)]
    return {
        "jct": round(float(jct.mean()), 2),
        "p95": round(float(np.quantile(jct, 0.95)), 2),
        "max": round(float(jct.max()), 2),
        "honest": round(float(np.mean([ends[name] - first[name] for name in honest])), 2),
        "wall": round(loop.now_s, 1),
        "busy": round(loop.counters.busy_s, 1),
        "hit": round(events.hit / max(1, events.prompt), 4),
        "preempt": events.preemptions,
        "prefill_M": round(loop.counters.prefill_tokens / 1e6, 2),
        "arrived": round(sum(job.arrival_s for job in jobs), 3),
    }


# ------------------------------------------------------------------------------------------------- table


NUMBER = "{:.3f}".format
MEANS = {"jct": "{:.0f}", "p95": "{:.0f}", "max": "{:.0f}", "hit": "{:.1%}", "preempt": "{:.1f}"}
Runs = dict[int, dict[str, Any]]
"""Summaries of one arm in one cell, by seed."""


def by_cell(rows: list[dict[str, Any]]) -> dict[str, dict[str, Runs]]:
    cells: dict[str, dict[str, Runs]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        cells[row["cell"]][row["arm"]][row["seed"]] = row
    return cells


def table(cells: dict[str, dict[str, Runs]], base: str) -> Iterator[str]:
    """Write a row for each cell and arm: mean JCT and P95, and their ratios to those of the base arm. ``honest``: mean
    JCT of the programs that tell the truth if a third lies; ``wall``: the time until the last program ends."""
    yield "| cell | arm | seeds | JCT mean | P95 | longest | hit | preempted | to base: JCT | P95 | honest | wall |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for cell, arms in cells.items():
        for arm, runs in arms.items():
            mean = {key: np.mean([run[key] for run in runs.values()]) for key in MEANS}
            to_base = " | ".join(interval_text(paired(runs, arms.get(base, {}), key), NUMBER) for key in BESIDE)
            means = " | ".join(form.format(mean[key]) for key, form in MEANS.items())
            yield f"| {cell} | {arm} | {len(runs)} | {means} | {to_base} |"
    for arm in dict.fromkeys(arm for arms in cells.values() for arm in arms):
        ratios = [ratio for arms in cells.values() if (ratio := paired(arms.get(arm, {}), arms.get(base, {}), "jct"))]
        if ratios:
            mean_log = np.mean([math.log(ratio.mean) for ratio in ratios])
            yield f"\n{arm}: JCT to {base}, geometric mean over {len(ratios)} cells {math.exp(mean_log):.3f}"


def verdicts(cells: dict[str, dict[str, Runs]], arm: str) -> Iterator[str]:
    """Compare one arm with each other arm: the numbers of cells in which it is faster or slower, and in which its
    interval shows this, and the cell in which it is the slowest."""
    yield f"| {arm} to | of | cells | geometric mean | faster, beyond interval | slower, beyond interval | slowest |"
    yield "|---|---|---|---|---|---|---|"
    for other in dict.fromkeys(other for arms in cells.values() for other in arms if other != arm):
        for key, word in (("jct", "mean JCT"), ("p95", "P95")):
            pairs = {name: (arms.get(arm, {}), arms.get(other, {})) for name, arms in cells.items()}
            known = {name: ratio for name, pair in pairs.items() if (ratio := paired(*pair, key))}
            if not known:
                continue
            mean = math.exp(np.mean([math.log(ratio.mean) for ratio in known.values()]))
            faster = sum(ratio.mean < 1.0 for ratio in known.values())
            slower = sum(ratio.mean > 1.0 for ratio in known.values())
            bounds = [ratio.bounds or (0.0, math.inf) for ratio in known.values()]
            surely = (
                f"{faster}, {sum(high < 1.0 for _, high in bounds)} | {slower}, {sum(low > 1.0 for low, _ in bounds)}"
            )
            slowest = max(known, key=lambda name: known[name].mean)
            last = f"{slowest} {known[slowest].text(NUMBER)}"
            yield f"| {other} | {word} | {len(known)} | {mean:.3f} | {surely} | {last} |"


def paired(runs: Runs, base: Runs, key: str) -> Interval | None:
    """Return the geometric mean of the ratios over the seeds that both arms have, with its 95% t interval."""
    seeds = sorted(seed for seed in set(runs) & set(base) if key in runs[seed] and key in base[seed])
    if not seeds:
        return None
    if any(runs[seed]["arrived"] != base[seed]["arrived"] for seed in seeds):
        raise RuntimeError("different arrivals")
    logs = mean_interval([math.log(runs[seed][key] / base[seed][key]) for seed in seeds])
    return Interval(math.exp(logs.mean), *map(math.exp, logs.bounds or ()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="?", type=Path)
    parser.add_argument("--arms", type=Path)
    parser.add_argument("--arm", help="only these arms, separated by commas")
    parser.add_argument("--traces", type=Path, default=Path(), help="folder of the cells' trace files")
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", type=Path, nargs="*")
    parser.add_argument("--base", default="continuum")
    parser.add_argument("--verdicts", type=Path, nargs="*")
    parser.add_argument("--of", default="working-set")
    given = parser.parse_args()
    if given.cells:
        try:
            run(given)
        except BenchError as error:
            parser.error(str(error))
    files = given.table or given.verdicts or ([given.out] if given.out else [])
    cells = by_cell([row for file in files for row in read_rows(file)])
    for line in verdicts(cells, given.of) if given.verdicts else table(cells, given.base):
        print(line)  # noqa: T201


def read_cells(path: Path, only: str, traces: Path) -> dict[str, dict[str, Any]]:
    """Read the cells whose name contains ``only``, and complete the paths of their trace files.

    Raises:
        BenchError: a cell has an unknown field, or its trace file is missing.
    """
    cells = {name: cell for name, cell in json.loads(path.read_text(encoding="utf-8")).items() if only in name}
    for name, cell in cells.items():
        for word in cell:
            if word not in OF_THE_CELL:
                raise BenchError(f"{path}: {name}: {word}: unknown; a cell has {', '.join(OF_THE_CELL)}")
        if cell.get("traces"):
            cell["traces"] = str(traces / cell["traces"])
            if not Path(cell["traces"]).exists():
                raise BenchError(f"{path}: {name}: traces: {cell['traces']} is not there; say where with --traces DIR")
    return cells


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def repeats(rows: list[dict[str, Any]], cells: dict[str, dict[str, Any]], arms: dict[str, Any]) -> bool:
    """Play the run with the least work again; return whether it gives the same numbers, to the last digit."""
    known = [row for row in rows if row["cell"] in cells and row["arm"] in arms]
    row = min(known, key=lambda row: float(row["prefill_M"]), default=None)
    return row is None or row == play((row["cell"], cells[row["cell"]], row["arm"], arms[row["arm"]], row["seed"]))


def run(given: argparse.Namespace) -> None:
    """Play the runs that are not in the file yet, all arms of a seed before the next seed."""
    arms = json.loads(given.arms.read_text())
    arms = {label: arm for label, arm in arms.items() if given.arm is None or label in given.arm.split(",")}
    chosen = read_cells(given.cells, given.only, given.traces)
    rows = read_rows(given.out) if given.out.exists() else []
    if not repeats(rows, chosen, arms):
        rows = []
        given.out.rename(given.out.with_suffix(".old"))
    known = {(row["cell"], row["arm"], row["seed"]) for row in rows}
    tasks = [(n, c, a, arm, s) for s in range(given.seeds) for n, c in chosen.items() for a, arm in arms.items()]
    tasks = [task for task in tasks if (task[0], task[2], task[4]) not in known]
    with multiprocessing.get_context("fork").Pool(given.jobs) as pool, given.out.open("a", encoding="utf-8") as out:
        for row in pool.imap(play, tasks, chunksize=1):
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(row["cell"], row["arm"], row["seed"], row["jct"], file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    main()
