"""Reads request logs. Every error message names the file, the line and the field."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from continuum_traces.typed import LARGEST

from continuum_bench.errors import BenchError
from continuum_bench.validate.served import Served

T = TypeVar("T")
SPACES = re.compile(r"\s*")
Number = Annotated[float, msgspec.Meta(gt=-LARGEST, lt=LARGEST)]


def read_as(where: str, data: Any, kind: type[T], advice: str = "") -> T:
    """Convert decoded JSON to a type.

    Raises:
        BenchError: a field is missing or has another type. The message is ``where``, the field and the ``advice``.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise BenchError(f"{where}: {error}{advice}") from error


def served(
    where: str,
    instants: Sequence[float],
    prompt_tokens: float,
    output_tokens: float,
    program_id: str | None = None,
) -> Served:
    """Return a request after checking that its instants are in order and its token counts are whole and positive.

    Args:
        where: the beginning of error messages.
        instants: the seconds of arrival, first token and end.
        prompt_tokens: length of the prompt.
        output_tokens: length of the answer.
        program_id: as ``Served.program_id``.
    """
    arrival_s, first_token_s, finish_s = instants
    if first_token_s < arrival_s:
        raise BenchError(f"{where}: the first token comes {arrival_s - first_token_s:.3f} s before arrival")
    if finish_s < first_token_s:
        raise BenchError(f"{where}: the end comes {first_token_s - finish_s:.3f} s before the first token")
    for name, tokens in (("prompt", prompt_tokens), ("output", output_tokens)):
        if tokens < 1 or tokens != int(tokens):
            raise BenchError(f"{where}: {name} tokens: {tokens:g}; expected a whole number of at least 1")
    return Served(arrival_s, first_token_s, finish_s, int(prompt_tokens), int(output_tokens), program_id)


def load_of(arrival_s: float | None, prompt_tokens: float | None, output_tokens: float | None = 0) -> Served | None:
    """Return a request that is played but not compared; None: its size or its arrival is not known."""
    if arrival_s is None or not prompt_tokens or prompt_tokens < 1:
        return None
    return Served(arrival_s, arrival_s, arrival_s, int(prompt_tokens), max(int(output_tokens or 0), 1))


def within(row: Any, *names: str) -> Any:
    """Return the value at a path of names; None: there is none."""
    for name in names:
        row = row.get(name) if isinstance(row, dict) else None
    return row


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
        BenchError: the file cannot be read, or is not JSON.
    """
    text, decoder, at, line = _text(path), json.JSONDecoder(), 0, 1
    while (start := _after_spaces(text, at)) < len(text):
        line += text.count("\n", at, start)
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            where, said = getattr(error, "lineno", line), getattr(error, "msg", error)
            raise BenchError(f"{path}:{where}: not JSON: {said}") from error
        yield f"{path}:{line}", value
        line += text.count("\n", start, at)


def _after_spaces(text: str, at: int) -> int:
    found = SPACES.match(text, at)
    return found.end() if found else at


def _text(path: Path) -> str:
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8-sig") as file:
                return file.read()
        return path.read_text(encoding="utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: cannot read: {getattr(error, 'strerror', None) or error}") from error
