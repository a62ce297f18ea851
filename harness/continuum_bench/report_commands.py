"""``analyze``, ``report``, ``compare``: recorded files in, words out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from continuum_analysis.compare import summarize
from continuum_analysis.metrics import METRICS, analyze_run
from continuum_analysis.report import write_report
from continuum_analysis.words import verdict
from continuum_traces.run_dir import ENGINE, MANIFEST, runs_below
from rich.console import Console
from rich.table import Table

from continuum_bench.show import print_notice, print_summary, print_verdict


def show_metrics(paths: Sequence[Path], as_json: bool) -> int:
    runs = {str(run): analyze_run(run) for path in paths for run in (runs_below(path) or [path])}
    for name in runs:
        if (Path(name) / MANIFEST).exists() and not (Path(name) / ENGINE).exists():
            print_notice(f"{name}: this run was cut short; it is in no summary, and its metrics cover a part")
    if as_json:
        data = {
            name: {
                **run.values,
                "pins_by_ending": run.pins_by_ending,
                "unfinished": run.unfinished,
                "failed": run.failed,
            }
            for name, run in runs.items()
        }
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
        return 0
    for name, run in runs.items():
        table = Table(title=name, title_justify="left")
        for heading in ("metric", "value", "unit", "what it is"):
            table.add_column(heading)
        for metric in METRICS:
            value = run.values[metric.name]
            table.add_row(metric.name, "-" if value is None else f"{value:.6g}", metric.unit, metric.formula)
        Console(highlight=False).print(table)
        if run.pins_by_ending:
            print_notice("pins by ending: " + ", ".join(f"{k} {v}" for k, v in run.pins_by_ending.items()))
        if run.unfinished:
            print_notice(f"unfinished programs: {', '.join(run.unfinished)}")
        if run.failed:
            print_notice(f"failed programs: {', '.join(run.failed)}")
    return 0


def write_reports(paths: Sequence[Path]) -> int:
    for path in paths:
        print_notice(f"report: {write_report(path)}")
    return 0


def show_comparison(paths: Sequence[Path], as_json: bool) -> int:
    for path in paths:
        summary = summarize(path)
        if as_json:
            sys.stdout.write(json.dumps(summary, indent=2) + "\n")
        else:
            print_summary(summary, str(path))
            print_verdict(verdict(summary))
    return 0
