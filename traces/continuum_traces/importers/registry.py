"""Read trace files of every known format. The caller names the format, or it is recognised from the files.

How to write an importer
------------------------
A module of this folder with a tuple ``IMPORTERS`` of ``importer.Importer`` is found by itself; nothing is registered
elsewhere. What is particular about the format is in it, and nothing else::

    def read_mine(file: Source) -> Iterator[Imported]:
        \"\"\"Mine (who writes it): one run per line.\"\"\"          # the row of the page of formats
        for where, run in file.rows("run_id", "calls"):            # lines, a list, one object, CSV: all the same
            requests = [usage_of(where, call) for call in listed(where, run, "calls", dict)]
            file.assume("sub-agent", "left out", count_of(where, run, "sub_agents", 0))
            file.assumptions.add(*differing_totals(run["run_id"], {"requests": run.get("n_calls")}, requests))
            yield Imported(Program(run["run_id"], (), "mine", run.get("model")), requests)

    IMPORTERS = (Importer("mine", read_mine, (Signs({"run_id": str, "calls": list, "calls.usage": dict}),)),)

- ``Source`` is one file: ``rows``, ``object`` and ``text`` read it, ``assume`` notes what was assumed or left out. It
  prints as its path, which begins every message. ``Source.path`` says in which folder it is (``subagents/``).
- ``Imported`` is a program: who it is (``parent_id`` names the program that started it), and one ``RequestUsage`` for
  each request: lengths, tools that ran after it with their seconds, other seconds. Turns, what a prompt keeps of the
  prompt before, shared prefixes, unknown tool times are worked out for all formats alike (``usage.turns_from_usage``).
- A program without requests is left out by name, for the reason ``Imported.empty``.
- Several files to one program, or children in other files than their parents: ``read`` yields parts of any type (of one
  file each), and ``Importer.join`` makes programs of the parts of all files.
- ``Signs`` are fields of a row that are there (at least two), or that another format has. The format that shows most
  signs is taken; two that show equally many are an error that names both.
- Any fault raises ``TraceError`` with file, line and field; the helpers of ``usage.py`` do it. ``ValueError``,
  ``KeyError`` and the like are turned into one. In a folder such a file is left out by name, alone.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import groupby, islice
from pathlib import Path
from textwrap import shorten
from typing import Any

from continuum_traces import importers
from continuum_traces.grouped import grouped
from continuum_traces.importers.block_ids import SharedBlocks
from continuum_traces.importers.described import Imported, RequestUsage
from continuum_traces.importers.importer import Importer, Signs, Source, head_of
from continuum_traces.importers.same_run import Read, without_repeats
from continuum_traces.importers.shared_prefix import with_shared_prefixes
from continuum_traces.names import which
from continuum_traces.programs.assumptions import NO_DURATION, Assumptions, from_header, of_tool_times
from continuum_traces.programs.jsonl import TraceError, read_header, read_programs, text_lines
from continuum_traces.programs.lines import is_sound, program_line, read_program, read_turn, turn_line
from continuum_traces.programs.truth import CACHED, OUTPUT, PROMPT, TOOLS, Truth
from continuum_traces.programs.truth import from_header as truth_of
from continuum_traces.schema import TRACE_SCHEMA, Program

OWN = "continuum"
LEFT_OUT = "left out of the source"
_FAULTS = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What a reader raises at a value that it did not expect, besides ``TraceError``."""


def _read_trace(file: Source) -> Iterator[Program]:
    """Continuum's own format: programs and turns, one a line."""
    file.assumptions.add(*(each for each in from_header(read_header(file.path)) if each.text != NO_DURATION.text))
    yield from read_programs(file.path)


def _reads_of_trace(programs: Iterable[Program], header: Mapping[str, Any]) -> Iterator[Read]:
    """Yield programs of our own format. What is exact of them is in the header of their file: the first has it."""
    truth = truth_of(header)
    for program in programs:
        yield Read(program, OWN, frozenset(), truth)
        truth = None


def _all_importers() -> dict[str, Importer]:
    trace = Importer(OWN, _read_trace, (Signs({"kind": "header", "schema": TRACE_SCHEMA}, more=("version",)),))
    modules = [import_module(f"{importers.__name__}.{each.name}") for each in pkgutil.iter_modules(importers.__path__)]
    rest = [each for module in modules for each in getattr(module, "IMPORTERS", ())]
    return {each.name: each for each in (trace, *sorted(rest, key=lambda each: each.name))}


IMPORTERS = _all_importers()

