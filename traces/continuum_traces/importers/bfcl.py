"""Import BFCL result files (``BFCL_v4_*_result.json``, JSON lines): token counts and model latencies of each step.

The files hold no tool durations; ``traces stats`` says how many are unknown. Tools are read from the field ``tools``
(one name per step) if it is present, otherwise from the function names in ``result``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.usage import Imported, RequestUsage
from continuum_traces.jsonl import TraceError
from continuum_traces.schema import Program, ToolCall


def read_bfcl(file: Source) -> Iterator[Imported]:
    """A BFCL result file: one program per line.

    Raises:
        TraceError: the file has a fault. The message names file, line and field.
    """
    for where, row in file.rows("id", "input_token_count", "output_token_count"):
        yield _program(where, row)


def _program(where: str, row: dict[str, Any]) -> Imported:
    prompts, outputs = _flat(row["input_token_count"]), _flat(row["output_token_count"])
    if len(prompts) != len(outputs):
        raise TraceError(f"{where}: output_token_count: {len(outputs)} steps, input_token_count has {len(prompts)}")
    for name, values in (("input_token_count", prompts), ("output_token_count", outputs)):
        if any(isinstance(value, bool) or not isinstance(value, int) or value < 0 for value in values):
            raise TraceError(f"{where}: {name}: expected whole numbers of at least 0")
    latencies = _flat(row.get("latency") or row.get("llm_latency_s") or [])
    tools = _tools(row)
    requests = [
        RequestUsage(
            prompt,
            output,
            tool_calls=tuple(ToolCall(name) for name in (tools[i] if i < len(tools) else ())),
            llm_s=latencies[i] if i < len(latencies) else None,
        )
        for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True))
    ]
    return Imported(Program(_program_id(row), (), "bfcl"), requests)


def _program_id(row: dict[str, Any]) -> str:
    """Return the entry's id. If a collection names the file of the entry, the file is part of the id, because the files
    of two models have the same ids."""
    source = row.get("src")
    return f"{source}:{row['id']}" if isinstance(source, str) else str(row["id"])


def _tools(row: dict[str, Any]) -> list[tuple[str, ...]]:
    if isinstance(row.get("tools"), list):
        return [(name,) if isinstance(name, str) else () for name in row["tools"]]
    result = row.get("result")  # a list of BFCL's turns; each is a list of steps
    bfcl_turns = result if isinstance(result, list) else []
    return [tuple(_names(step)) for turn in bfcl_turns for step in (turn if isinstance(turn, list) else [turn])]


def _names(step: Any) -> Iterator[str]:
    for call in step if isinstance(step, list) else [step]:
        if isinstance(call, dict):
            yield from (str(name) for name in call)


def _flat(values: Any) -> list[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        return [values]
    return [inner for value in values for inner in _flat(value)]


IMPORTERS = (
    Importer(
        "bfcl",
        read_bfcl,
        (Signs({"id": str, "input_token_count": object, "output_token_count": object}, more=("result", "latency")),),
    ),
)
