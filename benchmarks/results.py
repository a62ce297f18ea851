"""The data of the result pages (docs/results/data), from the grids of this folder's ``results`` and from the figures.

    python benchmarks/results.py runs/results/tools     # writes docs/results/data/tools.json from this sweep
    python benchmarks/results.py runs/results/measured  # runs on servers: docs/results/measured
    python benchmarks/results.py --traces chats         # writes the traces that this grid plays
    python benchmarks/results.py --missing tools        # plays the runs that its data file lacks, or marks as older
    python benchmarks/results.py --draw ablation        # draws docs/results/figures/ablation.svg from its data file

Each grid has its own file. ``older`` in it has the arms whose runs are of an earlier version of this project, with what
the pages' tables call that version. A
result that lacks runs of the present file is refused. To drop these runs, delete the file first.

``make results`` plays the grids (``continuum-bench sweep`` and ``figure``), collects metrics and writes the tables.
A file holds for each point of the grid its axes, the checksum of a recorded trace, and each run's metrics by policy and
seed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from continuum_analysis.compare.intervals import Interval, mean_interval
from continuum_analysis.compare.runs import PREDICTED
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.metrics import METRICS as ALL_METRICS
from continuum_analysis.metrics import analyze_run, by_group
from continuum_analysis.plots.drawing import draw, save
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.sweep.plots import read_plot, sweep_panels
from continuum_analysis.sweep.ratios import ratio_panels, sweep_ratios
from continuum_analysis.sweep.tables import GroupSummary, PlayedCell, Sweep, read_sweep
from continuum_bench.figures.play_figure import BASES
from continuum_bench.figures.spec import load_figure
from continuum_bench.options.traces import SynthOptions
from continuum_bench.sweep.grid import Grid, read_grid
from continuum_bench.sweep.plan import Cell, plan
from continuum_bench.trace_commands import synth_traces
from continuum_traces.importers.registry import ImportLog, read_any
from continuum_traces.json_io import read_json
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records.run_dir import MANIFEST, read_manifest, write_manifest
from continuum_traces.schema import Program

REPO = Path(__file__).resolve().parents[1]
GRIDS = REPO / "benchmarks" / "results"
DATA = REPO / "docs" / "results" / "data"
MEASURED = REPO / "docs" / "results" / "measured"
"""Of grids that are played on servers (``sweep --predict``): NAME.json, NAME-predicted.json, NAME-profile.json."""
PICTURES = REPO / "docs" / "results" / "figures"
GOODPUT = "goodput.json"
METRICS = (
    *(
        "jct_mean_s",
        "jct_p95_s",
        "wall_s",
        "throughput_jobs_per_s",
        "bubble_mean_s",
        "prefix_hit_ratio",
        "pin_hit_ratio",
    ),
    *("preemptions", "ttft_mean_s", "ttft_p99_s", "returns_elsewhere_share", "turns_waiting", "longest_waiting_s"),
)
"""The metrics that tables show, beside those that a figure draws."""
OF_SERVERS = ("tpot_mean_s", "send_lateness_p99_s", "programs_finished", "turns_failed")
"""The metrics that the data files in ``MEASURED`` have besides ``METRICS``."""
MIXES = {
    "idle": ("chat:0.9,claude-code:0.1", 200),
    "agents": ("chat:0.9,claude-code:0.1", 350),
    "both": ("chat:0.99,claude-code:0.01", 2000),
    "chats": ("chat:0.996,claude-code:0.004", 2500),
    "sweagent-chats": ("chat:0.5,sweagent_glm45_bs4.jsonl.gz:0.5", 120),
    "mswe-chats": ("chat:0.909,mswe_deepseek_chat_test_1-100.jsonl.gz:0.091", 550),
}
"""Traces of chats and agents: the kinds with their shares, and the number of programs (``synth --mix``, seed 1)."""
QUICK = ("mswe-quick", "derived_paperlike_swe100.jsonl.gz", 10.0)
"""A trace of the programs of a recorded one without those of which a tool takes longer than so many seconds."""
OF_KIND = ("jct_mean_s", "jct_p95_s", "admit_wait_mean_s")
"""The metrics of chats (``METRIC:chat``) and of other programs (``METRIC:agent``) in grids that play such traces."""


def write_mixes(grid: str) -> None:
    """Write into the working directory the traces of ``MIXES``, and ``QUICK``, that the grid plays, if the recorded
    parts are there."""
    played = (GRIDS / f"{grid}.yaml").read_text(encoding="utf-8") if (GRIDS / f"{grid}.yaml").exists() else ""
    quick, recorded, most_s = QUICK
    if f" {quick}.jsonl" in played and Path(recorded).exists():
        programs = read_any(Path(recorded), None, ImportLog())
        write_programs(Path(f"{quick}.jsonl"), [each for each in programs if _slowest_s(each) <= most_s])
    for name, (mix, number) in MIXES.items():
        target = Path(f"{name}.jsonl")
        if (
            f" {target}," in played
            and not target.exists()
            and all(Path(file).exists() for file in re.findall(r"[\w-]+\.jsonl\.gz", mix))
        ):
            synth_traces(SynthOptions(target=target, mix=mix, num_programs=number, seed=1))


def _slowest_s(program: Program) -> float:
    """Return the seconds of the program's slowest tool."""
    return max((call.duration_s or 0.0 for turn in program.turns for call in turn.tool_calls), default=0.0)


