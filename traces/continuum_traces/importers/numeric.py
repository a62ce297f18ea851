"""The numeric form: one JSON line a turn, token counts and seconds only.

Fields read: program_id, turn, prompt_tokens, output_tokens, tools_main or tools, tool_s, pack_s, cached_tokens, llm_s,
model, src. Every prompt is reproduced to the token; where a prompt is shorter than the context before it, its new part
is what the file says (new_input_tokens) and the rest is taken as kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from continuum_traces.jsonl import TraceError, text_lines
from continuum_traces.schema import Program, ToolCall, Turn

Row = dict[str, Any]


def read_numeric(path: Path) -> Iterator[Program]:
    """Programs of a numeric file.

    Raises:
        TraceError: with file, line and field.
    """
    rows: dict[str, list[Row]] = {}
    for number, line in text_lines(path):
        row = _row(path, number, line)
        if row["prompt_tokens"] > 0:  # 0: the recorder lost the request's usage
            rows.setdefault(row["program_id"], []).append(row)
    for program_id, turns in rows.items():
        yield _program(program_id, turns)


def _row(path: Path, number: int, line: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{path}:{number}: not JSON: {error}") from error
    for name, kind in (("program_id", str), ("prompt_tokens", int), ("output_tokens", int)):
        if not isinstance(row, dict) or not isinstance(row.get(name), kind):
            raise TraceError(f"{path}:{number}: {name}: expected {kind.__name__}")
    for name in ("tool_s", "pack_s"):
        if isinstance(row.get(name), int | float) and row[name] < 0:
            raise TraceError(f"{path}:{number}: {name}: {row[name]} is negative")
    return dict(row)


def _program(program_id: str, rows: list[Row]) -> Program:
    turns: list[Turn] = []
    context = 0
    for row in rows:
        turns.append(_turn(row, context))
        context = row["prompt_tokens"] + turns[-1].output_tokens
    first = rows[0]
    return Program(
        program_id=program_id,
        turns=tuple(turns),
        source=str(first.get("src", "numeric")),
        model=first.get("model"),
        synthetic=False,
    )


def _turn(row: Row, context: int) -> Turn:
    prompt = row["prompt_tokens"]
    new, kept = prompt - context, None
    if new < 1 and context:
        new = min(max(1, row.get("new_input_tokens") or 1), prompt)
        kept = prompt - new
    return Turn(
        new_input_tokens=new,
        output_tokens=max(1, row["output_tokens"]),
        kept_tokens=kept,
        tool_calls=_calls(row),
        gap_overhead_s=float(row.get("pack_s") or 0.0),
        cached_tokens=row.get("cached_tokens"),
        llm_s=row.get("llm_s"),
    )


def _calls(row: Row) -> tuple[ToolCall, ...]:
    """The turn's tools. One duration is known for all of them together: it is given to the first."""
    names = row.get("tools_main") or row.get("tools") or []
    seconds = row.get("tool_s")
    if not names and seconds is None:
        return ()
    first = ToolCall(names[0] if names else "unknown", None if seconds is None else float(seconds))
    return (first, *(ToolCall(name, 0.0 if seconds is not None else None) for name in names[1:]))
