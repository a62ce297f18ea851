"""The commands ``analyze``, ``report`` and ``compare``, which read recorded runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from continuum_analysis.compare.intervals import number_text
from continuum_analysis.compare.latency import caption as latency_caption
from continuum_analysis.compare.latency import latency_table
from continuum_analysis.compare.runs import (
    SWEEP,
    Run,
    by_load,
    is_complete,
    load_runs,
    name_variants,
    read_run_metrics,
    records_at,
)
from continuum_analysis.compare.summary import Summary, summarize_runs
from continuum_analysis.compare.verdict import verdict
from continuum_analysis.compare.words import TextTable, cause_table
from continuum_analysis.compare.worlds import (
    PredictedArm,
    prediction_table,
    predictions_of,
    settings_that_differ,
    world,
)
from continuum_analysis.metrics import METRICS, Metric, by_group, completion_times
from continuum_analysis.records.misses import cause_rows
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.records.unknown import cannot_be_known
from continuum_analysis.report.experiment_facts import experiment_line
from continuum_analysis.report.images import write_report_images
from continuum_analysis.report.page import write_joint_report, write_report
from continuum_analysis.slo import read_slo, slo_metrics, slo_table, slo_text, with_slo
from continuum_analysis.sweep.capacity import Capacity, capacity_of
from continuum_analysis.sweep.report import sweep_json, sweep_line, write_sweep_report, write_tables
from continuum_analysis.sweep.tables import MODELLED, Sweep, read_sweep
from continuum_traces.json_io import write_text, writing
from continuum_traces.names import harmless, which
from continuum_traces.records import read_verdicts
from continuum_traces.records.run_dir import MANIFEST, PROGRAMS

from continuum_bench.gate import apply_conditions, conclude, read_conditions, side_by_side
from continuum_bench.options.reports import (
    AnalyzeOptions,
    CompareOptions,
    GateOptions,
    ReportOptions,
    SloOptions,
)
from continuum_bench.show import modelled, print_json, print_notice, print_summary, print_table, print_verdict


def analyze_runs(options: AnalyzeOptions, slo: SloOptions) -> int:
    """Print the metrics of each run, or the table that the options name."""
    runs = _runs(options.directories, slo)
    if _is_table(options) or options.table is not None:
        return _write_run_table(runs, options)
    if options.misses and not options.json_output:
        return _show_misses(runs)
    if options.json_output:
        print_json({str(run.path): _metrics_json(run) for run in runs})
        return 0
    rows = (*METRICS, *(slo_metrics(read_slo(slo.slo)) if slo.slo else ()))
    for run in runs:
        _print_metrics(run, rows)
    return 0


def _metrics_json(run: Run) -> dict[str, Any]:
    return {
        **run.metrics.values,
        "pins_by_ending": run.metrics.pins_by_ending,
        "misses": [asdict(row) for row in cause_rows(run.metrics.facts.returns)],
        "unfinished": run.metrics.facts.unfinished,
        "failed": run.metrics.facts.failed,
        "errors_by_kind": run.metrics.errors_by_kind,
        **({"passed": verdicts} if (verdicts := _verdicts(run.path)) else {}),
    }


def _runs(paths: Sequence[Path], slo: SloOptions) -> list[Run]:
    """Read all runs in these directories, complete or not, with the metrics of the SLO."""
    folders = dict.fromkeys(run for path in paths for run in (records_at(path) or [path]))
    for folder in folders:
        if (folder / MANIFEST).exists() and not is_complete(folder):
            print_notice(f"{folder}: this run was cut short; it is in no summary, and its metrics cover a part")
    return _judged([read_run_metrics(folder, _alone_s(slo)) for folder in folders], slo)


def _alone_s(slo: SloOptions) -> dict[str, float] | None:
    """Return the completion times of ``--alone`` by program."""
    return None if slo.alone is None else completion_times(slo.alone)


def _judged(runs: list[Run], slo: SloOptions) -> list[Run]:
    """Return the runs as one comparison, with the metrics of the SLO."""
    named = name_variants(runs)
    return named if slo.slo is None else with_slo(named, read_slo(slo.slo))


def _verdicts(folder: Path) -> Mapping[str, bool]:
    """Return for each tested program of real agents whether it passed; empty for other runs."""
    return read_verdicts(folder) if (folder / PROGRAMS).exists() else {}


def _print_metrics(run: Run, metrics: Sequence[Metric]) -> None:
    measured = run.metrics
    absent = [m.name for m in metrics if measured.values[m.name] is None]
    rows = [
        [m.name, number_text(measured.values[m.name], "{:.6g}"), m.unit, m.formula]
        for m in metrics
        if m.name not in absent
    ]
    table = TextTable(("metric", "value", "unit", "what it is"), rows)
    print_table(table, str(run.path), words=("value", "unit", "what it is"))
    if absent:
        print_notice(f"no value in this run: {', '.join(absent)}")
    known = [turn.ttft_s is not None for turn in measured.facts.requests]
    if 0 < sum(known) < len(known):
        print_notice(f"first tokens, and what follows from them: known of {sum(known):,} of {len(known):,} turns")
    if measured.errors_by_kind:
        print_notice("errors by kind: " + ", ".join(f"{k} {v}" for k, v in measured.errors_by_kind.items()))
    if measured.pins_by_ending:
        print_notice("pins by ending: " + ", ".join(f"{k} {v}" for k, v in measured.pins_by_ending.items()))
    if verdicts := _verdicts(run.path):
        failing = ", ".join(name for name, passed in verdicts.items() if not passed)
        text = f"{sum(verdicts.values())} of {len(verdicts)} programs pass their benchmark's test"
        print_notice(f"{text}; these do not: {failing}" if failing else text)
    if measured.facts.unfinished:
        print_notice(f"unfinished programs: {', '.join(measured.facts.unfinished)}")
    if measured.facts.failed:
        print_notice(f"failed programs: {', '.join(measured.facts.failed)}")


def _show_misses(runs: Sequence[Run]) -> int:
    """Print for each run a table of the causes of prefix cache hits and misses of returning turns."""
    for run in runs:
        returns = run.metrics.facts.returns
        if returns:
            print_table(cause_table(returns), f"{run.path}: {len(returns)} returning turns", words=("meaning",))
        for lacking in cannot_be_known(run.metrics.facts):
            print_notice(f"{run.path}: {'; '.join(filter(None, lacking))}")
    return 0


def _write_run_table(runs: Sequence[Run], options: AnalyzeOptions) -> int:
    """Write a table of runs for another program (``continuum_analysis.tables``)."""
    from continuum_analysis.tables import TABLES  # noqa: PLC0415 - pandas is slow to import

    name = options.table or ("misses" if options.misses else "runs")
    if name not in TABLES:
        raise AnalysisError(f"--table {name}: {which(name, TABLES)}")
    _write_table(TABLES[name](runs), options)
    return 0


def _is_table(options: AnalyzeOptions | CompareOptions) -> bool:
    """Whether a table for other programs is asked for."""
    return options.form is not None or options.out is not None or options.columns is not None


def write_reports(options: ReportOptions) -> int:
    """Write a page for each directory, or the page ``out`` about all of them."""
    paths, out = options.directories, options.out
    if out is not None:
        written = [write_joint_report(paths, out, options.baseline)]
    else:
        written = [_report_of(path, options.baseline) for path in paths]
    for page in written:
        print_notice(f"report: {page}")
    if options.images:
        for group, folder in [(paths, out.parent)] if out is not None else [([path], path) for path in paths]:
            if out is None and (folder / SWEEP).exists():
                print_notice(f"images: sweep.svg in {folder}")
                continue
            print_notice(f"images: {len(write_report_images(group, folder / 'images'))} files in {folder / 'images'}")
    return 0


def _report_of(path: Path, baseline: str | None) -> Path:
    """Write the report of an experiment, or of a sweep with its tables and plot."""
    if (path / SWEEP).exists():
        sweep = read_sweep(path, baseline)
        write_tables(sweep)
        return write_sweep_report(sweep)
    return write_report(path, baseline)


def compare_runs(options: CompareOptions, slo: SloOptions, gate: GateOptions) -> int:
    """Compare the runs of all directories, with seeds merged and a table for each load. Returns the exit code."""
    conditions = read_conditions(gate)
    if not conditions and options.by is None and (curve := _curve(options, slo)) is not None:
        return _show_curve(*curve, options)
    directories = _directories(options.directories, slo)
    # With conditions, directories of the same arms and seeds are versions of one experiment, and not merged.
    groups = [[path] for path in directories] if gate.fail_if and side_by_side(directories) else [list(directories)]
    sides = _worlds(directories, options, gate)
    summaries = {
        (", ".join(map(str, group)), _words(title, side)): _summaries(part, group, options.baseline)
        for side, of_side in sides.items()
        for title, part in _parts(of_side, options.by).items()
        for group in groups
    }
    runs = [run for group in directories.values() for run in group]
    predictions = predictions_of(runs, options.baseline) if len(sides) > 1 else {}
    outcomes = apply_conditions(directories, conditions, options.baseline) if conditions else ()
    every = [(title, *each) for (_, title), by_jps in summaries.items() for each in by_jps.items()]
    if options.form == "json":
        _write(json.dumps(_comparison_json(every), indent=2) + "\n", options.out)
    elif _is_table(options):
        _write_comparison({jps: summary for _, jps, summary in every}, options)
    elif options.json_output:
        print_json(_comparison_json(every, predictions))
    else:
        for (caption, title), by_jps in summaries.items():
            _print_comparison(_words(caption, title), by_jps, slo)
        _print_predictions(predictions)
    return conclude(outcomes)


def _curve(options: CompareOptions, slo: SloOptions) -> tuple[Sweep, Capacity] | None:
    """Return a directory's curve over agents at a time, if it is the only one and has a service level."""
    if len(options.directories) != 1 or not (options.directories[0] / SWEEP).exists():
        return None
    sweep = read_sweep(options.directories[0], options.baseline, slo.slo)
    capacity = capacity_of(sweep)
    return None if capacity is None else (sweep, capacity)


