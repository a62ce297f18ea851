"""report.html of a sweep: one file with the plot, the table, and the command of the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from continuum_traces.json_io import read_json, write_json, write_text
from continuum_traces.records.run_dir import SUMMARY

from continuum_analysis.compare.runs import SWEEP
from continuum_analysis.compare.summary import write_csv
from continuum_analysis.plots.drawing import draw, save
from continuum_analysis.plots.panels import Panel
from continuum_analysis.report.experiment_facts import experiment_line
from continuum_analysis.report.fill import fill_page
from continuum_analysis.sweep.capacity import capacity_of
from continuum_analysis.sweep.plots import read_plot, sweep_panels
from continuum_analysis.sweep.tables import MODELLED, Sweep
from continuum_analysis.sweep.verdict import sweep_trust, sweep_verdict


def write_tables(sweep: Sweep) -> None:
    """Write two files: sweep.csv has a row for each complete cell with its axes, policy, seed and every metric, and
    summary.json summarises each group of cells."""
    axes = {name: None for group in sweep.groups for name in group.axes}
    rows = [
        {**axes, **group.axes, "policy": cell.policy, "seed": cell.seed, **cell.metrics}
        for group in sweep.groups
        for cell in group.cells
    ]
    if rows:
        write_csv(sweep.path / "sweep.csv", rows)
    write_json(sweep.path / SUMMARY, sweep_json(sweep))


def sweep_json(sweep: Sweep) -> dict[str, Any]:
    """Return the content of summary.json."""
    capacity = capacity_of(sweep)
    groups = [
        {"folder": group.folder, "axes": dict(group.axes), **(group.summary.to_json() if group.summary else {})}
        | ({"predictions": [row.to_json() for row in group.predictions]} if group.predictions else {})
        for group in sweep.groups
    ]
    head = {"schema": "continuum-sweep-summary", "version": 1, "name": sweep.name, "engine": sweep.engine}
    answer = {} if capacity is None else {"capacity": capacity.to_json()}
    return {**head, **answer, "warnings": sweep.warnings(), "groups": groups}


def sweep_answer(sweep: Sweep) -> tuple[str, str]:
    """Return the two sentences at the top of a report: how many agents keep the plot's service level and what is lost
    beyond it; without a level, the best policy on average, and how sure that is."""
    capacity = capacity_of(sweep)
    return sweep_verdict(sweep) if capacity is None else capacity.answer


def write_sweep_report(sweep: Sweep) -> Path:
    """Write sweep.svg and report.html beside sweep.json; return the path of report.html."""
    capacity = capacity_of(sweep)
    return write_page(
        sweep.path,
        "sweep",
        sweep_panels(sweep, read_plot(sweep.plot, sweep)),
        title=": ".join(filter(None, (sweep.name, sweep_line(sweep)))),
        table=sweep.table() if capacity is None else capacity.table(),
        warnings=sweep.warnings(),
        facts=_facts(sweep, read_json(sweep.path / SWEEP)),
        kind="lines" if capacity is None else "capacity",
        verdict=sweep_answer(sweep),
        trust=sweep_trust(sweep),
        predictions=sweep.prediction_table(),
    )


def sweep_line(sweep: Sweep) -> str:
    """Return what ran on what: workload, programs and their rates, model, GPU."""
    manifests = [group.summary.manifest for group in sweep.groups if group.summary]
    if "slo" in sweep.plot:
        alike = [replace(each.workload, arrivals=None, programs=None, jps=None) for each in manifests]
        manifests = [replace(each, workload=work) for each, work in zip(manifests, alike, strict=True)]
    return experiment_line(manifests)


def write_page(folder: Path, name: str, panels: Sequence[Panel], **values: Any) -> Path:
    """Write the panels as ``name.svg``, and report.html with the panels.

    Args:
        values: the content of the page beside the panels: title, table, warnings, facts and kind (of a figure, which
            says how to read it), perhaps also base, line, verdict, trust and predictions (a table).

    Raises:
        RunDirError: a file cannot be written.
    """
    drawings = [draw([panel]) for panel in panels]
    if drawings:
        save(drawings, folder / f"{name}.svg")
    optional = dict.fromkeys(("base", "line", "verdict", "trust", "predictions"))
    page = fill_page("sweep_report.html.j2", drawings=drawings, **(optional | values))
    return write_text(folder / "report.html", page)


def _facts(sweep: Sweep, plan: dict[str, object]) -> list[tuple[str, str]]:
    command = plan.get("command", [])
    done, asked = sum(len(g.cells) for g in sweep.groups), sum(g.asked for g in sweep.groups)
    return [
        ("Cells", f"{done} of {asked}"),
        ("Engine", f"{sweep.engine}; {MODELLED[sweep.engine]}" if sweep.engine in MODELLED else sweep.engine),
        ("Command", " ".join(map(str, command)) if isinstance(command, list) else ""),
        ("Runs", ", ".join(group.folder for group in sweep.groups)),
    ]
