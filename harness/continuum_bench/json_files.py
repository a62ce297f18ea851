"""Reads JSON files, each value as a declared type. Every error message names the file, the line and the field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from continuum_traces.programs.jsonl import whole_text

from continuum_bench.errors import BenchError

T = TypeVar("T")
SPACES = re.compile(r"\s*")
Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
"""Text that is not empty."""


def read_as(where: str, data: Any, kind: type[T], advice: str = "") -> T:
    """Convert decoded JSON to a type.

    Raises:
        BenchError: a field is missing or has another type. The message is ``where``, the field and the ``advice``.
    """
    try:
        return msgspec.convert(data, kind, dec_hook=_made)
    except (msgspec.ValidationError, TypeError) as error:
        raise BenchError(f"{where}: {error}{advice}") from error


def _made(kind: type[Any], value: Any) -> Any:
    """Make a path or the like of its text."""
    if value == "":
        raise ValueError("expected text that is not empty")
    return kind(value)


def objects(documents: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the documents, which must be JSON objects.

    Raises:
        BenchError: a document is no JSON object.
    """
    for where, value in documents:
        if not isinstance(value, dict):
            raise BenchError(f"{where}: expected an object")
        yield where, value


def documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the JSON documents of a file, each with the file and the line where it begins.

    Raises:
        TraceError: the file cannot be read.
        BenchError: it is not JSON.
    """
    text, decoder, at, line = whole_text(path).removeprefix("\ufeff"), json.JSONDecoder(), 0, 1
    while (start := _after_spaces(text, at)) < len(text):
        line += text.count("\n", at, start)
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise BenchError(f"{path}:{line}: not JSON: {error}") from error
        yield f"{path}:{line}", value
        line += text.count("\n", start, at)


def _after_spaces(text: str, at: int) -> int:
    spaces = SPACES.match(text, at)
    return spaces.end() if spaces else at