_LOGS = Importer(
    "a log of requests",
    lambda file: iter(()),
    (
        Signs({"ttfts": list, "input_lens": list}),
        Signs({"benchmarks": list, "metadata": dict}),
        Signs({"arrival_time": object, "input_toks": object}),
    ),
)
"""The request logs that ``continuum-bench traces import-log`` reads."""
_INPUTS = Importer("aiperf's inputs", lambda file: iter(()), (Signs({"session_id": str, "payloads": list}),))
_NO_TRACES = (
    (_LOGS, "a log of requests, not of programs; use continuum-bench traces import-log {path}"),
    (_INPUTS, "aiperf's inputs, without answers and times; read the profile_export.jsonl that is beside them"),
)
"""Files that are known, but no traces, with what to do."""
_KNOWN = (*IMPORTERS.values(), *(each for each, _ in _NO_TRACES))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A program, or the files of a folder, that a reader left out."""

    where: str
    reason: str
    program_id: str | None = None

    def __str__(self) -> str:
        return self.reason if self.reason.startswith(f"{self.where}:") else f"{self.where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Recognised:
    """Why a file is taken to be of a format."""

    importer: Importer
    signs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.importer.name} (it has {', '.join(self.signs[:5])})" if self.signs else self.importer.name


@dataclass(slots=True)
class ImportLog:
    """What an import has to say. It is complete once all programs were read."""

    on_left_out: Callable[[LeftOut], None] = lambda left_out: None
    """Called at once for the first program or file that is left out for a reason."""
    on_progress: Callable[[str], None] = lambda line: None
    """Called with a line from time to time while a long file is read."""
    recognised: dict[str, Recognised] = field(default_factory=dict)
    """Each format that was read, with the signs of its first file."""
    files: Counter[str] = field(default_factory=Counter)
    """The number of files read of each format."""
    assumptions: Assumptions = field(default_factory=Assumptions)
    truth: Truth = field(default_factory=Truth)
    """How much of the programs is exact, estimated and unknown."""
    programs_left_out: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """How often something was left out for each reason."""

    def leave_out(self, where: object, reason: object, program_id: str | None = None, files: int = 1) -> None:
        left_out = LeftOut(str(where), str(reason).removeprefix(f"{where}: "), program_id)
        self.programs_left_out += program_id is not None
        number, thing = (files, "file") if program_id is None else (1, "program")
        self.assumptions.assume(thing, LEFT_OUT, number, example=left_out)
        self.reasons[left_out.reason] += 1
        if self.reasons[left_out.reason] == 1:
            self.on_left_out(left_out)

    def further_left_out(self) -> list[str]:
        """Return a line for each reason for which more than the first was left out."""
        return [f"{number - 1:,} more: {reason}" for reason, number in self.reasons.items() if number > 1]

    def formats(self) -> str:
        """Return the formats that were read, with the signs by which they were recognised."""
        names = (f"{each} in {self.files[name]} files" for name, each in self.recognised.items())
        alone = len(self.recognised) == 1 and self.files.total() == 1
        return "; ".join(map(str, self.recognised.values()) if alone else names)


def read_any(path: Path, form: str | None = None, log: ImportLog | None = None) -> Iterator[Program]:
    """Read the programs of a file in any known format, or of all such files in a folder.

    In a folder, a file that is no trace or has a fault is left out, and the log says why.

    Args:
        path: the file or folder.
        form: a key of ``IMPORTERS``; None: recognise the format, in a folder for each file.
        log: gets what was left out and what was assumed.

    Raises:
        TraceError: the format is unknown or not recognised, the file has a fault, or no file of a folder can be read.
    """
    if form is not None and form not in IMPORTERS:
        raise TraceError(f"{path}: unknown format {form!r}; {which(form, IMPORTERS)}")
    log = ImportLog() if log is None else log
    times: Counter[str] = Counter()
    reads: Iterable[Read] = (
        read for importer, files in _sources(path, form, log) for read in _programs(importer, files, log, path.is_dir())
    )
    if path.is_dir():
        reads = without_repeats(list(reads), log.assumptions)
    for name, group in groupby(_noted(reads, log.truth), key=lambda read: read.form):
        for program in _unique((read.program for read in group), times, name == OWN and not path.is_dir()):
            if any(turn.tool_calls for turn in program.turns):
                log.assumptions.add(of_tool_times([program]))
            yield program
    if path.is_dir() and not times and not log.programs_left_out:
        raise TraceError(f"{path}: no file in it can be read")


def _noted(reads: Iterable[Read], truth: Truth) -> Iterator[Read]:
    for read in reads:
        if read.truth is not None:
            truth.include(read.truth)
        yield read


def _truth(program: Program, requests: Iterable[RequestUsage]) -> Truth:
    """Return what of a program's numbers its source counted."""
    truth = Truth(1, len(program.turns))
    for turn, request in zip(program.turns, (each for each in requests if each.prompt_tokens > 0), strict=False):
        for name in (PROMPT, OUTPUT):
            truth.add(name, request.estimated.get(name))
        truth.add(CACHED, None, turn.cached_tokens is not None)
        for call in turn.tool_calls:
            truth.add(TOOLS, request.estimated.get(TOOLS), call.duration_s is not None)
    return truth


