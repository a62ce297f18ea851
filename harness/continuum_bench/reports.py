"""``analyze``, ``report``, ``compare``, ``selfcheck``: read recorded files, print tables, write pages."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from continuum_analysis.compare.intervals import number_text
from continuum_analysis.compare.latency import caption as latency_caption
from continuum_analysis.compare.latency import latency_table
from continuum_analysis.compare.runs import (
    Run,
    by_load,
    load_runs,
    main_band,
    name_variants,
    read_run_metrics,
    records_at,
)
from continuum_analysis.compare.self_check import self_check
from continuum_analysis.compare.summary import Summary, summarize_runs
from continuum_analysis.compare.words import TextTable, cause_table, verdict
from continuum_analysis.metrics import METRICS, Metric, completion_times
from continuum_analysis.records.misses import cause_rows
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.records.unknown import cannot_be_known
from continuum_analysis.report.page import write_joint_report, write_report
from continuum_analysis.slo import read_slo, slo_metrics, slo_table, slo_text, with_slo
from continuum_analysis.sweep.tables import SWEEP, read_sweep, write_tables
from continuum_traces.names import which
from continuum_traces.run_dir import ENGINE, MANIFEST, PROGRAMS, read_verdicts

from continuum_bench.gate import apply_conditions, conclude, read_conditions, side_by_side
from continuum_bench.options.gate import GateOptions, SloOptions
from continuum_bench.show import modelled, print_notice, print_summary, print_table, print_verdict

_NO_SLO, _NO_GATE = SloOptions(), GateOptions()


def show_metrics(paths: Sequence[Path], as_json: bool, slo: SloOptions = _NO_SLO) -> int:
    runs = _judged(_runs(paths, slo.alone), slo)
    if as_json:
        data = {
            str(run.path): {
                **run.metrics.values,
                "pins_by_ending": run.metrics.pins_by_ending,
                "misses": [asdict(row) for row in cause_rows(run.metrics.facts.returns)],
                "unfinished": run.metrics.facts.unfinished,
                "failed": run.metrics.facts.failed,
                "errors_by_kind": run.metrics.errors_by_kind,
                **_verdicts(run.path),
            }
            for run in runs
        }
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
        return 0
    rows = (*METRICS, *(slo_metrics(read_slo(slo.slo)) if slo.slo else ()))
    for run in runs:
        _print_metrics(run, rows)
    return 0


def _runs(paths: Sequence[Path], alone: Path | None = None) -> list[Run]:
    """All runs in these directories, complete or not. Each is read once. ``alone``: the run of the same programs one at
    a time, to which slowdowns are measured."""
    alone_s = None if alone is None else completion_times(alone)
    folders = dict.fromkeys(run for path in paths for run in (records_at(path) or [path]))
    for folder in folders:
        if (folder / MANIFEST).exists() and not any((folder / name).exists() for name in (ENGINE, PROGRAMS)):
            print_notice(f"{folder}: this run was cut short; it is in no summary, and its metrics cover a part")
    return name_variants([read_run_metrics(folder, alone_s) for folder in folders])


def _verdicts(folder: Path) -> dict[str, dict[str, bool]]:
    """``passed``, by program, for real agents whose programs were tested; empty for other runs."""
    verdicts = read_verdicts(folder) if (folder / PROGRAMS).exists() else {}
    return {"passed": verdicts} if verdicts else {}


def _print_metrics(run: Run, metrics: Sequence[Metric]) -> None:
    measured = run.metrics
    rows = [[m.name, number_text(measured.values[m.name], "{:.6g}"), m.unit, m.formula] for m in metrics]
    table = TextTable(("metric", "value", "unit", "what it is"), rows)
    print_table(table, str(run.path), words=("value", "unit", "what it is"))
    if measured.errors_by_kind:
        print_notice("errors by kind: " + ", ".join(f"{k} {v}" for k, v in measured.errors_by_kind.items()))
    if measured.pins_by_ending:
        print_notice("pins by ending: " + ", ".join(f"{k} {v}" for k, v in measured.pins_by_ending.items()))
    for verdicts in _verdicts(run.path).values():
        failing = ", ".join(name for name, passed in verdicts.items() if not passed)
        said = f"{sum(verdicts.values())} of {len(verdicts)} programs pass their benchmark's test"
        print_notice(f"{said}; these do not: {failing}" if failing else said)
    if measured.facts.unfinished:
        print_notice(f"unfinished programs: {', '.join(measured.facts.unfinished)}")
    if measured.facts.failed:
        print_notice(f"failed programs: {', '.join(measured.facts.failed)}")


def show_misses(paths: Sequence[Path]) -> int:
    """Why returning turns found their KV or not, a table for each run."""
    for run in _runs(paths):
        returns = run.metrics.facts.returns
        if returns:
            print_table(cause_table(returns), f"{run.path}: {len(returns)} returning turns", words=("meaning",))
        for sentence in cannot_be_known(run.metrics.facts):
            print_notice(f"{run.path}: {sentence}")
    return 0


def write_run_table(paths: Sequence[Path], name: str, form: str, out: Path | None, slo: SloOptions = _NO_SLO) -> int:
    """A table of runs for another program: see ``continuum_analysis.tables``."""
    from continuum_analysis.tables import TABLES, write_table  # noqa: PLC0415 - pandas is slow to import

    if name not in TABLES:
        raise AnalysisError(f"--table {name}: {which(name, TABLES)}")
    return _wrote(write_table(TABLES[name](_judged(_runs(paths, slo.alone), slo)), form, out), out)


def write_reports(paths: Sequence[Path], out: Path | None, images: bool, baseline: str | None = None) -> int:
    """Write a page for each directory, or the page ``out`` about all of them."""
    if out is not None:
        written = [write_joint_report(paths, out, baseline)]
    else:
        written = [_report_of(path, baseline) for path in paths]
    for page in written:
        print_notice(f"report: {page}")
    if images:
        from continuum_analysis.report.images import write_report_images  # noqa: PLC0415 - matplotlib is slow to import

        for group in [list(paths)] if out is not None else [[path] for path in paths]:
            folder = (out.parent if out is not None else group[0]) / "images"
            print_notice(f"images: {len(write_report_images(group, folder))} files in {folder}")
    return 0


def _report_of(path: Path, baseline: str | None) -> Path:
    """Writes the report of an experiment, or of a sweep with its tables and plot."""
    if (path / SWEEP).exists():
        from continuum_analysis.sweep.report import write_sweep_report  # noqa: PLC0415 - matplotlib is slow to import

        sweep = read_sweep(path)
        write_tables(sweep)
        return write_sweep_report(sweep)
    return write_report(path, baseline)


def show_comparison(
    paths: Sequence[Path],
    as_json: bool,
    baseline: str | None = None,
    slo: SloOptions = _NO_SLO,
    gate: GateOptions = _NO_GATE,
) -> int:
    """Runs of all the directories side by side: seeds merged, a table for each load. Returns the exit code."""
    conditions = read_conditions(gate)
    directories = _directories(paths, slo)
    # With conditions, directories of the same arms and seeds are versions of one experiment, and not merged.
    groups = [[path] for path in directories] if gate.fail_if and side_by_side(directories) else [list(directories)]
    summaries = [
        (", ".join(map(str, group)), found) for group in groups for found in [_summaries(directories, group, baseline)]
    ]
    outcomes = apply_conditions(directories, conditions, baseline)
    if as_json:
        sys.stdout.write(_comparison_json([each for _, found in summaries for each in found.items()]))
    else:
        for caption, found in summaries:
            _print_comparison(caption, found, slo)
    return conclude(outcomes, gate)


def _print_comparison(caption: str, summaries: Mapping[float | None, Summary], slo: SloOptions) -> None:
    for jps, summary in summaries.items():
        print_summary(summary, caption if len(summaries) == 1 else f"{caption}: {jps:g} programs/s")
        latencies = latency_table(summary)
        if latencies is not None:
            print_table(latencies, f"{latency_caption(summary)}{modelled(summary)}", words=("",))
        if slo.slo is not None:
            limits = slo_text(read_slo(slo.slo))
            print_table(slo_table(summary), f"Goodput: {limits}{modelled(summary)}")
        for warning in summary.warnings:
            print_notice(f"warning: {warning}")
        print_verdict(verdict(summary))


def write_comparison(
    paths: Sequence[Path], form: str, out: Path | None, baseline: str | None = None, slo: SloOptions = _NO_SLO
) -> int:
    from continuum_analysis.tables import summary_table, summary_words, write_table, write_text  # noqa: PLC0415 - as above

    summaries = _summaries(directories := _directories(paths, slo), list(directories), baseline)
    if form == "json":
        return _wrote(write_text(_comparison_json(list(summaries.items())), out), out)
    table = summary_words(summaries) if form in ("latex", "markdown") else summary_table(summaries)
    return _wrote(write_table(table, form, out), out)


def _comparison_json(summaries: Sequence[tuple[float | None, Summary]]) -> str:
    """``--json`` and ``--format json``: what summary.json holds, a list of it where there are several loads."""
    data = [{"jps": jps, **summary.to_json()} for jps, summary in summaries]
    return json.dumps(data[0] if len(data) == 1 else data, indent=2) + "\n"


def show_self_check(path: Path, against: Path | None, per_comparison: int, as_json: bool) -> int:
    """Print how often the comparison sees a difference that does not exist."""
    rates = self_check(
        main_band(load_runs(path)), main_band(load_runs(against)) if against is not None else [], per_comparison
    )
    if as_json:
        sys.stdout.write(json.dumps([asdict(rate) for rate in rates], indent=2) + "\n")
        return 0
    headings = ("policy", "pairs", "95% interval", "separate", "alarms", "alarm rate", "claims", "no interval")
    rows = [
        [rate.policy, rate.pairs, rate.method, str(rate.separate), str(rate.alarms)]
        + [f"{share:.1%}" for share in (rate.rate, rate.claims, rate.no_interval)]
        for rate in rates
    ]
    print_table(TextTable(headings, rows), f"{path}: a policy against itself", words=("pairs", "95% interval"))
    print_notice(
        "separate: comparisons that share no run, and the alarms among them; the rate is over random dealings of the "
        "same runs. An honest 95% interval alarms in 5.0%; claims: alarms that the verdict would not call equal to 1%"
    )
    return 0


def _directories(paths: Sequence[Path], slo: SloOptions) -> dict[Path, list[Run]]:
    """The runs of each directory, with the metrics of the SLO."""
    _refuse_twice(paths)
    limits = None if slo.slo is None else read_slo(slo.slo)
    alone_s = None if slo.alone is None else completion_times(slo.alone)
    loaded = {path: load_runs(path, alone_s) for path in paths}
    named = name_variants([run for each in loaded.values() for run in each])
    runs = iter(named if limits is None else with_slo(named, limits))
    return {path: list(islice(runs, len(each))) for path, each in loaded.items()}


def _refuse_twice(paths: Sequence[Path]) -> None:
    """Raises:
    AnalysisError: one directory, by two names or by one.
    """
    for number, path in enumerate(paths):
        if path.resolve() in [before.resolve() for before in paths[:number]]:
            raise AnalysisError(f"{path}: given twice")


def _judged(runs: list[Run], slo: SloOptions) -> list[Run]:
    return runs if slo.slo is None else with_slo(runs, read_slo(slo.slo))


def _summaries(
    directories: Mapping[Path, Sequence[Run]], paths: Sequence[Path], baseline: str | None
) -> dict[float | None, Summary]:
    loads = by_load([run for path in paths for run in directories[path]])
    whole = paths[0] if len(paths) == 1 and len(loads) == 1 else None
    return {jps: summarize_runs(whole, runs, baseline) for jps, runs in loads.items()}


def _wrote(text: str, out: Path | None) -> int:
    sys.stdout.write(text)
    if out is not None:
        print_notice(f"table: {out}")
    return 0
