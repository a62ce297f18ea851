"""Read and write trace files: JSON lines, compressed with gzip if the name ends in .gz (docs/trace-format.md)."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from continuum_traces.lines import encoded, end_line, header_line, program_line, read_program, read_turn, turn_line
from continuum_traces.schema import TRACE_SCHEMA, TRACE_VERSION, Program, Turn


class TraceError(Exception):
    """A trace cannot be read or written. The message names file, line and field."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault in a trace file."""

    file: str
    line: int
    field: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: "
        return where + (f"{self.field}: " if self.field else "") + self.message


class DamagedFile(TraceError):
    """A trace file cannot be read to its end."""

    def __init__(self, path: Path, line: int, message: str) -> None:
        self.fault = Fault(str(path), line, "", message)
        super().__init__(str(self.fault))


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

    def report(fault: Fault) -> None:
        raise TraceError(str(fault))

    yield from _Reader(Path(path), report).programs()


def validate(path: Path | str) -> list[Fault]:
    """Return every fault of a file, in the order of its lines."""
    faults: list[Fault] = []
    for _ in _Reader(Path(path), faults.append).programs():
        pass
    return faults


def write_programs(path: Path | str, programs: Iterable[Program], **header: Any) -> int:
    """Write a complete file or none, and return the number of programs. Equal programs give equal bytes.

    Raises:
        TraceError: the file cannot be written.
    """
    target = Path(path)
    written = 0
    with replacing(target) as raw, _compressed(raw, target) as out:
        out.write(encoded(header_line(**header)))
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
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TraceError(f"{target}: cannot write: {error.strerror}") from error


def _compressed(raw: IO[bytes], target: Path) -> Any:
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
        DamagedFile: the file is missing, unreadable, truncated or not UTF-8.
    """
    number = 0
    try:
        with _opened(path) as lines:
            for number, line in enumerate(lines, 1):
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        kind = path.suffix.replace(".gz", "gzip").removeprefix(".")
        raise DamagedFile(path, number + 1, f"the {kind} stream is damaged or cut short: {error}") from error
    except UnicodeDecodeError as error:
        raise DamagedFile(path, number + 1, f"not UTF-8: {error.reason}") from error
    except OSError as error:
        raise DamagedFile(path, 0, f"cannot read: {error.strerror or error}") from error


def whole_text(path: Path) -> str:
    """Return the text of a file, as ``text_lines``."""
    return "".join(line for _, line in text_lines(path))


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8")


class _Reader:
    """Reads one trace file, and passes each fault to ``report``."""

    def __init__(self, path: Path, report: Callable[[Fault], None]) -> None:
        self._path = path
        self._report_fault = report
        self._open: dict[str, _Open] = {}
        self._seen: set[str] = set()
        self._has_header = False

    def programs(self) -> Iterator[Program]:
        last = 0
        try:
            for last, text in text_lines(self._path):
                if text.strip():
                    yield from self._line(last, text)
        except DamagedFile as error:
            self._report_fault(error.fault)
        else:
            if last == 0:
                self._report(0, "", "the file is empty")
        for program_id in list(self._open):
            yield from self._close(program_id, last)

    def _report(self, line: int, field: str, message: str) -> None:
        self._report_fault(Fault(str(self._path), line, field, message))

    def _line(self, number: int, text: str) -> Iterator[Program]:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            return self._report(number, "", f"not JSON: {error}")
        if not isinstance(data, dict):
            return self._report(number, "", "expected an object")
        kind = str(data.get("kind"))
        if not self._has_header:
            self._has_header = True
            if kind != "header":
                self._report(number, "kind", "the first line must be the header")
        readers = {"header": self._header, "program": self._program, "turn": self._turn, "gap": self._turn}
        if kind == "end":
            yield from self._end(number, data)
        elif kind in readers:
            readers[kind](number, data)
        else:
            self._report(number, "kind", f"unknown kind {kind!r}; there are header, program, turn, gap, end")

    def _end(self, number: int, data: dict[str, Any]) -> Iterator[Program]:
        program_id = str(data.get("program_id"))
        if program_id in self._open:
            yield from self._close(program_id, number)
        elif program_id not in self._seen:
            self._report(number, "program_id", f"no program {program_id!r} is open")

    def _header(self, number: int, data: dict[str, Any]) -> None:
        if data.get("schema") != TRACE_SCHEMA:
            self._report(number, "schema", f"expected {TRACE_SCHEMA!r}, found {data.get('schema')!r}")
        if data.get("version") != TRACE_VERSION:
            self._report(number, "version", f"this reader knows {TRACE_VERSION}, found {data.get('version')!r}")

    def _program(self, number: int, data: dict[str, Any]) -> None:
        program, faults = read_program(data)
        program_id = data.get("program_id")
        if isinstance(program_id, str) and program_id in self._seen:
            self._report(number, "program_id", f"{program_id!r} appears twice")
            return
        if isinstance(program_id, str):
            self._seen.add(program_id)
            placeholder = program or Program(program_id, ())
            self._open[program_id] = _Open(placeholder, number, bad=program is None)
        for fault in faults:
            self._report(number, fault.field, fault.message)

    def _turn(self, number: int, data: dict[str, Any]) -> None:
        program_id = data.get("program_id")
        held = self._open.get(program_id) if isinstance(program_id, str) else None
        if held is None:
            if not (isinstance(program_id, str) and program_id in self._seen):
                self._report(number, "program_id", f"no program {program_id!r} is open")
            return
        if data["kind"] == "gap" and held.turns:  # it completes the latest turn
            held.turns.pop()
            data = {**held.last, **data}
        held.last = data
        turn, faults = read_turn(data)
        wanted = len(held.turns)
        if data.get("turn") != wanted:
            held.bad = True
            self._report(number, "turn", f"expected {wanted}, found {data.get('turn')!r}")
        for fault in faults:
            held.bad = True
            self._report(number, fault.field, fault.message)
        held.turns.append(turn or Turn(0, 1))

    def _close(self, program_id: str, line: int) -> Iterator[Program]:
        held = self._open.pop(program_id)
        if not held.turns:
            self._report(held.line, "program_id", f"program {program_id!r} has no turns")
        elif not held.bad:
            program = replace(held.program, turns=tuple(held.turns))
            message = _contradiction(program)
            if message:
                self._report(line, "kept_tokens", message)
            else:
                yield program


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
