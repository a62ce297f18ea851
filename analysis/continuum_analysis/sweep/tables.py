"""A sweep read from its files: groups of comparable runs with a summary each, and the sweep's tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from continuum_traces.json_io import read_json
from continuum_traces.records.run_dir import ENGINE

from continuum_analysis.compare.intervals import NO_VALUE
from continuum_analysis.compare.runs import PREDICTED, REPEAT, SWEEP, Run, cells_of, read_run_metrics, reading_sweep
from continuum_analysis.compare.summary import ArmSummary, Summary, summarize_runs
from continuum_analysis.compare.words import COLUMNS, THROUGHPUT, TextTable, metric_column, ratio_column
from continuum_analysis.compare.worlds import PredictedArm, prediction_table, predictions_between, settings_that_differ
from continuum_analysis.metrics import Value
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.slo import Slo, read_slo

SHOWN = ("jct_mean_s", "jct_p95_s", THROUGHPUT, "prefix_hit_ratio")
"""Metrics that every table of a sweep contains."""


@dataclass(frozen=True, slots=True)
class PlayedCell:
    """One complete run of a sweep."""

    policy: str
    seed: int
    metrics: Mapping[str, Value]
    kept: bool = True
    """Whether the run keeps the service level of the sweep's plot; True without one."""


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A point of the grid: runs with the same workload, engine and rate."""

    folder: str
    axes: Mapping[str, Any]
    asked: int
    """Number of cells that the grid has at this point."""
    summary: Summary | None
    """The summary of the complete runs; None if there are none."""
    cells: tuple[PlayedCell, ...]
    """The complete runs."""
    predictions: tuple[PredictedArm, ...] = ()
    """The same runs in the virtual engine beside them; empty if they were not predicted."""

    @property
    def policies(self) -> Mapping[str, ArmSummary]:
        return self.summary.arms if self.summary else {}

    def by_seed(self, policy: str, metric: str) -> dict[int, float]:
        """Return the metric of each run of a policy that the summary covers, by seed."""
        seeds = self.policies[policy].seeds if policy in self.policies else ()
        of_policy = ((cell.seed, cell.metrics[metric]) for cell in self.cells if cell.policy == policy)
        return {seed: value for seed, value in of_policy if seed in seeds and value is not None}


MODELLED = {
    "virtual": "vLLM's scheduler is real; GPU step times and the clock are modelled",
    "emulated": "the server is real; GPU step times are modelled",
    "cpu": "the server computes on this machine's CPU",
    "gpu": "the server computes on this machine's GPU",
}
"""The parts of each engine that are modelled."""
BESIDE = "Servers (measured) beside the virtual engine with a profile (modelled): error = modelled / measured - 1"


@dataclass(frozen=True, slots=True)
class Sweep:
    path: Path
    name: str
    engine: str
    plot: Mapping[str, Any]
    groups: tuple[GroupSummary, ...]
    policies: tuple[str, ...]
    """The policies in the order of the grid."""

    def varying(self) -> list[str]:
        """Return the axes on which the groups differ."""
        names = list(dict.fromkeys(name for group in self.groups for name in group.axes))
        return [name for name in names if len({str(group.axes.get(name)) for group in self.groups}) > 1]

    @property
    def baseline(self) -> str:
        """The policy with which the others are compared; points without a run of it have another baseline."""
        return " or ".join(dict.fromkeys(group.summary.baseline for group in self.groups if group.summary))

    def warnings(self) -> list[str]:
        """Return what every group's summary warns of, once; then the warnings of each group."""
        of_groups = [group.summary.warnings for group in self.groups if group.summary]
        of_all = [text for text in of_groups[0] if all(text in each for each in of_groups)] if of_groups[1:] else []
        warnings = list(of_all)
        for group in self.groups:
            missing = group.asked - len(group.cells)
            if missing:
                warnings.append(f"{group.folder}: {missing} of {group.asked} cells are missing")
            own = group.summary.warnings if group.summary else ()
            warnings += [f"{group.folder}: {text}" for text in own if text not in of_all]
            if group.predictions:
                warnings += [f"{group.folder}: {text}" for text in settings_that_differ(group.predictions)]
        return warnings

    def prediction_table(self) -> TextTable | None:
        """Return a row for each point and policy, measured beside modelled; None: nothing was predicted."""
        axes, rows = self.varying() or ["jps"], list[list[str]]()
        headings: list[str] = []
        for group in self.groups:
            table = prediction_table(group.predictions)
            headings = [*axes, *table.headings]
            rows += [[*(_show(group.axes.get(axis)) for axis in axes), *row] for row in table.rows]
        return TextTable(headings, rows) if rows else None

    def table(self) -> TextTable:
        """Return one row for each point and policy: the axes that vary, ``SHOWN``, and the metrics of the plot."""
        axes = self.varying() or ["jps"]
        drawn = (metric_column(name) for name in self.plot.get("y", ()) if name not in SHOWN)
        shown = (column for column in COLUMNS if column.metric in SHOWN)
        columns = [*shown, ratio_column([self.baseline]), *drawn]
        rows = [
            [
                *(_show(group.axes.get(axis)) for axis in axes),
                policy,
                str(len(arm.seeds)),
                *(column.cell(arm) for column in columns),
            ]
            for group in self.groups
            for policy, arm in group.policies.items()
        ]
        return TextTable([*axes, "policy", "seeds", *(column.heading for column in columns)], rows)


