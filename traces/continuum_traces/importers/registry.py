"""Read trace files of every known format. The caller names the format, or it is recognised from the file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any

from continuum_traces.importers.bfcl import read_bfcl
from continuum_traces.importers.block_ids import programs_of
from continuum_traces.importers.dynamo import read_dynamo
from continuum_traces.importers.mini_swe import is_archive, read_mini_swe
from continuum_traces.importers.numeric import read_numeric
from continuum_traces.importers.openhands import read_openhands
from continuum_traces.importers.serving import (
    read_agentic_mooncake,
    read_mlperf_agentic,
    read_mooncake,
    read_openai_messages,
    read_sharegpt,
    read_weka,
)
from continuum_traces.importers.shared_prefix import with_shared_prefixes
from continuum_traces.importers.tables import columns_of, read_azure, read_burstgpt
from continuum_traces.importers.terminal_bench import read_terminal_bench
from continuum_traces.jsonl import TraceError, read_programs, text_lines, whole_text
from continuum_traces.lines import program_line, read_program, read_turn, turn_line
from continuum_traces.names import which
from continuum_traces.schema import TRACE_SCHEMA, Program

OWN = "continuum"

_FORMATS: tuple[tuple[str, Callable[..., Iterator[Any]], tuple[set[str], ...]], ...] = (
    (OWN, read_programs, ()),
    ("numeric", read_numeric, ({"program_id", "prompt_tokens", "output_tokens"},)),
    ("mini-swe-agent", read_mini_swe, ({"messages", "trajectory_format"}, {"messages", "info"})),
    ("openhands", read_openhands, ({"history", "instance_id"},)),
    ("terminal-bench", read_terminal_bench, ({"schema_version", "steps"},)),
    ("bfcl", read_bfcl, ({"id", "input_token_count", "output_token_count"},)),
    ("agentic-mooncake", read_agentic_mooncake, ({"request_id", "session_id", "input_length", "output_length"},)),
    ("mooncake", read_mooncake, ({"input_length", "output_length"},)),
    ("weka", read_weka, ({"requests"},)),
    ("mlperf-agentic", read_mlperf_agentic, ({"conversation_id", "role"},)),
    ("dynamo", read_dynamo, ({"timestamp", "event"}, {"schema", "event_type"})),
    ("sharegpt", read_sharegpt, ({"conversations"},)),
    ("openai-messages", read_openai_messages, ({"messages"},)),
    ("azure", read_azure, ({"TIMESTAMP", "ContextTokens", "GeneratedTokens"},)),
    ("burstgpt", read_burstgpt, ({"Timestamp", "Request tokens", "Response tokens"},)),
)
"""Each format with its reader and the fields by which it is recognised; of two that fit, the first counts."""
READERS = {name: reader for name, reader, _ in _FORMATS}
"""The reader of each format. It yields what the file says of each program; that of our own format yields programs."""

TOGETHER = frozenset({"dynamo"})
"""Formats whose files in a folder are one trace: their readers take all of them."""

_OF_LOGS = frozenset({"ttfts", "request_throughput", "benchmarks", "arrival_time", "input_toks", "metrics"})
"""Fields of the request logs that ``continuum-bench validate`` reads."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A program, or the files of a folder, that a reader left out."""

    where: str
    reason: str
    program_id: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


OnSkip = Callable[[LeftOut], None]


def read_any(path: Path, form: str | None = None, on_skip: OnSkip = lambda left_out: None) -> Iterator[Program]:
    """Read the programs of a file in any known format, or of all such files in a folder.

    Args:
        path: the file or folder.
        form: a key of ``READERS``; None: recognise the format, in a folder for each file.
        on_skip: called for each program that is left out, and for the files that are no traces.

    Raises:
        TraceError: the format is unknown or not recognised, or a file has a fault.
    """
    if form is not None and form not in READERS:
        raise TraceError(f"{path}: unknown format {form!r}; {which(form, READERS)}")
    times: Counter[str] = Counter()
    for name, files in _sources(path, form, on_skip):
        for program in _read(name, files):
            program_id = program.program_id
            times[program_id] += 1
            if not program.turns:
                on_skip(LeftOut(f"{path}: program {program_id!r}", "no answer has token counts", program_id))
            elif times[program_id] > 1 and name != OWN:  # a task that was run several times
                yield replace(program, program_id=f"{program_id}#{times[program_id]}")
            else:
                yield program


