"""The numeric form: one JSON line per turn, with token counts and seconds only.

Fields read: program_id, turn, prompt_tokens, new_input_tokens, output_tokens, tools_main or tools, tool_s, pack_s,
cached_tokens, llm_s, model, src. Every prompt keeps its exact length.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from continuum_traces.importers.usage import (
    UNKNOWN,
    RequestUsage,
    calls_sharing_a_time,
    number,
    record,
    turns_from_usage,
)
from continuum_traces.jsonl import TraceError, text_lines
from continuum_traces.schema import Program

Row = dict[str, Any]


def read_numeric(path: Path) -> Iterator[Program]:
    """The programs of a numeric file.

    Raises:
        TraceError: with file, line and field.
    """
    rows: dict[str, list[RequestUsage]] = {}
    facts: dict[str, Row] = {}
    for line_number, line in text_lines(path):
        row = _row(path, line_number, line)
        facts.setdefault(row["program_id"], row)
        rows.setdefault(row["program_id"], []).append(_usage(f"{path}:{line_number}", row))
    for program_id, requests in rows.items():
        first = facts[program_id]
        yield Program(
            program_id, tuple(turns_from_usage(requests)), str(first.get("src", "numeric")), first.get("model")
        )


def _row(path: Path, line_number: int, line: str) -> Row:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{path}:{line_number}: not JSON: {error}") from error
    row = record(path, line_number, data, "program_id", "prompt_tokens", "output_tokens")
    if not isinstance(row["program_id"], str):
        raise TraceError(f"{path}:{line_number}: program_id: expected text")
    return row


def _usage(where: str, row: Row) -> RequestUsage:
    field = "tools_main" if row.get("tools_main") else "tools"
    names = row.get(field) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TraceError(f"{where}: {field}: expected a list of names")
    seconds = None if row.get("tool_s") is None else float(number(where, row, "tool_s"))
    if not names and seconds is not None:
        names = [UNKNOWN]
    return RequestUsage(
        prompt_tokens=int(number(where, row, "prompt_tokens")),
        output_tokens=int(number(where, row, "output_tokens")),
        new_tokens_hint=row.get("new_input_tokens"),
        tool_calls=calls_sharing_a_time(names, seconds),
        gap_overhead_s=float(row.get("pack_s") or 0.0),
        cached_tokens=row.get("cached_tokens"),
        llm_s=row.get("llm_s"),
    )