def _programs(importer: Importer, files: Sequence[Path], log: ImportLog, in_folder: bool) -> Iterator[Read]:
    """Yield the programs of files of one format, checked as strictly as files of our own. A single file is read twice,
    so that its programs need not be held; of formats that join parts, and of folders, all are."""
    if importer.name == OWN and not in_folder:
        yield from _reads_of_trace(_read_trace(Source(files[0], log.assumptions)), read_header(files[0]))
        return
    if importer.join is None and not in_folder:
        first, second = Source(files[0], log.assumptions, log.on_progress), Source(files[0])
        yield from _described(importer, files, log, False, lambda: importer.read(second), importer.read(first))
        return
    if importer.name == OWN:
        for file in files:
            yield from _reads_of_trace(_parts(importer, file, log, in_folder), read_header(file))
        return
    parts = [part for file in files for part in _parts(importer, file, log, in_folder)]
    try:
        described = parts if importer.join is None else list(importer.join(parts, log.assumptions))
    except _FAULTS as error:
        raise _fault(importer, files, error) from error
    yield from _described(importer, files, log, in_folder, lambda: described, described)


def _described(
    importer: Importer,
    files: Sequence[Path],
    log: ImportLog,
    in_folder: bool,
    again: Callable[[], Iterable[Imported]],
    described: Iterable[Imported],
) -> Iterator[Read]:
    """Yield programs as ``described``, which ``again`` yields once more."""
    where = ", ".join(map(str, files[:3]))
    try:
        noted: list[tuple[Sequence[str], float | None]] = []
        blocks = SharedBlocks(_noting(described, noted), log.assumptions)
        messages = [each for each, _ in noted]
        start_s = min((at_s for _, at_s in noted if at_s is not None), default=0.0)
        pairs: Iterable[tuple[Program, Imported]] = (
            (blocks.program(n, each, log.assumptions), replace(each, messages=())) for n, each in enumerate(again())
        )
        if any(messages):
            programs, rest = zip(*pairs, strict=True)
            pairs = zip(with_shared_prefixes(programs, messages, log.assumptions), rest, strict=True)
        for program, each in pairs:
            reason = _reason(program, each.empty)
            if reason is None:
                ids = frozenset(request.response_id for request in each.requests) - {""}
                if start_s > 1e9 and program.arrival_s is not None:  # all arrivals are seconds since 1970
                    program = replace(program, arrival_s=round(program.arrival_s - start_s, 6))
                yield Read(program, importer.name, ids, _truth(program, each.requests))
            elif in_folder or not program.turns:
                log.leave_out(f"{where}: program {program.program_id!r}", reason, program.program_id)
            else:
                raise TraceError(f"{where}: program {program.program_id!r}: {reason}")
    except _FAULTS as error:
        raise _fault(importer, files, error) from error


def _noting(described: Iterable[Imported], noted: list[tuple[Sequence[str], float | None]]) -> Iterator[Imported]:
    for each in described:
        noted.append((each.messages, each.program.arrival_s))
        yield each


def _parts(importer: Importer, file: Path, log: ImportLog, in_folder: bool) -> list[Any]:
    """Return what the importer reads of one file; nothing, if it has a fault and is one of a folder."""
    source = Source(file, on_progress=log.on_progress)
    try:
        parts = list(importer.read(source))
    except (TraceError, *_FAULTS) as error:
        fault = error if isinstance(error, TraceError) else _fault(importer, [file], error)
        if not in_folder:
            raise fault from error
        log.leave_out(file, fault)
        return []
    log.assumptions.add(*source.assumptions)
    log.files[importer.name] += in_folder
    return parts


def _fault(importer: Importer, files: Sequence[Path], error: Exception) -> TraceError:
    where = ", ".join(map(str, files[:3]))
    return TraceError(f"{where}: not in the format {importer.name} ({type(error).__name__}: {error})")


def _reason(program: Program, empty: str) -> str | None:
    """Return why a program cannot be used, or None; ``empty`` is why it has no turns."""
    if not program.turns:
        return empty
    if is_sound(program):
        return None
    _, faults = read_program(program_line(program))
    for index, turn in enumerate(program.turns):
        faults += [replace(f, field=f"turn {index}: {f.field}") for f in read_turn(turn_line("", index, turn))[1]]
    return f"{faults[0].field}: {faults[0].message}" if faults else None


