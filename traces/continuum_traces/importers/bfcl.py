"""Import BFCL result files (``BFCL_v4_*_result.json``, JSON lines): token counts and model latencies of each step.

An entry has one step (its counts are numbers), or turns of several steps (lists of lists). The files hold no tool
durations. Tools are read from the field ``tools`` (one name per step) if it is present, otherwise from the function
names in ``result``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from continuum_traces.importers.described import Imported, RequestUsage
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.programs.jsonl import TraceError
from continuum_traces.schema import Program, ToolCall

COUNTS = ("input_token_count", "output_token_count")


def read_bfcl(file: Source) -> Iterator[Imported]:
    """A BFCL result file: one program per line. An entry whose request failed is left out.

    Raises:
        TraceError: the file has a fault. The message names file, line and field.
    """
    for where, row in file.rows("id"):
        if any(name in row for name in COUNTS):
            yield _program(file, where, row)
        else:
            reason = str(row.get("result") or row.get("traceback") or "nothing of it is known")
            yield Imported(Program(_program_id(row), (), "bfcl"), (), empty=f"no token counts: {reason:.80}")


def _program(file: Source, where: str, row: dict[str, Any]) -> Imported:
    for name in COUNTS:
        if name not in row:
            raise TraceError(f"{where}: {name}: missing")
    prompts, outputs = (_by_turn(row[name]) for name in COUNTS)
    if list(map(len, prompts)) != list(map(len, outputs)):
        steps = f"{sum(map(len, outputs))} steps, input_token_count has {sum(map(len, prompts))}"
        raise TraceError(f"{where}: output_token_count: {steps}")
    for name, values in zip(COUNTS, (prompts, outputs), strict=True):
        if any(isinstance(each, bool) or not isinstance(each, int) or each < 0 for turn in values for each in turn):
            raise TraceError(f"{where}: {name}: expected whole numbers of at least 0")
    tools, latencies = _tools(row), _by_turn(row.get("latency") or row.get("llm_latency_s") or [])
    if tools and list(map(len, tools)) != list(map(len, prompts)):
        file.assume("program", "other numbers of steps in its result than in its counts: the first ones are paired")
    requests = [
        RequestUsage(prompt, output, tool_calls=_at(tools, turn, step) or (), llm_s=_at(latencies, turn, step))
        for turn, steps in enumerate(zip(prompts, outputs, strict=True))
        for step, (prompt, output) in enumerate(zip(*steps, strict=True))
    ]
    return Imported(Program(_program_id(row), (), "bfcl"), requests)


def _program_id(row: dict[str, Any]) -> str:
    """Return the entry's id. If a collection names the file of the entry, the file is part of the id, because the files
    of two models have the same ids."""
    source = row.get("src")
    return f"{source}:{row['id']}" if isinstance(source, str) else str(row["id"])


def _by_turn(values: Any) -> list[list[Any]]:
    """Return the values of each step of each turn. A number is one step, a plain list is one turn."""
    if not isinstance(values, list):
        return [[values]]
    return values if values and all(isinstance(turn, list) for turn in values) else [values]


def _at(values: list[list[Any]], turn: int, step: int) -> Any:
    return values[turn][step] if turn < len(values) and step < len(values[turn]) else None


def _tools(row: dict[str, Any]) -> list[list[tuple[ToolCall, ...]]]:
    """Return the calls of each step of each turn; nothing if the result is an answer without calls."""
    if isinstance(row.get("tools"), list):
        return [[(ToolCall(name),) if isinstance(name, str) else () for name in row["tools"]]]
    result = row.get("result")
    if not isinstance(result, list):
        return []
    if not isinstance(row["input_token_count"], list):  # one step, whose parallel calls are the list
        return [[_calls(result)]]
    turns = result if all(isinstance(turn, list) for turn in result) else [result]
    return [[_calls(step if isinstance(step, list) else [step]) for step in turn] for turn in turns]


def _calls(step: list[Any]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(str(name)) for call in step if isinstance(call, dict) for name in call)


IMPORTERS = (
    Importer(
        "bfcl",
        read_bfcl,
        (
            Signs({"id": str, "input_token_count": object, "output_token_count": object}, more=("result", "latency")),
            Signs({"id": str, "result": "Error during inference*"}, more=("traceback",)),
        ),
    ),
)
