"""Write and read the JSON files of a run.

Each line of a JSONL file is flushed when it is written. ``write_json`` writes under a temporary name and then renames
the file, so that no reader sees a part of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from continuum_traces.appender import SharedLines
from continuum_traces.typed import FieldError, field_names, from_json, read_line

T = TypeVar("T")


class RunDirError(Exception):
    """A run directory cannot be written or read. The message names file, line and field."""


def compact(row: Any) -> dict[str, Any]:
    """Convert a dataclass instance to a dictionary, without the fields that are None or empty."""
    values = ((name, getattr(row, name)) for name in field_names(row.__class__))
    return {name: value for name, value in values if value is not None and value != ()}


@contextmanager
def writing(path: Path, note: str = "") -> Iterator[None]:
    """Convert an ``OSError`` into a ``RunDirError`` that names ``path`` and ends with ``note``."""
    try:
        yield
    except OSError as error:
        raise RunDirError(f"{path}: cannot write: {error.strerror or error}{note}") from error


def write_json(path: Path, data: Any, indent: int | None = 2) -> None:
    """Write a complete file, or leave the existing file as it is. With ``indent`` None it has one line."""
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        temporary.write_text(json.dumps(data, indent=indent, sort_keys=False) + "\n", encoding="utf-8")
        temporary.replace(path)


def write_text(path: Path, text: str) -> Path:
    """Write a text file, and make its folder if there is none."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


def read_json(file: Path) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Raises:
        RunDirError: the file cannot be read, or holds something else.
    """
    try:
        data = read_line(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunDirError(f"{file}: cannot read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RunDirError(f"{file}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RunDirError(f"{file}: expected an object")
    return data


def read_as(row_type: type[T], file: Path) -> T:
    """Read a file that holds one dataclass instance. ``RunDirError`` names a field that is wrong."""
    try:
        return from_json(row_type, read_json(file))
    except FieldError as error:
        raise RunDirError(f"{file}: {error}") from error


class JsonLines:
    """A file to which JSON lines are appended; flushed after every ``flush_every`` rows. A file has one writer.

    Raises:
        RunDirError: the file cannot be written (for example, the disk is full). Its complete lines stay as they are.
    """

    def __init__(self, path: Path, flush_every: int = 1) -> None:
        self._path = path
        self._rows: list[str] = []
        self._flush_every = flush_every
        self._closed = False
        with writing(path):
            self._lines = SharedLines(path)

    def write(self, row: Any) -> None:
        self._rows.append(json.dumps(compact(row), separators=(",", ":")) + "\n")
        if len(self._rows) >= self._flush_every:
            self.flush()

    def flush(self) -> None:
        data = "".join(self._rows).encode()
        self._rows.clear()
        with writing(self._path, "; earlier records are kept"):
            self._lines.append(data)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self.flush()
            finally:
                self._lines.close()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