def _show_curve(sweep: Sweep, capacity: Capacity, options: CompareOptions) -> int:
    if options.json_output or (options.form == "json" and options.columns is None):
        _write(json.dumps(sweep_json(sweep), indent=2) + "\n", options.out)
    elif _is_table(options):
        from continuum_analysis.tables import capacity_table  # noqa: PLC0415 - pandas is slow to import

        _write_table(capacity_table(capacity), options)
    else:
        caption = f"{sweep.name}: {sweep_line(sweep)}; {MODELLED.get(sweep.engine, sweep.engine)}"
        print_table(capacity.table(), caption, words=("policy",))
        print_verdict(" ".join(capacity.answer))
    return 0


def _words(*words: str) -> str:
    return ", ".join(filter(None, words))


def _worlds(
    directories: Mapping[Path, Sequence[Run]], options: CompareOptions, gate: GateOptions
) -> dict[str, Mapping[Path, Sequence[Run]]]:
    """Return the measured and the modelled runs; all of them without a name if they are of one kind.

    Raises:
        AnalysisError: there are both, and a table for other programs or a condition was asked for.
    """
    names = sorted({world(run) for runs in directories.values() for run in runs})
    if len(names) == 1:
        return {"": directories}
    for option, given in (
        ("--format", options.form),
        ("--out", options.out),
        ("--columns", options.columns),
        ("--fail-if", gate.fail_if),
    ):
        if given:
            raise AnalysisError(f"{option}: some of these runs are measured, others modelled; give one kind, or --json")
    return {
        name: {path: [run for run in runs if world(run) == name] for path, runs in directories.items()}
        for name in names
    }


