"""What an importer is: its name, the signs of its format, and a reader of one file."""

from __future__ import annotations

import csv
import json
import re
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from continuum_traces.importers.described import Imported, Row
from continuum_traces.programs.assumptions import Assumption, Assumptions
from continuum_traces.programs.jsonl import TraceError, json_object, text_lines, whole_text

Wanted = type | tuple[type, ...] | str
"""What a field must be: a type, one of several, or a text (with ``*`` for any characters)."""

HEAD_ROWS, HEAD_CHARS = 64, 4_000_000
"""How much of a file of lines is read to recognise its format: so many rows, or characters."""
MOST_ROWS, MOST_CHARS = 20_000, 64_000_000
"""How much of it is read if none of them is known, as other rows can stand before those of the format."""
ENVELOPES = ("data", "items", "results", "records", "traces", "logs", "rows")
"""Lists in which APIs answer with rows, beside a cursor, a number or ``meta``."""
_SPACE = re.compile(r"[\s,]*")
_BESIDE_ROWS = ("meta", "metrics", "links", "pagination", "errors")
_SINGLE = ("values.messages", "result.resourceSpans")
"""Fields whose object is the row, whatever is beside it."""
PROGRESS_ROWS = 100_000
"""After how many rows of a file a line says how far it is read."""
LIST_ITEMS = 8
"""How many items of a list are looked at for a field."""