def read_sweep(path: Path, baseline: str | None = None, level: str | None = None) -> Sweep:
    """Read the sweep in a directory. Cells of an older grid that are not in sweep.json are left out.

    Args:
        baseline: compare with this policy at every point; None: with vLLM's own scheduler, else the first policy.
        level: the service level to judge by, instead of the plot's; ignored if the plot has none.

    Raises:
        AnalysisError: the directory has no sweep, its runs cannot be compared, or a point has no run of ``baseline``.
        RunDirError: a file has a fault.
    """
    if not (path / SWEEP).exists():
        raise AnalysisError(f"{path}: holds no {SWEEP}")
    plan = read_json(path / SWEEP)
    with reading_sweep(path):
        predicted = _predicted(path / PREDICTED)
        plot = dict(plan["plot"])
        if "slo" in plot:
            plot["slo"] = level or plot["slo"]
        slo = read_slo(plot["slo"]) if "slo" in plot else Slo()
        groups = tuple(_group(path, group, baseline, predicted, slo) for group in plan["groups"])
        policies = dict.fromkeys(cell["policy"] for group in plan["groups"] for cell in group["cells"])
        return Sweep(path, plan["name"], plan["engine"], plot, groups, tuple(policies))


def runs_of(path: Path, group: Mapping[str, Any]) -> list[Run]:
    """Read the complete runs of one group of sweep.json."""
    return [read_run_metrics(folder) for folder in cells_of(path, group) if (folder / ENGINE).is_file()]


def _predicted(path: Path) -> dict[str, list[Run]]:
    """Return the runs of a sweep of predictions, by ``_point_key``; empty if there is none."""
    if not (path / SWEEP).exists():
        return {}
    with reading_sweep(path):
        return {_point_key(group["axes"]): runs_of(path, group) for group in read_json(path / SWEEP)["groups"]}


def _point_key(axes: Mapping[str, Any]) -> str:
    """Return what a point has in common with its prediction, and with its repeats."""
    return json.dumps({name: value for name, value in axes.items() if name != REPEAT}, sort_keys=True)


def _group(
    path: Path, group: Mapping[str, Any], baseline: str | None, predicted: Mapping[str, Sequence[Run]], slo: Slo
) -> GroupSummary:
    runs = runs_of(path, group)
    modelled = predicted.get(_point_key(group["axes"]), ())
    predictions = [row for rows in predictions_between(runs, modelled, baseline).values() for row in rows]
    cells = tuple(
        PlayedCell(
            run.manifest.policy,
            run.manifest.seed,
            run.metrics.values,
            slo.kept_by(run.metrics.facts, run.metrics.values),
        )
        for run in runs
    )
    summary = summarize_runs(path / group["folder"], runs, baseline) if runs else None
    if summary is not None:
        order = dict.fromkeys(cell["policy"] for cell in group["cells"])
        summary = replace(summary, arms={name: summary.arms[name] for name in order if name in summary.arms})
    return GroupSummary(group["folder"], group["axes"], len(group["cells"]), summary, cells, tuple(predictions))


def point_text(axes: Mapping[str, Any], shown: Iterable[str]) -> str:
    """Write a point of the grid, such as ``swebench, jps 0.13``: the values of the axes ``shown`` that the point has,
    numbers after the name of their axis."""
    values = {name: axes[name] for name in shown if axes.get(name) is not None}
    return ", ".join(f"{name} " * isinstance(value, int | float) + _show(value) for name, value in values.items())


def _show(value: Any) -> str:
    if value is None:
        return NO_VALUE
    return f"{value:g}" if isinstance(value, float) else str(value)