def by_kind(run: Path) -> dict[str, float]:
    """Return the metrics of a run's chats and of its agents."""
    groups = by_group(analyze_run(run), "kind", read_manifest(run))
    return {
        f"{metric}:{'chat' if kind == 'chat' else 'agent'}": value
        for kind, group in groups.items()
        for metric, value in metrics_of(group.values, OF_KIND).items()
    }


def metrics_of(values: Any, names: Iterable[str]) -> dict[str, float]:
    """Return those of the named metrics of a run that have a value, to six digits."""
    return {name: float(f"{values[name]:.6g}") for name in names if values.get(name) is not None}


def data_of(sweep: Sweep, more: Sequence[str] = ()) -> dict[str, Any]:
    """Return the content of a data file, with ``more`` metrics.

    Raises:
        ValueError: a cell is missing.
    """
    if (sweep.path / GOODPUT).exists():
        return {"points": _sustained(json.loads((sweep.path / GOODPUT).read_bytes()))}
    missing = [group.folder for group in sweep.groups if len(group.cells) < group.asked]
    if missing:
        raise ValueError(f"{sweep.path}: {missing[0]}: a cell is missing; play it with continuum-bench sweep")
    names = dict.fromkeys((*METRICS, *more, *((sweep.plot or {}).get("y", ()))))
    mixed = any(group.axes["workload"] in MIXES for group in sweep.groups)
    return {"points": [_point(sweep.path / group.folder, group, names, mixed) for group in sweep.groups]}


def text_of(data: dict[str, Any]) -> str:
    """Return the JSON of a data file, with one line for each point of the grid."""
    return json.dumps(data, allow_nan=False).replace('{"axes"', '\n{"axes"') + "\n"


def write(name: str, data: dict[str, Any], folder: Path | None = None) -> None:
    """Write a data file into ``folder`` (default: ``DATA``).

    Raises:
        ValueError: the present file has a run that ``data`` lacks.
    """
    file = (folder or DATA) / f"{name}.json"
    lost = _runs(json.loads(file.read_bytes())) - _runs(data) if file.exists() else set()
    if lost:
        axes, policy, seed = min(lost)
        what = f"{file} has {len(lost)} runs that this result lacks, such as {policy}, seed {seed}, of {axes}"
        raise ValueError(f"{what}; play the whole grid, or delete the file if they are to go")
    file.write_text(text_of(data), encoding="utf-8")


def write_measured(played: Path) -> None:
    """Write the data files of a sweep with predictions, and a copy of its profile.

    Raises:
        ValueError: as ``data_of`` and ``write``; or there are several profiles.
    """
    (profile,) = played.glob("profile-*.json")
    for name, sweep in ((played.name, played), (f"{played.name}-predicted", played / PREDICTED)):
        write(name, data_of(read_sweep(sweep), OF_SERVERS), MEASURED)
    shutil.copyfile(profile, MEASURED / f"{played.name}-profile.json")


