"""The data of the result pages (docs/results/data), from the grids of this folder's ``results``.

    python benchmarks/results.py collect runs/results/tools     # writes docs/results/data/tools.json
    python benchmarks/results.py check                          # plays one run of each file again

``make results`` plays the grids (``continuum-bench sweep``), collects their metrics and writes the tables. A file holds
for each point of the grid its axes, the checksum of a recorded trace, and each run's metrics by policy and seed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from continuum_analysis.metrics import analyze_run
from continuum_analysis.sweep.tables import Sweep, read_sweep
from continuum_bench.errors import BenchError
from continuum_bench.sweep.grid import Grid, read_grid
from continuum_bench.sweep.plan import SweepCell, plan
from continuum_bench.virtual.experiment import CellTask
from continuum_traces.run_dir import MANIFEST, read_json, write_manifest

REPO = Path(__file__).resolve().parents[1]
GRIDS = REPO / "benchmarks" / "results"
DATA = REPO / "docs" / "results" / "data"
METRICS = (
    *("jct_mean_s", "jct_p95_s", "wall_s", "served_jobs_per_s", "bubble_mean_s", "prefix_hit_ratio", "pin_hit_ratio"),
    *("preemptions", "ttft_p99_s", "returns_elsewhere_share"),
)
"""The metrics that tables show."""
PLAYED = sorted(file for file in DATA.glob("*.json") if file.stem != "limit")
"""The data of grids: one run of each can be played again."""


def metrics_of(values: Any) -> dict[str, float]:
    """Return the metrics of a run that have a value, to six digits."""
    return {name: float(f"{values[name]:.6g}") for name in METRICS if values.get(name) is not None}


def data_of(sweep: Sweep) -> dict[str, Any]:
    """Return the content of a data file.

    Raises:
        ValueError: a cell is missing.
    """
    missing = [group.folder for group in sweep.groups if len(group.cells) < group.asked]
    if missing:
        raise ValueError(f"{sweep.path}: {missing[0]}: a cell is missing; play it with continuum-bench sweep")
    return {"points": [_point(sweep.path / group.folder, group) for group in sweep.groups]}


def text_of(data: dict[str, Any]) -> str:
    """Return the text of a data file: a line for each point."""
    return json.dumps(data, allow_nan=False).replace('{"axes"', '\n{"axes"') + "\n"


def _point(folder: Path, group: Any) -> dict[str, Any]:
    workload = read_json(next(folder.glob(f"*/{MANIFEST}")))["workload"]
    runs: dict[str, dict[str, Any]] = {}
    for cell in sorted(group.cells, key=lambda cell: cell.seed):
        runs.setdefault(cell.policy, {})[str(cell.seed)] = metrics_of(cell.metrics)
    trace = {} if workload["synthetic"] else {"trace_sha256": workload["sha256"][:12]}
    return {"axes": dict(group.axes), **trace, "runs": runs}


def grid_of(name: str) -> Grid:
    """Return the grid whose results are in the data file of this name.

    Raises:
        BenchError: a trace that it plays is not in the working directory.
    """
    return read_grid(GRIDS / f"{name}.yaml")


def cells_of(name: str, data: dict[str, Any]) -> dict[tuple[int, str, int], SweepCell]:
    """Return the cells of the grid by the number of their point in the data file, policy and seed.

    Raises:
        ValueError: the grid has other cells than the file.
    """
    axes = [json.dumps(point["axes"]) for point in data["points"]]
    known = {
        (number, policy, int(seed))
        for number, point in enumerate(data["points"])
        for policy, runs in point["runs"].items()
        for seed in runs
    }
    cells = {
        (axes.index(text), cell.arm.label, cell.seed): cell
        for cell in plan(grid_of(name))
        if (text := json.dumps(dict(cell.group.point.axes), default=str)) in axes
    }
    if set(cells) != known:
        raise ValueError(f"{name}: the grid has other cells than {name}.json: make results ARGS={name}")
    return cells


def repeats(cells: dict[tuple[int, str, int], SweepCell], data: dict[str, Any]) -> bool:
    """Play the run with the fewest turns again; return whether it gives the same numbers, to the last digit."""
    key, cell = min(cells.items(), key=lambda item: item[1].cost)
    with tempfile.TemporaryDirectory() as folder:
        write_manifest(Path(folder), cell.group.manifest(cell.arm, cell.seed))
        CellTask(cell.group.setup, cell.bench_cell, cell.name, Path(folder)).simulate()
        found = metrics_of(analyze_run(Path(folder)).values)
    number, policy, seed = key
    return found == data["points"][number]["runs"][policy][str(seed)]


def main() -> None:
    if sys.argv[1:2] == ["collect"]:
        for folder in map(Path, sys.argv[2:]):
            (DATA / f"{folder.name}.json").write_text(text_of(data_of(read_sweep(folder))), encoding="utf-8")
        return
    for file in PLAYED:
        data = json.loads(file.read_text(encoding="utf-8"))
        try:
            same = repeats(cells_of(file.stem, data), data)
        except BenchError as error:
            same = error
        print(file.stem, {True: "repeats", False: "differs: make results"}.get(same, same))  # noqa: T201


if __name__ == "__main__":
    main()