def _print_predictions(predictions: Mapping[float | None, Sequence[PredictedArm]]) -> None:
    """Print how far the modelled times are off the measured ones, at each load."""
    for jps, rows in predictions.items():
        where = "" if jps is None else f" at {jps:g} programs/s"
        print_table(prediction_table(rows), f"Modelled beside measured{where}: error = modelled / measured - 1")
        for line in settings_that_differ(rows):
            print_notice(f"note: {line}")


def _parts(directories: Mapping[Path, Sequence[Run]], by: str | None) -> dict[str, Mapping[Path, Sequence[Run]]]:
    """Return the runs with the metrics of each group of programs, by the group's title; without ``by``, all of them."""
    if by is None:
        return {"": directories}
    groups = {run.path: by_group(run.metrics, by, run.manifest) for runs in directories.values() for run in runs}
    names = sorted({name for each in groups.values() for name in each})
    return {
        f"{by} {name}": {
            path: [replace(run, metrics=groups[run.path][name]) for run in runs if name in groups[run.path]]
            for path, runs in directories.items()
        }
        for name in names
    }


def _print_comparison(caption: str, summaries: Mapping[float | None, Summary], slo: SloOptions) -> None:
    for summary in summaries.values():
        print_summary(summary, ": ".join(filter(None, (caption, experiment_line([summary.manifest])))))
        latencies = latency_table(summary)
        if latencies is not None:
            print_table(latencies, f"{latency_caption(summary)}{modelled(summary)}", words=("",))
        if slo.slo is not None:
            limits = read_slo(slo.slo)
            print_table(slo_table(summary, limits), f"Goodput: {slo_text(limits)}{modelled(summary)}")
        print_verdict(verdict(summary))