def _unique(programs: Iterator[Program], times: Counter[str], own: bool) -> Iterator[Program]:
    """Yield the programs with different ids: a task that was run several times is ``TASK#2`` the second time, and its
    sub-agents' parent, too."""
    latest: dict[str, str] = {}
    for program in programs:
        name = program.program_id
        times[name] += 1
        latest[name] = name if own or times[name] == 1 else f"{name}#{times[name]}"
        parent = latest.get(program.parent_id or "", program.parent_id)
        same = (name, program.parent_id) == (latest[name], parent)
        yield program if same else replace(program, program_id=latest[name], parent_id=parent)


def _sources(path: Path, form: str | None, log: ImportLog) -> Iterator[tuple[Importer, list[Path]]]:
    """Yield each importer with the files that it reads."""
    if not path.is_dir():
        recognised = recognise(path) if form is None else Recognised(IMPORTERS[form])
        log.recognised[recognised.importer.name] = recognised
        log.files[recognised.importer.name] = 1
        yield recognised.importer, [path]
        return
    pairs: list[tuple[Recognised, Path]] = []
    strangers: list[Path] = []
    for file in _files(path, log):
        try:
            recognised = recognise(file)
        except NotRecognised:
            strangers.append(file)
        except TraceError as error:
            log.leave_out(file, error)
        else:
            pairs += [(recognised, file)] if form in (None, recognised.importer.name) else []
            strangers += [] if form in (None, recognised.importer.name) else [file]
    if not pairs:
        raise TraceError(f"{path}: no file in a known format in it; there are: {form or ', '.join(IMPORTERS)}")
    if strangers:
        names = ", ".join(str(file.relative_to(path)) for file in strangers)
        log.leave_out(f"{path}: {len(strangers)} files", f"no traces: {shorten(names, 200)}", None, len(strangers))
    for recognised, _ in pairs:
        log.recognised.setdefault(recognised.importer.name, recognised)
    for name, files in grouped((recognised.importer.name, file) for recognised, file in pairs).items():
        yield IMPORTERS[name], files


def _files(folder: Path, log: ImportLog) -> Iterator[Path]:
    """Yield the files of a folder in the order of their names; a file that links to another of them is left out."""
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    originals = {file.resolve() for file in files if not file.is_symlink()}
    for file in files:
        if file.is_symlink() and file.resolve() in originals:
            log.leave_out(file, f"a link to {file.resolve().name}, which is in the folder, too")
        else:
            yield file


LOG_LINES = 1000
"""Lines of a text that are searched for a request that vLLM logged."""
VLLM_LOG = (
    "vLLM's log of requests, which has neither prompts nor token counts; record requests with continuum-bench serve "
    "--record DIR, or on their way with continuum-proxy"
)

NEAREST = (
    "session_id, request_id, timestamp (ms), input_length (the whole prompt), output_length, tool_wait_ms (the time of "
    "the tools before the request)"
)
"""The fields of a request, as ``agentic-mooncake`` reads them. Any log of requests can be written so."""


class NotRecognised(TraceError):
    """A file has the signs of no known format."""


def recognise(path: Path) -> Recognised:
    """Recognise the format of a file from its kind and its first rows.

    Raises:
        NotRecognised: the file has the signs of no format.
        TraceError: the file cannot be read, or has as many signs of one format as of another.
    """
    archive = next((each for each in IMPORTERS.values() if each.is_file is not None and each.is_file(path)), None)
    if archive is not None:
        return Recognised(archive)
    try:
        rows = head_of(path, lambda row: any(each.seen(path, [row]) for each in _KNOWN))
    except TraceError as error:
        if _is_vllm_log(path):
            raise NotRecognised(f"{path}: {VLLM_LOG}") from error
        if _is_text(path):
            raise NotRecognised(str(error)) from error
        raise
    ranked = sorted(
        (Recognised(each, each.seen(path, rows)) for each in _KNOWN),
        key=lambda each: -len(each.signs),
    )
    best, second = ranked[:2]
    if not best.signs:
        raise NotRecognised(
            f"{path}: format not recognised; name it with --format: {', '.join(IMPORTERS)}. You can convert a log in "
            f"another format: one JSON line for each request, with {NEAREST}; it is read as agentic-mooncake"
        )
    for no_trace, advice in _NO_TRACES:
        if best.importer is no_trace:
            raise NotRecognised(f"{path}: {advice.format(path=path)}")
    if len(best.signs) == len(second.signs):
        raise TraceError(f"{path}: can be {best} or {second}; name the format with --format")
    return best


def _is_vllm_log(path: Path) -> bool:
    with suppress(TraceError):
        return any("] Received request " in line for _, line in islice(text_lines(path), LOG_LINES))
    return False


def _is_text(path: Path) -> bool:
    """Return whether the name is that of no data file: a README, a log, a patch."""
    return not {".json", ".jsonl", ".traj", ".csv", ".tsv", ".gz", ".xz"} & set(path.suffixes)
