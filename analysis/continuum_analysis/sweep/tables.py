"""A sweep's cells as one table: groups of runs that may stand side by side, each summarised as any experiment is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from continuum_traces.run_dir import SUMMARY, RunDirError, read_json, read_manifest, write_json

from continuum_analysis.compare.intervals import ratio_interval
from continuum_analysis.compare.runs import Run, summarize_runs
from continuum_analysis.compare.words import BASELINE
from continuum_analysis.metrics import METRICS, analyze_run
from continuum_analysis.records.timeline import AnalysisError

SWEEP = "sweep.json"
SHOWN = ("jct_mean_s", "jct_p95_s", "throughput_jobs_per_s", "prefix_hit_ratio")
"""Metrics that every table of a sweep has."""
ENOUGH_SEEDS = 3
"""With fewer, a 95% interval says little but that two is few: the seeds themselves are shown."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A point of the grid: its runs on the same workload, engine and rate."""

    folder: str
    axes: Mapping[str, Any]
    asked: int
    """Cells of the grid here."""
    summary: Mapping[str, Any] | None
    """``compare.summarize_runs`` of those that are complete; None where none is."""
    cells: tuple[Mapping[str, Any], ...]
    """Policy, seed and every metric of each complete run."""

    @property
    def policies(self) -> Mapping[str, Mapping[str, Any]]:
        return self.summary["policies"] if self.summary else {}

    def by_seed(self, policy: str, metric: str) -> dict[int, float]:
        """The metric of each complete run of a policy."""
        mine = (cell for cell in self.cells if cell["policy"] == policy and cell[metric] is not None)
        return {cell["seed"]: cell[metric] for cell in mine}

    def ratios(self, policy: str) -> list[float]:
        """vllm's mean JCT over this policy's, seed by seed."""
        base, mine = self.by_seed(BASELINE, "jct_mean_s"), self.by_seed(policy, "jct_mean_s")
        return [ratio_interval([base[seed]], [mine[seed]]).mean for seed in mine if seed in base]