@dataclass(frozen=True, slots=True)
class Signs:
    """Fields by which a format is recognised in the first rows of a file, or in its only object.

    A name with dots goes into objects, and into the first objects of a list: ``requests.in``.
    """

    needs: Mapping[str, Wanted]
    """Fields that must be there, all in one row. Two at the least, as one is a coincidence."""
    more: Sequence[str] = ()
    """Fields that make it surer."""
    without: Sequence[str] = ()
    """Fields that another format has. With one of them in the row, the row isn't of this format."""
    file: str = ""
    """A pattern of the file's name that must fit, too."""

    def seen(self, path: Path, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the signs that the row shows; none if it isn't of this format."""
        if self.file and not fnmatchcase(path.name, self.file):
            return ()
        if not all(any(_fits(value, kind) for value in _values(row, name)) for name, kind in self.needs.items()):
            return ()
        if any(_values(row, name) for name in self.without):
            return ()
        more = (name for name in self.more if _values(row, name))
        return tuple(dict.fromkeys((*filter(None, [self.file]), *self.needs, *more)))


def _values(row: Any, name: str) -> list[Any]:
    """Return the values of a field in the row: several if a list is on the way. A key may have dots itself."""
    if isinstance(row, list):
        return [value for item in row[:LIST_ITEMS] for value in _values(item, name)]
    if not isinstance(row, Mapping):
        return []
    if name in row:
        return [row[name]]
    if "." not in name:
        return []
    dots = [at for at, sign in enumerate(name) if sign == "."]
    return [value for at in dots if name[:at] in row for value in _values(row[name[:at]], name[at + 1 :])]


def _fits(value: Any, kind: Wanted) -> bool:
    if isinstance(kind, str):
        return isinstance(value, str) and fnmatchcase(value, kind)
    return isinstance(value, kind)


@dataclass(slots=True)
class Source:
    """A file that an importer reads. It is printed as its path, with which messages begin."""

    path: Path
    assumptions: Assumptions = field(default_factory=Assumptions)
    on_progress: Callable[[str], None] = lambda line: None

    def __str__(self) -> str:
        return str(self.path)

    def assume(self, thing: str, text: str, count: int = 1, way_out: str = "") -> None:
        """Note an assumption, or something that is left out; ``Assumption`` has the parts. 0 notes nothing."""
        self.assumptions.add(Assumption(thing, text, count, way_out, str(self.path)))

    def text(self) -> str:
        """Return the whole text, decompressed."""
        return whole_text(self.path)

    def object(self, *required: str) -> dict[str, Any]:
        """Return the only object of the file, which must have the ``required`` fields."""
        return json_object(str(self), self.text(), *required)

    def rows(self, *required: str) -> Iterator[Row]:
        """Yield the objects of a file of JSON lines, of a JSON list, of one JSON object, or of a table (CSV, TSV).

        The last line of a file that is still being written, or whose writer was killed, is left out with a note.

        Raises:
            TraceError: a row is no object, or lacks a ``required`` field.
        """
        for number, (where, row) in enumerate(rows_of(self.path, self.assumptions), 1):
            if number % PROGRESS_ROWS == 0:
                self.on_progress(f"{self.path}: {number:,} rows read")
            for name in required:
                if name not in row:
                    raise TraceError(f"{where}: {name}: missing")
            yield where, row


@dataclass(frozen=True, slots=True)
class Importer:
    """A format that can be read."""

    name: str
    read: Callable[[Source], Iterator[Any]]
    """Yields ``Imported`` programs of one file; with ``join``, parts of any type. Its docstring says what it is."""
    signs: tuple[Signs, ...] = ()
    join: Callable[[Iterable[Any], Assumptions], Iterator[Imported]] | None = None
    """Makes programs of the parts of all files in a folder, if several files can belong to one program."""
    is_file: Callable[[Path], bool] | None = None
    """Tells a file of this format without looking at rows (an archive)."""

    def seen(self, path: Path, rows: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
        """Return the signs of this format in the row that shows most of them."""
        return max((signs.seen(path, row) for row in rows for signs in self.signs), key=len, default=())


def is_table(path: Path) -> bool:
    return bool({".csv", ".tsv"} & set(path.suffixes))


def head_of(path: Path, known: Callable[[Mapping[str, Any]], bool] = bool) -> list[dict[str, Any]]:
    """Return the first rows of a file, up to one with a fault. Behind them, the first row that is ``known`` if none of
    them is.

    Raises:
        TraceError: the file is empty, or no JSON and no table. The message says which.
    """
    rows: list[dict[str, Any]] = []
    chars, sure = 0, False
    try:
        for number, (where, row) in enumerate(rows_of(path, Assumptions(), list_items=HEAD_ROWS), 1):
            recognised = known(row)
            if recognised or number <= HEAD_ROWS:
                rows.append(row)
            sure = sure or recognised
            chars += 0 if where.endswith("]") else len(str(row))
            if sure and (number >= HEAD_ROWS or chars > HEAD_CHARS):
                break
            if number >= MOST_ROWS or chars > MOST_CHARS:
                break
    except TraceError:
        if not rows:
            raise
    return rows


def rows_of(path: Path, assumptions: Assumptions, list_items: int | None = None) -> Iterator[Row]:
    """Yield the objects of a file, as ``Source.rows``, each behind its place."""
    if is_table(path):
        yield from _table_rows(path)
        return
    lines = ((number, line) for number, line in text_lines(path) if line.strip())
    number, first = next(lines, (0, ""))
    if not number:
        raise TraceError(f"{path}: the file is empty")
    row: Any = None
    with suppress(ValueError, RecursionError):
        row = json.loads(first)
    if isinstance(row, dict):
        yield from _unwrapped(f"{path}:{number}", row)
        for where, each in _further_rows(path, lines, assumptions):
            yield from _unwrapped(where, each)
    else:
        yield from islice(_whole_rows(path, assumptions), list_items)


def _unwrapped(where: str, row: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows in the envelope of an API's answer; a row that is none as it is."""
    single = next((name.partition(".")[0] for name in _SINGLE if _values(row, name)), "trace")
    name = next((name for name in ENVELOPES if isinstance(row.get(name), list)), single)
    inside, beside = row.get(name), {key: each for key, each in row.items() if key != name}
    alone = all(key in _BESIDE_ROWS or not isinstance(each, list | dict) for key, each in beside.items())
    if name == single and isinstance(inside, dict) and (alone or single != "trace"):
        yield f"{where}: {name}", {"config": row.get("config"), **inside}
    elif alone and isinstance(inside, list) and inside and all(isinstance(each, dict) for each in inside):
        yield from ((f"{where}: {name}[{index}]", each) for index, each in enumerate(inside))
    else:
        yield where, row


def _further_rows(path: Path, lines: Iterator[tuple[int, str]], assumptions: Assumptions) -> Iterator[Row]:
    for number, line in lines:
        try:
            yield f"{path}:{number}", json_object(f"{path}:{number}", line)
        except TraceError:
            if line.endswith("\n"):
                raise
            assumptions.assume("line", "cut short, at the end of its file: left out", example=f"{path}:{number}")


def _whole_rows(path: Path, assumptions: Assumptions) -> Iterator[Row]:
    """Yield the objects of a file that is one JSON value, or several, on any number of lines."""
    text = whole_text(path).rstrip()
    values, end, decoder = list[Any](), _after_space(text, 0), json.JSONDecoder()
    try:
        while end < len(text):
            value, end = decoder.raw_decode(text, end)
            values.append(value)
            end = _after_space(text, end)
    except (ValueError, RecursionError) as error:
        where = f"{path}:1" if path.suffix == ".jsonl" else path
        if not all(isinstance(each, dict) for each in values) or not values or text[end] != "{":
            raise TraceError(f"{where}: not JSON: {error}") from error
        assumptions.assume("object", "cut short, at the end of its file: left out", example=path)
    if len(values) == 1 and isinstance(values[0], dict):
        yield from _unwrapped(str(path), values[0])
        return
    rows = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise TraceError(f"{path}: [{index}]: expected an object, found {repr(row)[:60]}")
        yield from _unwrapped(f"{path}: [{index}]", row)


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _table_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a table; an empty cell is None. The columns' names are in the first line."""
    lines = text_lines(path)
    first = next(lines, (0, ""))[1]
    if not first.strip():
        raise TraceError(f"{path}: the file is empty")
    delimiter = max(",;\t", key=first.count)
    names = next(csv.reader([first], delimiter=delimiter), [])
    table = csv.DictReader((line for _, line in lines), names, delimiter=delimiter)
    try:
        for row in table:
            yield f"{path}:{table.line_num + 1}", {name: cell(value) for name, value in row.items() if name}
    except csv.Error as error:
        raise TraceError(f"{path}:{table.line_num + 1}: no table: {error}") from error


def cell(text: Any) -> Any:
    """Return what a cell of a table says: None if it is empty, the value if it is JSON or Python's form of it."""
    if not text or not isinstance(text, str) or text[0] not in "{[":
        return text or None
    for parse in (json.loads, literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(text)
    return text
