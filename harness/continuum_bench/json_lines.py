"""Reads JSON. Every error message names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from continuum_bench.errors import BenchError


def decode(where: str, text: str) -> Any:
    """Decode JSON.

    Raises:
        BenchError: the text is not JSON; the message begins with ``where``.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise BenchError(f"{where}: not JSON: {error}") from error


def objects_of(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON object in each line of ``text``, with its place (``FILE:LINE``). Empty lines are skipped.

    Raises:
        BenchError: a line is no JSON object; the message names the file and the line.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            row = decode(f"{path}:{number}", line)
            if not isinstance(row, dict):
                raise BenchError(f"{path}:{number}: expected an object")
            yield f"{path}:{number}", row
