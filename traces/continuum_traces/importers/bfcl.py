"""BFCL result files (``BFCL_v4_*_result.json``, JSON lines): token counts and model latencies per step.

The files hold no tool durations; ``traces stats`` says how many are unknown. Tools are read from ``tools`` (a list per
step) if it is present, otherwise from the function names in ``result``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from continuum_traces.importers.usage import RequestUsage, record, turns_from_usage
from continuum_traces.jsonl import TraceError, text_lines
from continuum_traces.schema import Program, ToolCall


def read_bfcl(path: Path) -> Iterator[Program]:
    """The programs of a result file.

    Raises:
        TraceError: naming file, line and field.
    """
    for line_number, line in text_lines(path):
        try:
            data = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{path}:{line_number}: not JSON: {error}") from error
        row = record(path, line_number, data, "id", "input_token_count", "output_token_count")
        yield _program(f"{path}:{line_number}", row)


def _program(where: str, row: dict[str, Any]) -> Program:
    prompts, outputs = _flat(row["input_token_count"]), _flat(row["output_token_count"])
    if len(prompts) != len(outputs):
        raise TraceError(f"{where}: output_token_count: {len(outputs)} steps, input_token_count has {len(prompts)}")
    for name, values in (("input_token_count", prompts), ("output_token_count", outputs)):
        if any(isinstance(value, bool) or not isinstance(value, int) or value < 0 for value in values):
            raise TraceError(f"{where}: {name}: expected whole numbers of at least 0")
    latencies = _flat(row.get("latency") or row.get("llm_latency_s") or [])
    tools = _tools(row)
    requests = (
        RequestUsage(
            prompt,
            output,
            tool_calls=tuple(ToolCall(name) for name in (tools[i] if i < len(tools) else ())),
            llm_s=latencies[i] if i < len(latencies) else None,
        )
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    )
    turns = tuple(turns_from_usage(requests))
    return Program(_identity(row), turns, "bfcl")


def _identity(row: dict[str, Any]) -> str:
    """The entry's id. If a collection names the entry's file, the file is part of the id: ids repeat between models."""
    source = row.get("src")
    return f"{source}:{row['id']}" if isinstance(source, str) else str(row["id"])


def _tools(row: dict[str, Any]) -> list[tuple[str, ...]]:
    if isinstance(row.get("tools"), list):
        return [(name,) if isinstance(name, str) else () for name in row["tools"]]
    return [tuple(_names(step)) for step in _steps(row.get("result"))]


def _steps(result: Any) -> list[Any]:
    """The steps of all turns: ``result`` is a list of turns, a turn is a list of steps."""
    if not isinstance(result, list):
        return []
    return [step for turn in result for step in (turn if isinstance(turn, list) else [turn])]


def _names(step: Any) -> Iterator[str]:
    for call in step if isinstance(step, list) else [step]:
        if isinstance(call, dict):
            yield from (str(name) for name in call)


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        return [values]
    return [inner for value in values for inner in _flat(value)]