def _read(name: str, files: list[Path]) -> Iterator[Program]:
    """Read files of a foreign format as strictly as files of our own."""
    if name == OWN:
        yield from read_programs(files[0])
        return
    try:
        batches = [files] if name in TOGETHER else [[file] for file in files]
        found = [list(READERS[name](*batch)) for batch in batches]
        programs = [program for each in found for program in programs_of(each)]
        for program in with_shared_prefixes(programs, [each.messages for each in chain(*found)]):
            _check(files, program)
            yield program
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise TraceError(f"{_named(files)}: not in the format {name} ({type(error).__name__}: {error})") from error


def _check(files: list[Path], program: Program) -> None:
    _, faults = read_program(program_line(program))
    for index, turn in enumerate(program.turns):
        faults += [replace(f, field=f"turn {index}: {f.field}") for f in read_turn(turn_line("", index, turn))[1]]
    if faults:
        where = f"{_named(files)}: program {program.program_id!r}"
        raise TraceError(f"{where}: {faults[0].field}: {faults[0].message}")


def _named(files: list[Path]) -> str:
    return ", ".join(map(str, files[:3]))


def _sources(path: Path, form: str | None, on_skip: OnSkip) -> Iterator[tuple[str, list[Path]]]:
    """Yield the format and the paths of files that are read together."""
    if not path.is_dir():
        yield form or detect(path), [path]
        return
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    forms = {file: name for file in files if (name := _recognised(file)) and form in (None, name)}
    if not forms:
        raise TraceError(f"{path}: no file in a known format in it; there are: {form or ', '.join(READERS)}")
    if len(forms) < len(files):
        others = ", ".join(str(file.relative_to(path)) for file in files if file not in forms)
        on_skip(LeftOut(f"{path}: {len(files) - len(forms)} files", f"no traces: {shorten(others, 200)}"))
    for name in dict.fromkeys(forms.values()):
        same = [file for file, other in forms.items() if other == name]
        yield from [(name, [file]) for file in same] if name == OWN else [(name, same)]


def _recognised(file: Path) -> str | None:
    try:
        return detect(file)
    except TraceError:
        return "mini-swe-agent" if file.name.endswith(".traj.json") else None


def detect(path: Path) -> str:
    """Recognise the format of a file from its kind and its first line.

    Raises:
        TraceError: the file has no known format.
    """
    if is_archive(path):
        return "mini-swe-agent"
    first = _first_object(path)
    name = _by_fields(first)
    if name is None and path.is_file() and not path.stat().st_size:
        raise TraceError(f"{path}: the file is empty")
    if name is None and isinstance(first, dict) and _OF_LOGS & set(first):
        raise TraceError(f"{path}: a log of requests, not of programs; use continuum-bench validate {path}")
    if name is None:
        raise TraceError(f"{path}: format not recognised; name it with --format: {', '.join(READERS)}")
    return name


def _first_object(path: Path) -> Any:
    """Parse the first line, or the whole file if it is one object on several lines; of a list its first object, of a
    table its columns."""
    line = next((line for _, line in text_lines(path) if line.strip()), "")
    if ".csv" in path.suffixes:
        return dict.fromkeys(columns_of(line))
    with suppress(ValueError):
        return json.loads(line)
    with suppress(ValueError, TraceError):
        return json.loads(whole_text(path)) if path.suffix == ".json" else None
    return None


def _by_fields(data: Any) -> str | None:
    data = data[0] if isinstance(data, list) and data else data
    if not isinstance(data, dict):
        return None
    if data.get("schema") == TRACE_SCHEMA or data.get("kind") in ("header", "program"):
        return OWN
    return next((name for name, _, marks in _FORMATS if any(fields <= set(data) for fields in marks)), None)