def _runs(data: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Return (axes, policy, seed) of each run."""
    return {
        (json.dumps(point["axes"]), policy, seed)
        for point in data["points"]
        for policy, runs in point["runs"].items()
        for seed in runs
    }


def _sustained(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points of ``figure goodput``: the highest rate that each policy sustains, by seed."""
    points: dict[str, dict[str, Any]] = {}
    for row in rows:
        runs = points.setdefault(json.dumps(row["axes"]), {"axes": row["axes"], "runs": {}})["runs"]
        runs[row["policy"]] = {str(seed): {"sustained_jobs_per_s": rate} for seed, rate in enumerate(row["by_seed"])}
    return list(points.values())


def _point(folder: Path, group: Any, names: Iterable[str], mixed: bool) -> dict[str, Any]:
    workload = read_json(next(folder.glob(f"*/{MANIFEST}")))["workload"]
    runs: dict[str, dict[str, Any]] = {}
    for cell in sorted(group.cells, key=lambda cell: cell.seed):
        kinds = by_kind(folder / f"{cell.policy}-seed{cell.seed}") if mixed else {}
        runs.setdefault(cell.policy, {})[str(cell.seed)] = metrics_of(cell.metrics, names) | kinds
    trace = {} if workload["synthetic"] else {"trace_sha256": workload["sha256"][:12]}
    return {"axes": dict(group.axes), **trace, "runs": runs}


def grid_of(name: str) -> Grid:
    """Return the grid, or the quick figure, whose results are in the data file of this name.

    Raises:
        BenchError: there is none, or a trace that it plays is not in the working directory.
    """
    file = GRIDS / f"{name}.yaml"
    return read_grid(file) if file.exists() else load_figure(name).sweep("quick", ())


Place = tuple[str, str, int]
"""The axes of a run's point as JSON, its arm and its seed."""


def repeats(name: str, data: dict[str, Any]) -> bool:
    """Play the run with the fewest turns, of these the shortest, again; return whether its numbers are the same, to the
    last digit. Runs of an earlier version are not played.

    Raises:
        BenchError: a trace is not in the working directory.
        ValueError: the grid has other cells than the file.
    """
    published, cells = _published(data), _cells(name)
    if set(cells) != set(published):
        raise ValueError(f"{name}: the grid has other cells than {name}.json: make results ARGS={name}")
    of_today = {place: cell for place, cell in cells.items() if place[1] not in data.get("older", ())}
    if not of_today:
        return True
    place, cell = min(of_today.items(), key=lambda item: (item[1].cost, published[item[0]]["wall_s"]))
    return _played(cell, published[place], any(":" in name for name in published[place])) == published[place]


def play_missing(name: str) -> None:
    """Play the runs of a grid that its data file lacks or marks as older, and drop those that the grid has no more.

    The file is written after each run.
    """
    data = json.loads((DATA / f"{name}.json").read_bytes())
    published, cells = _published(data), _cells(name)
    metrics = dict.fromkeys((*METRICS, *(grid_of(name).plot or {}).get("y", ())))
    older = dict[str, str](data.pop("older", {}))
    todo = [place for place in cells if place not in published or place[1] in older]
    mixed = any(":" in metric for run in published.values() for metric in run)
    for number, place in enumerate(todo, 1):
        published[place] = _played(cells[place], metrics, mixed)
        left = {other[1]: older[other[1]] for other in sorted(todo[number:]) if other[1] in older}
        write_runs(name, data, {place: run for place, run in published.items() if place in cells}, left)
        print(f"{name}: {number} of {len(todo)}: {place[1]}, seed {place[2]}", flush=True)  # noqa: T201


def write_runs(name: str, data: dict[str, Any], runs: dict[Place, dict[str, float]], older: dict[str, str]) -> None:
    """Write a data file with these runs. Points that it has already keep their order and what else they hold."""
    known = {json.dumps(point["axes"]): point for point in data["points"]}
    points: dict[str, dict[str, Any]] = {}
    for axes, policy, seed in runs:
        point = points.setdefault(axes, {**known.get(axes, {"axes": json.loads(axes)}), "runs": {}})
        point["runs"].setdefault(policy, {})[str(seed)] = runs[axes, policy, seed]
    marks = {"older": older} if older else {}
    (DATA / f"{name}.json").write_text(text_of({**data, **marks, "points": list(points.values())}), encoding="utf-8")


def draw_figure(name: str) -> None:
    """Draw the picture of a figure, or of a grid, from its data file (those that need only the runs' metrics)."""
    grid, points = grid_of(name), json.loads((DATA / f"{name}.json").read_bytes())["points"]
    arms = tuple(dict.fromkeys(cell.arm.label for cell in plan(grid)))
    groups = tuple(_group(str(number), point, arms) for number, point in enumerate(points))
    sweep = Sweep(DATA, name, "virtual", grid.plot or {}, groups, arms)
    panels = sweep_panels(sweep, read_plot(sweep.plot, sweep))
    if not (GRIDS / f"{name}.yaml").exists() and load_figure(name).kind == "ratios":
        panels = ratio_panels(sweep_ratios(sweep, BASES["ratios"]), BASES["ratios"])
    save([draw([panel]) for panel in panels], PICTURES / f"{name}.svg")


def _group(folder: str, point: dict[str, Any], order: Sequence[str]) -> GroupSummary:
    runs = {arm: point["runs"][arm] for arm in order if arm in point["runs"]}
    cells = tuple(PlayedCell(arm, int(seed), runs[arm][seed]) for arm in runs for seed in runs[arm])
    arms = {arm: ArmSummary(arm, None, tuple(map(int, runs[arm])), _means(runs[arm].values())) for arm in runs}
    seeds = tuple(sorted({cell.seed for cell in cells}))
    summary = Summary(seeds, next(iter(arms)), arms, {}, (), None)  # type: ignore[arg-type]  # no manifest
    return GroupSummary(folder, point["axes"], len(cells), summary, cells)


def _means(runs: Collection[dict[str, float]]) -> dict[str, Interval | None]:
    """Return the mean over seeds of each metric that every run has."""
    means: dict[str, Interval | None] = dict.fromkeys(metric.name for metric in ALL_METRICS)
    shared = set.intersection(*(set(run) for run in runs)) if runs else set()
    return means | {name: mean_interval([run[name] for run in runs]) for name in shared}


def _published(data: dict[str, Any]) -> dict[Place, dict[str, float]]:
    return {
        (json.dumps(point["axes"]), policy, int(seed)): metrics
        for point in data["points"]
        for policy, runs in point["runs"].items()
        for seed, metrics in runs.items()
    }


def _cells(name: str) -> dict[Place, Cell]:
    planned = list(plan(grid_of(name)))
    axes = {cell.group.folder: dict(cell.group.point.axes) for cell in reversed(planned)}
    """By folder. Points that differ only in their tiers share a folder, which has the axes of the first."""
    return {(json.dumps(axes[cell.group.folder], default=str), cell.arm.label, cell.seed): cell for cell in planned}


def _played(cell: Cell, metrics: Iterable[str], mixed: bool) -> dict[str, float]:
    """Play a cell and return its metrics, ``mixed``: of chats and agents too."""
    with tempfile.TemporaryDirectory() as folder:
        write_manifest(Path(folder), cell.manifest)
        cell.simulate(Path(folder))
        return metrics_of(analyze_run(Path(folder)).values, metrics) | (by_kind(Path(folder)) if mixed else {})


def main() -> None:
    parser = argparse.ArgumentParser(description="Write docs/results/data/NAME.json from a played sweep RESULTS/NAME.")
    parser.add_argument("sweeps", nargs="*", type=Path, help="folders of sweeps or figures, named as their grids")
    parser.add_argument(
        "--traces", metavar="GRID", help="write the mixed traces that this grid plays, into this folder"
    )
    parser.add_argument("--missing", metavar="GRID", nargs="+", default=(), help="play what these data files lack")
    parser.add_argument(
        "--draw", metavar="FIGURE", nargs="+", default=(), help="draw these figures from their data files"
    )
    arguments = parser.parse_args()
    for name in arguments.missing:
        if f"{name}.json" == GOODPUT:
            parser.error("goodput is a search for rates: make results ARGS=goodput plays it")
        play_missing(name)
    for name in arguments.draw:
        draw_figure(name)
    if arguments.traces is not None:
        write_mixes(arguments.traces)
    for played in arguments.sweeps:
        try:
            if (played / PREDICTED).exists():
                write_measured(played)
            else:
                write(played.name, data_of(read_sweep(played)))
        except (AnalysisError, ValueError) as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
