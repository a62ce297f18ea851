"""Import published traces of production servers, CSV: Azure's and BurstGPT's. Each row is a program of one request."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from continuum_traces.importers.usage import Imported, RequestUsage, number
from continuum_traces.jsonl import TraceError, text_lines
from continuum_traces.schema import Program

Row = tuple[str, Mapping[str, str]]
"""A row, behind its place."""


def read_azure(path: Path) -> Iterator[Imported]:
    """Azure's LLM inference traces: ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``."""
    start = None
    for line, (where, row) in enumerate(_rows(path, "TIMESTAMP"), 1):
        at = datetime.fromisoformat(row["TIMESTAMP"])
        start = start or at
        usage = RequestUsage(_count(where, row, "ContextTokens"), _count(where, row, "GeneratedTokens"))
        yield Imported(Program(f"request-{line}", (), "azure", arrival_s=(at - start).total_seconds()), [usage])


def read_burstgpt(path: Path) -> Iterator[Imported]:
    """BurstGPT: ``Timestamp`` (s), ``Model``, ``Request tokens``, ``Response tokens``. A row without an answer is a
    failed request, and a program without turns."""
    for line, (where, row) in enumerate(_rows(path, "Timestamp"), 1):
        usage = RequestUsage(_count(where, row, "Request tokens"), _count(where, row, "Response tokens"))
        arrival_s = _number(where, row, "Timestamp")
        program = Program(f"request-{line}", (), "burstgpt", row.get("Model"), arrival_s=arrival_s)
        yield Imported(program, [usage] if usage.output_tokens else [])


def _rows(path: Path, required: str) -> Iterator[Row]:
    rows = csv.DictReader(line for _, line in text_lines(path))
    if required not in (rows.fieldnames or ()):
        raise TraceError(f"{path}:1: {required}: missing")
    for row in rows:
        yield f"{path}:{rows.line_num}", row


def _count(where: str, row: Mapping[str, str], name: str) -> int:
    return int(_number(where, row, name))


def _number(where: str, row: Mapping[str, str], name: str) -> float:
    text = row.get(name)
    try:
        return number(where, {name: float(text)} if text else {}, name)
    except ValueError as error:
        raise TraceError(f"{where}: {name}: expected a number of at least 0, found {text!r}") from error


def columns_of(line: str) -> list[str]:
    return next(csv.reader([line]), [])
