"""The commands of ``continuum-bench traces``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import cast

from continuum_analysis.compare.intervals import NO_VALUE
from continuum_analysis.compare.words import TextTable
from continuum_traces.exporters import EXPORTERS, export
from continuum_traces.importers.registry import LEFT_OUT, OWN, ImportLog, LeftOut, read_any, recognise
from continuum_traces.json_io import write_json
from continuum_traces.names import counted, which
from continuum_traces.programs.jsonl import TraceError, validate, write_programs
from continuum_traces.programs.stats import TABLE_2, Published, TraceStats, trace_stats
from continuum_traces.programs.synth import BUNDLED, Reading, bundled, fit, load_profile, mix, synthesize
from continuum_traces.programs.truth import COLUMNS
from continuum_traces.records import read_events, write_rows
from continuum_traces.records.run_dir import EVENTS, create
from continuum_traces.records.scheduler_timestamps import read_preview, write_preview
from continuum_traces.schema import Program

from continuum_bench.errors import BenchError
from continuum_bench.options.declare import number_in
from continuum_bench.options.traces import ConvertOptions, FitOptions, SynthOptions
from continuum_bench.show import print_json, print_line, print_notice, print_table

TARGETS = ("continuum", *EXPORTERS, "preview", "native")
"""The formats of ``traces convert --to``."""


def import_traces(source: Path, target: Path, form: str | None, overwrite: bool) -> int:
    check_free(target, overwrite)
    log = ImportLog(_print_left_out, print_notice)
    programs = _read_source(source, form, log)
    written = write_programs(target, programs, log.assumptions, log.truth, source=source.name)
    number = (f"{written} of " if log.programs_left_out else "") + counted(written + log.programs_left_out, "program")
    print_notice(f"{number} written to {target}; source: {log.formats()}")
    say(log)
    return 0


def check_free(target: Path, overwrite: bool) -> None:
    """Check that the file may be written.

    Raises:
        BenchError: the file exists, and ``overwrite`` is not set.
    """
    if target.exists() and not overwrite:
        raise BenchError(f"{target}: exists already; --overwrite replaces it")


def _check_plain(target: Path) -> None:
    """Check that a file that is not compressed has no name that says so.

    Raises:
        BenchError: its name ends in .gz.
    """
    if target.suffix == ".gz":
        raise BenchError(f"{target}: this file is written as plain JSON; choose a name without .gz")


def _read_source(source: Path, form: str | None, log: ImportLog) -> Iterator[Program]:
    """Yield the programs of a source.

    Raises:
        BenchError: there is none.
    """
    programs = read_any(source, form, log)
    first = next(programs, None)
    if first is None:
        raise BenchError(f"{source}: no program with token counts in it")
    yield first
    yield from programs


def _print_left_out(left_out: LeftOut) -> None:
    print_notice(f"left out: {left_out}")


def say(log: ImportLog) -> None:
    """Print what an import has to say: what else was left out, what was assumed, and what of the numbers is exact."""
    for line in log.further_left_out():
        print_notice(f"left out: {line}")
    for each in log.assumptions:
        if LEFT_OUT not in each.text:
            print_notice(f"assumed: {each}")
    if log.truth.programs:
        programs, turns = counted(log.truth.programs, "program"), counted(log.truth.turns, "turn")
        table = TextTable(("", *COLUMNS), [list(row) for row in log.truth.rows()])
        print_table(table, f"what the source counts, of {programs}, {turns}")


def synth_traces(options: SynthOptions) -> int:
    check_free(options.target, options.overwrite)
    number, seed = options.num_programs, options.seed
    kinds = _kinds(options.mix) if options.mix is not None else {options.profile: 1.0}
    parts = {kind: (share, _drawn(kind, max(1, round(number * share)), options)) for kind, share in kinds.items()}
    programs = list(parts[options.profile][1]) if options.mix is None else mix(parts, number, seed)
    note = f"{counted(number, 'program')}, seed {seed}, {options.tokens_reading} reading"
    note += f", lengths x {options.length_scale:g}"
    synthetic = all(program.synthetic for program in programs)
    source = options.mix or f"synthetic:{load_profile(options.profile).name}"
    write_programs(options.target, programs, source=source, note=note, synthetic=synthetic)
    print_notice(f"{note}: written to {options.target}")
    return 0


def _drawn(kind: str, number: int, options: SynthOptions) -> list[Program]:
    """Return programs drawn from a profile or, with ``--mix``, the programs of a trace file."""
    if options.mix is not None and Path(kind).is_file() and not _is_profile(kind):
        return list(read_any(Path(kind)))
    reading = cast(Reading, options.tokens_reading)
    return synthesize(load_profile(kind), number, options.seed, reading, options.length_scale)


def _is_profile(kind: str) -> bool:
    try:
        load_profile(kind)
    except TraceError:
        return False
    return True


def _kinds(text: str) -> dict[str, float]:
    """Read ``--mix``: the share of each kind, whose sum is 1.

    Raises:
        BenchError: the text is no list of kinds and shares.
    """
    kinds = dict[str, float]()
    for part in text.split(","):
        kind, _, share = part.rpartition(":")
        kinds[kind] = number_in(share)
        if not kind or not 0.0 < kinds[kind] <= 1.0:
            raise BenchError(f"--mix {part}: expected KIND:SHARE, a share above 0 and at most 1, for example chat:0.9")
    if abs(sum(kinds.values()) - 1.0) > 1e-6 or len(kinds) != text.count(",") + 1:
        raise BenchError(f"--mix {text}: the shares of different kinds add up to 1, not to {sum(kinds.values()):g}")
    return kinds


def fit_profile(options: FitOptions) -> int:
    check_free(options.target, options.overwrite)
    _check_plain(options.target)
    log = ImportLog(_print_left_out)
    profile = fit(
        list(_read_source(options.source, options.form, log)), options.name, cast(Reading, options.tokens_reading)
    )
    write_json(options.target, dataclasses.asdict(profile))
    print_notice(f"profile written to {options.target}")
    say(log)
    return 0


def validate_trace(source: Path) -> int:
    """Show the faults of a trace file. A source in another format is valid if programs can be imported from it."""
    recognised = None if source.is_dir() else recognise(source)
    if recognised is not None and recognised.importer.name == OWN:
        faults = validate(source)
        for fault in faults:
            print_line(str(fault))
        print_notice(f"{source}: {len(faults) or 'no'} fault{'' if len(faults) == 1 else 's'}")
        return 2 if faults else 0
    log = ImportLog(_print_left_out)
    number = sum(1 for _ in read_any(source, None, log))
    other = "a folder" if recognised is None else f"format {recognised}"
    can = f"{number} of {number + log.programs_left_out} programs can be imported (continuum-bench traces import)"
    print_notice(f"{source}: is in {other}, not a Continuum trace; {can}")
    say(log)
    return 0 if number else 2


def show_stats(source: str, form: str | None, as_json: bool) -> int:
    log = ImportLog(_print_left_out)
    statistics = trace_stats(bundled(source) if source in BUNDLED else read_any(Path(source), form, log))
    if as_json:
        print_json(dataclasses.asdict(statistics))
        return 0
    published = next((row for name, row in TABLE_2.items() if name in source.lower()), None)
    kind = "synthetic" if statistics.synthetic else "recorded"
    programs, turns = counted(statistics.programs, "program"), counted(statistics.turns_total, "turn")
    print_table(_overview(statistics, published), f"{source}: {programs}, {turns} ({kind})")
    if published is not None and published.played_scale != 1.0:
        mean = published.tokens.mean * published.played_scale
        print_line(f"The papers play Table 2's lengths x {published.played_scale:g}: {mean:,.0f} tokens in the mean.")
    print_line(f"slowest tenth of the gaps holds {statistics.slowest_tenth_share:.1%} of the time between turns")
    print_line(f"source: {shorten('; '.join(statistics.sources), 200)}")
    if statistics.sharing_a_prefix:
        tokens = f"{statistics.shared_prefix_tokens:,.0f} tokens"
        print_line(f"{statistics.sharing_a_prefix} programs share a prefix, {tokens}")
    print_table(_tool_table(statistics), "tools, most time first")
    say(log)
    return 0


def _overview(statistics: TraceStats, published: Published | None) -> TextTable:
    measured = (
        ("turns", statistics.turns, "turns"),
        ("time between turns", statistics.gap_ms, "gap_ms"),
        ("tokens, final context", statistics.tokens_context, "tokens"),
        ("tokens, summed over turns", statistics.tokens_cumulative, "tokens"),
        ("generated tokens per turn", statistics.output_tokens, ""),
    )
    rows = []
    for name, own, field in measured:
        form, paper = _time if field == "gap_ms" else _count, getattr(published, field, None)
        rows.append([name, *(form(value) for value in (own.mean, own.std))])
        rows[-1] += [form(paper.mean), form(paper.std)] if paper else [NO_VALUE, NO_VALUE]
    return TextTable(("per program or turn", "mean", "std", "Table 2 mean", "std"), rows)


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _time(milliseconds: float) -> str:
    """Return a time as ``0.4 ms``, ``113 ms``, ``1.67 s`` or ``4,201 s``."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.2g} ms"
    seconds = milliseconds / 1000
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _tool_table(statistics: TraceStats) -> TextTable:
    rows = []
    for tool in statistics.tools[:12]:
        times = map(_time, (tool.mean_ms, tool.p50_ms, tool.p90_ms, tool.p99_ms))
        share, slowest = f"{tool.share_of_time:.1%}", f"{tool.slowest_tenth_share:.1%}"
        rows.append((tool.name, str(tool.calls), share, *times, slowest))
    headings = ("tool", "calls", "share of time", "mean", "p50", "p90", "p99", "its slowest tenth holds")
    return TextTable(headings, rows)


def convert_trace(options: ConvertOptions) -> int:
    """Convert between formats. ``preview`` and ``native`` are the two formats of scheduler_timestamps."""
    source, target, to = options.source, options.target, options.to
    if to not in TARGETS:
        raise BenchError(f"--to {to}: {which(to, TARGETS)}")
    if to != "native":  # the target of native is a run directory
        check_free(target, options.overwrite)
    if to == "preview":
        _check_plain(target)
        if not source.is_dir() and source.name != EVENTS:
            raise BenchError(f"{source}: --to preview converts a run directory or its {EVENTS}")
        write_preview(target, read_events(source if source.is_dir() else source.parent))
    elif to == "native":
        rows = read_preview(source)
        write_rows(create(target) / EVENTS, rows)
    elif to == "continuum":
        return import_traces(source, target, options.form, options.overwrite)
    else:
        log = ImportLog(_print_left_out)
        export(target, list(_read_source(source, options.form, log)), to)
        say(log)
    print_notice(f"written to {target}")
    return 0
