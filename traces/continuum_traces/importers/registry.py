"""Trace files of any known format, by name or by looking."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from continuum_traces.importers.numeric import read_numeric
from continuum_traces.jsonl import TraceError, read_programs, text_lines
from continuum_traces.schema import TRACE_SCHEMA, Program

OWN = "continuum"

READERS: dict[str, Callable[[Path], Iterator[Program]]] = {
    OWN: read_programs,
    "numeric": read_numeric,
}
"""Format name to reader."""


def read_any(path: Path, form: str | None = None) -> Iterator[Program]:
    """Programs of a file in any known format.

    Args:
        path: the file or directory.
        form: a key of ``READERS``; None: found out by looking.

    Raises:
        TraceError: unknown or unrecognised format, or a fault in the file.
    """
    name = form or detect(path)
    if name not in READERS:
        raise TraceError(f"{path}: unknown format {name!r}; there are: {', '.join(READERS)}")
    return READERS[name](path)


def detect(path: Path) -> str:
    """The format of a file, from its first line.

    Raises:
        TraceError: none fits.
    """
    for _, line in text_lines(path):
        if line.strip():
            name = _by_first_line(_parsed(line))
            if name is not None:
                return name
            break
    raise TraceError(f"{path}: format not recognised; name it with --format: {', '.join(READERS)}")


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _by_first_line(data: Any) -> str | None:
    if not isinstance(data, dict):
        return None
    if data.get("schema") == TRACE_SCHEMA or data.get("kind") in ("header", "program"):
        return OWN
    if {"program_id", "prompt_tokens", "output_tokens"} <= set(data):
        return "numeric"
    return None
