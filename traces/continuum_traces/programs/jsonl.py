"""Read and write trace files: JSON lines, compressed with gzip if the name ends in .gz (docs/trace-format.md)."""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.lines import (
    encoded,
    end_line,
    header_line,
    program_line,
    read_program,
    read_turn,
    turn_line,
)
from continuum_traces.programs.truth import FIELD, Truth
from continuum_traces.schema import TRACE_SCHEMA, TRACE_VERSION, Program, Turn
from continuum_traces.typed import FieldFault


class TraceError(Exception):
    """A trace cannot be read or written. The message names file, line and field."""


@dataclass(slots=True)
class _Open:
    """A program whose closing line has not been read yet."""

    program: Program
    line: int
    turns: list[Turn] = field(default_factory=list)
    last: dict[str, Any] = field(default_factory=dict)
    """The line of the latest turn."""
    bad: bool = False


def read_programs(path: Path | str) -> Iterator[Program]:
    """Read a file in Continuum's own format. Each program is yielded as soon as its closing line was read.

    Raises:
        TraceError: the file has a fault. The message names file, line and field.
    """
    for row in _Reader(Path(path)).read():
        if isinstance(row, TraceError):
            raise row
        yield row


def read_header(path: Path) -> dict[str, Any]:
    """Return the first line of a trace; an empty object if the file has none.

    Raises:
        TraceError: the file cannot be read.
    """
    first = next((line for _, line in text_lines(path) if line.strip()), "")
    with suppress(TraceError):
        return json_object(str(path), first)
    return {}


def validate(path: Path | str) -> list[TraceError]:
    """Return every fault of a file, in the order of its lines."""
    return [row for row in _Reader(Path(path)).read() if isinstance(row, TraceError)]


def write_programs(
    path: Path | str,
    programs: Iterable[Program],
    assumptions: Assumptions | None = None,
    truth: Truth | None = None,
    **header: Any,
) -> int:
    """Write a complete file or none, and return the number of programs. Equal programs give equal bytes.

    Args:
        path: the file.
        programs: its programs, which are written as they come.
        assumptions: for the header; complete once the last program was taken.
        truth: the same.
        header: other fields of the header.

    Raises:
        TraceError: the file cannot be written.
    """
    target = Path(path)
    with replacing(target) as raw:
        if assumptions is None:
            with compressed(raw, target) as out:
                out.write(encoded(header_line(**header)))
                return _write_all(out, programs)
        with tempfile.TemporaryFile(dir=target.parent) as body:
            with compressed(body, target) as out:
                written = _write_all(out, programs)
            rows = assumptions.as_json()
            counts = {FIELD: truth.as_json()} if truth is not None and truth.programs else {}
            with compressed(raw, target) as out:
                out.write(encoded(header_line(**header, **counts, **({"assumptions": rows} if rows else {}))))
            body.seek(0)
            shutil.copyfileobj(body, raw)
    return written


def _write_all(out: IO[bytes], programs: Iterable[Program]) -> int:
    written = 0
    for program in programs:
        written += 1
        out.writelines(_program_bytes(program))
    return written


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file, which replaces ``target`` once it is complete.

    Raises:
        TraceError: the file cannot be written.
    """
    temporary = target.with_name(target.name + ".tmp")
    try:
        with temporary.open("wb") as out:
            yield out
        temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise TraceError(f"{target}: cannot write: {error.strerror}") from error


def compressed(raw: IO[bytes], target: Path) -> Any:
    """Return what writes into this open file, compressed if the target's name says so."""
    if target.suffix == ".gz":
        return gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0)
    return nullcontext(raw)


def _program_bytes(program: Program) -> Iterator[bytes]:
    yield encoded(program_line(program))
    for index, turn in enumerate(program.turns):
        yield encoded(turn_line(program.program_id, index, turn))
    yield encoded(end_line(program.program_id))


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text file, which may be compressed with gzip or xz.

    Raises:
        TraceError: the file is missing, unreadable, truncated or not UTF-8.
    """
    number = 0
    try:
        with _opened(path) as lines:
            for number, line in enumerate(lines, 1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        kind = path.suffix.replace(".gz", "gzip").removeprefix(".")
        raise TraceError(f"{path}:{number + 1}: the {kind} stream is damaged or cut short: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}:{number + 1}: not UTF-8: {error.reason}") from error
    except OSError as error:
        raise TraceError(f"{path}: cannot read: {error.strerror or error}") from error


def whole_text(path: Path) -> str:
    """Return the text of a file, as ``text_lines``."""
    return "".join(line for _, line in text_lines(path))


def json_object(where: str, text: str, *required: str) -> dict[str, Any]:
    """Parse a JSON object that must have the ``required`` fields.

    Raises:
        TraceError: the text is something else. The message begins with ``where``.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise TraceError(f"{where}: expected an object")
    for name in required:
        if name not in data:
            raise TraceError(f"{where}: {name}: missing")
    return data


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return lzma.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".xz" else path.open(encoding="utf-8-sig")