@dataclass(frozen=True, slots=True)
class Sweep:
    path: Path
    name: str
    engine: str
    plot: Mapping[str, Any]
    groups: tuple[GroupSummary, ...]
    policies: tuple[str, ...]
    """In the order of the grid."""

    def varying(self) -> list[str]:
        """Axes on which the groups differ."""
        names = list(dict.fromkeys(name for group in self.groups for name in group.axes))
        return [name for name in names if len({str(group.axes.get(name)) for group in self.groups}) > 1]

    def warnings(self) -> list[str]:
        found = []
        for group in self.groups:
            if len(group.cells) < group.asked:
                found.append(f"{group.folder}: {group.asked - len(group.cells)} of {group.asked} cells are not there")
            found += [f"{group.folder}: {text}" for text in (group.summary or {}).get("warnings", ())]
        return found

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows for people: the axes that vary, then the policy and what came of it, what is drawn last."""
        axes = self.varying() or ["jps"]
        drawn = [name for name in self.plot.get("y", ()) if name not in SHOWN]
        headings = [*axes, "policy", "seeds", "JCT mean, s", "P95, s", "jobs/s", "prefix hit", "ratio to vllm", *drawn]
        rows = [
            [
                *(_show(group.axes.get(axis)) for axis in axes),
                policy,
                *_cells(group, policy, row),
                *(spread(row[name], None, 1) for name in drawn),
            ]
            for group in self.groups
            for policy, row in group.policies.items()
        ]
        return headings, rows

    def as_json(self) -> dict[str, Any]:
        groups = [{"folder": group.folder, "axes": dict(group.axes), **(group.summary or {})} for group in self.groups]
        head = {"schema": "continuum-sweep-summary", "version": 1, "name": self.name, "engine": self.engine}
        return {**head, "warnings": self.warnings(), "groups": groups}


def read_sweep(path: Path) -> Sweep:
    """The sweep in a directory, from its files alone. Cells of an older grid that this one lacks are left out.

    Raises:
        AnalysisError: no sweep there, or runs that may not stand side by side.
        RunDirError: a fault in a file.
    """
    if not (path / SWEEP).exists():
        raise AnalysisError(f"{path}: holds no {SWEEP}")
    plan = read_json(path / SWEEP)
    try:
        groups = tuple(_group(path, group) for group in plan["groups"])
        policies = dict.fromkeys(cell["policy"] for group in plan["groups"] for cell in group["cells"])
        return Sweep(path, plan["name"], plan["engine"], plan["plot"], groups, tuple(policies))
    except (KeyError, TypeError) as error:
        raise RunDirError(f"{path / SWEEP}: field {error} is missing or of another type") from error


def runs_of(path: Path, group: Mapping[str, Any]) -> list[Run]:
    """The complete runs of one group of sweep.json."""
    folders = [path / group["folder"] / cell["name"] for cell in group["cells"]]
    return [Run(one, read_manifest(one), analyze_run(one)) for one in folders if (one / "engine.json").is_file()]


def _group(path: Path, group: Mapping[str, Any]) -> GroupSummary:
    runs = runs_of(path, group)
    cells = tuple({"policy": r.manifest.policy, "seed": r.manifest.seed, **r.metrics.values} for r in runs)
    order = list(dict.fromkeys(cell["policy"] for cell in group["cells"]))
    summary = None
    if runs:
        summary = summarize_runs(path / group["folder"], runs)
        summary["policies"] = {name: summary["policies"][name] for name in order if name in summary["policies"]}
    return GroupSummary(group["folder"], group["axes"], len(group["cells"]), summary, cells)


def cell_frame(sweep: Sweep) -> pd.DataFrame:
    """One row a complete cell: its axes, policy, seed and every metric."""
    axes = list(dict.fromkeys(name for group in sweep.groups for name in group.axes))
    rows = [{**dict(group.axes), **cell} for group in sweep.groups for cell in group.cells]
    columns = [*axes, "policy", "seed", *(metric.name for metric in METRICS)]
    return pd.DataFrame(rows, columns=columns)


def write_tables(sweep: Sweep) -> None:
    """sweep.csv, a row a cell, and summary.json, a summary a group."""
    target = sweep.path / "sweep.csv"
    temporary = target.with_name("sweep.csv.tmp")
    try:
        cell_frame(sweep).to_csv(temporary, index=False, float_format="%.6g")
        temporary.replace(target)
    except OSError as error:
        raise RunDirError(f"{target}: cannot write: {error.strerror}") from error
    write_json(sweep.path / SUMMARY, sweep.as_json())


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table; its lines."""
    yield "| " + " | ".join(headings) + " |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _cells(group: GroupSummary, policy: str, row: Mapping[str, Any]) -> list[str]:
    means = list(group.by_seed(policy, "jct_mean_s").values())
    return [
        str(len(row["seeds"])),
        spread(row["jct_mean_s"], row["intervals"]["jct_mean_s"], 1, means),
        spread(row["jct_p95_s"], None, 1),
        spread(row["throughput_jobs_per_s"], None, 4),
        "-" if row["prefix_hit_ratio"] is None else f"{row['prefix_hit_ratio']:.1%}",
        spread(row.get("ratio_to_vllm"), row.get("ratio_to_vllm_interval"), 2, group.ratios(policy)),
    ]


def spread(value: float | None, bounds: Sequence[float] | None, digits: int, seeds: Sequence[float] = ()) -> str:
    """A number with its 95% interval in round brackets, or, of too few seeds for one, each seed's in square ones."""
    if value is None:
        return "-"
    if len(seeds) in range(2, ENOUGH_SEEDS):
        return f"{value:.{digits}f} [{', '.join(f'{seed:.{digits}f}' for seed in seeds)}]"
    within = "" if bounds is None else f" ({bounds[0]:.{digits}f} to {bounds[1]:.{digits}f})"
    return f"{value:.{digits}f}{within}"


def _show(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)