def _write_comparison(summaries: Mapping[float | None, Summary], options: CompareOptions) -> None:
    from continuum_analysis.tables import (  # noqa: PLC0415 - pandas is slow to import
        summary_numbers,
        summary_table,
        summary_words,
    )

    shown = {"latex": summary_numbers, "markdown": summary_words}
    table = shown.get(options.form or "", summary_table) if options.columns is None else summary_table
    _write_table(table(summaries), options)


def _comparison_json(
    summaries: Sequence[tuple[str, float | None, Summary]],
    predictions: Mapping[float | None, Sequence[PredictedArm]] | None = None,
) -> object:
    """Return the contents of summary.json, or a list of them if there are several groups or loads; then the predictions
    of each load."""
    data = [{**({"group": group} if group else {}), "jps": jps, **each.to_json()} for group, jps, each in summaries]
    data += [{"jps": jps, "predictions": [row.to_json() for row in rows]} for jps, rows in (predictions or {}).items()]
    return data[0] if len(data) == 1 else data


def _directories(paths: Sequence[Path], slo: SloOptions) -> dict[Path, list[Run]]:
    """Return the runs of each directory, with the metrics of the SLO.

    Raises:
        AnalysisError: one directory is given twice, perhaps by different names.
    """
    for number, path in enumerate(paths):
        if path.resolve() in [before.resolve() for before in paths[:number]]:
            raise AnalysisError(f"{path}: given twice")
    alone_s = _alone_s(slo)
    loaded = {path: load_runs(path, alone_s) for path in paths}
    runs = iter(_judged([run for each in loaded.values() for run in each], slo))
    return {path: list(islice(runs, len(each))) for path, each in loaded.items()}


def _summaries(
    directories: Mapping[Path, Sequence[Run]], paths: Sequence[Path], baseline: str | None
) -> dict[float | None, Summary]:
    runs_here = [run for path in paths for run in directories[path]]
    loads = by_load(runs_here) if runs_here else {}
    whole = paths[0] if len(paths) == 1 and len(loads) == 1 else None
    return {jps: summarize_runs(whole, runs, baseline) for jps, runs in loads.items()}


def _write_table(table: Any, options: AnalyzeOptions | CompareOptions) -> None:
    """Write a table of pandas for another program.

    Raises:
        AnalysisError: no such column; Parquet without a file, or without pyarrow.
    """
    from continuum_analysis.tables import chosen, table_text  # noqa: PLC0415 - pandas is slow to import

    form, out = options.form or "csv", options.out
    if options.columns is not None:
        table = chosen(table, [name.strip() for name in options.columns.split(",") if name.strip()])
    if form != "parquet":
        return _write(table_text(table, form), out)
    if out is None:
        raise AnalysisError("--format parquet: binary; name a file with --out")
    try:
        with writing(out):
            table.to_parquet(out, index=False)
    except ImportError as error:
        raise AnalysisError("--format parquet: pyarrow is not installed; pip install pyarrow") from error
    print_notice(f"table: {out}")


def _write(text: str, out: Path | None) -> None:
    """Write a table to the file, or print it."""
    if out is None:
        sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    else:
        print_notice(f"table: {write_text(out, text)}")