Found = Iterator[Program | TraceError]
"""What is found in a file: programs and faults, in the order of the lines."""


class _Reader:
    """Reads one trace file. ``read`` may be called once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, _Open] = {}
        self._seen: set[str] = set()
        self._has_header = False

    def read(self) -> Found:
        last = 0
        try:
            for last, text in text_lines(self._path):
                if text.strip():
                    yield from self._line(last, text)
        except TraceError as error:
            yield error
        else:
            if last == 0:
                yield TraceError(f"{self._path}: the file is empty")
        for program_id in list(self._open):
            yield from self._close(program_id, last)

    def _fault(self, line: int, fault: FieldFault | str) -> TraceError:
        return TraceError(f"{self._path}:{line}: {fault}")

    def _line(self, number: int, text: str) -> Found:
        try:
            data = json_object(f"{self._path}:{number}", text)
        except TraceError as error:
            yield error
            return
        kind = str(data.get("kind"))
        if not self._has_header:
            self._has_header = True
            if kind != "header":
                yield self._fault(number, "kind: the first line must be the header")
        if kind in _KINDS:
            yield from _KINDS[kind](self, number, data)
        else:
            yield self._fault(number, f"kind: unknown kind {kind!r}; there are {', '.join(_KINDS)}")

    def _header(self, number: int, data: dict[str, Any]) -> Found:
        if data.get("schema") != TRACE_SCHEMA:
            yield self._fault(number, f"schema: expected {TRACE_SCHEMA!r}, found {data.get('schema')!r}")
        if data.get("version") != TRACE_VERSION:
            yield self._fault(number, f"version: this reader knows {TRACE_VERSION}, found {data.get('version')!r}")

    def _program(self, number: int, data: dict[str, Any]) -> Found:
        program, faults = read_program(data)
        program_id = data.get("program_id")
        if isinstance(program_id, str) and program_id in self._seen:
            yield self._fault(number, f"program_id: {program_id!r} appears twice")
            return
        if isinstance(program_id, str):
            self._seen.add(program_id)
            self._open[program_id] = _Open(program or Program(program_id, ()), number, bad=program is None)
        yield from (self._fault(number, fault) for fault in faults)

    def _turn(self, number: int, data: dict[str, Any]) -> Found:
        program_id = data.get("program_id")
        held = self._open.get(program_id) if isinstance(program_id, str) else None
        if held is None:
            yield from self._not_open(number, program_id)
            return
        if data["kind"] == "gap" and held.turns:  # it completes the latest turn
            held.turns.pop()
            data = {**held.last, **data}
        held.last = data
        turn, faults = read_turn(data)
        wanted = len(held.turns)
        if data.get("turn") != wanted:
            faults.insert(0, FieldFault("turn", f"expected {wanted}, found {data.get('turn')!r}"))
        held.bad = held.bad or bool(faults)
        held.turns.append(turn or Turn(0, 1))
        yield from (self._fault(number, fault) for fault in faults)

    def _end(self, number: int, data: dict[str, Any]) -> Found:
        program_id = str(data.get("program_id"))
        return self._close(program_id, number) if program_id in self._open else self._not_open(number, program_id)

    def _not_open(self, number: int, program_id: object) -> Found:
        if not (isinstance(program_id, str) and program_id in self._seen):
            yield self._fault(number, f"program_id: no program {program_id!r} is open")

    def _close(self, program_id: str, line: int) -> Found:
        held = self._open.pop(program_id)
        if not held.turns:
            yield self._fault(held.line, f"program_id: program {program_id!r} has no turns")
        elif not held.bad:
            program = replace(held.program, turns=tuple(held.turns))
            message = _contradiction(program)
            yield self._fault(line, f"kept_tokens: {message}") if message else program


_KINDS: dict[str, Callable[[_Reader, int, dict[str, Any]], Found]] = {
    "header": _Reader._header,
    "program": _Reader._program,
    "turn": _Reader._turn,
    "gap": _Reader._turn,
    "end": _Reader._end,
}
"""What reads each kind of line."""


def _contradiction(program: Program) -> str | None:
    """Return why the turns contradict each other (a prompt is empty, or keeps more tokens than there were), or None."""
    context = 0
    for index, (turn, prompt) in enumerate(zip(program.turns, program.prompt_tokens(), strict=True)):
        if turn.kept_tokens is not None and turn.kept_tokens > context:
            return f"turn {index} keeps {turn.kept_tokens} tokens of a context of {context}"
        if prompt < 1:
            return f"turn {index} has an empty prompt"
        context = prompt + turn.carried
    return None


def too_long(program: Program, context_tokens: int) -> str | None:
    """Say which turn is the first whose prompt and output exceed the model's context; None if there is none."""
    for index, (turn, prompt) in enumerate(zip(program.turns, program.prompt_tokens(), strict=True)):
        if prompt + turn.output_tokens > context_tokens:
            tokens = prompt + turn.output_tokens
            return f"program {program.program_id!r}, turn {index}: prompt and output are {tokens} tokens"
    return None
