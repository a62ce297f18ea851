"""The lines of a trace file: dataclasses to dictionaries, and dictionaries to dataclasses and faults.

Standard library only, so that the client's recorder writes the same lines. docs/trace-format.md has the format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from continuum_traces.schema import TRACE_SCHEMA, TRACE_VERSION, Program, ToolCall, Turn


@dataclass(frozen=True, slots=True)
class FieldFault:
    """A fault in one field of one line."""

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: str
    """text, count, seconds or flag."""
    least: float = 0
    required: bool = False


_PROGRAM_RULES: dict[str, _Rule] = {
    "program_id": _Rule("text", required=True),
    "source": _Rule("text"),
    "model": _Rule("text"),
    "synthetic": _Rule("flag"),
    "arrival_s": _Rule("seconds"),
    "parent_id": _Rule("text"),
    "shared_prefix_id": _Rule("text"),
    "shared_prefix_tokens": _Rule("count"),
}
_TURN_RULES: dict[str, _Rule] = {
    "new_input_tokens": _Rule("count", required=True),
    "output_tokens": _Rule("count", least=1, required=True),
    "carried_tokens": _Rule("count"),
    "kept_tokens": _Rule("count"),
    "gap_overhead_s": _Rule("seconds"),
    "text": _Rule("text"),
    "cached_tokens": _Rule("count"),
    "ttft_s": _Rule("seconds"),
    "llm_s": _Rule("seconds"),
}
_TOOL_RULES: dict[str, _Rule] = {
    "name": _Rule("text", required=True),
    "duration_s": _Rule("seconds"),
    "start_s": _Rule("seconds"),
    "command": _Rule("text"),
    "digest": _Rule("text"),
}


def header_line(**facts: Any) -> dict[str, Any]:
    """The first line of a file; ``facts`` may say source, note, command."""
    return {"kind": "header", "schema": TRACE_SCHEMA, "version": TRACE_VERSION, **facts}


def program_line(program: Program) -> dict[str, Any]:
    """The line that opens a program. Its turns follow, each on its own line."""
    data = _written(program)
    data.pop("turns", None)
    return {"kind": "program", **data}


def turn_line(program_id: str, index: int, turn: Turn) -> dict[str, Any]:
    data = _written(turn)
    if turn.tool_calls:
        data["tool_calls"] = [_written(call) for call in turn.tool_calls]
    return {"kind": "turn", "program_id": program_id, "turn": index, **data}


def end_line(program_id: str) -> dict[str, Any]:
    """The line that closes a program: none of its turns follows."""
    return {"kind": "end", "program_id": program_id}


def _written(row: Program | Turn | ToolCall) -> dict[str, Any]:
    """The fields that differ from their default."""
    values = ((name, getattr(row, name), default) for name, default in _DEFAULTS[type(row)])
    return {name: value for name, value, default in values if value is not None and value != () and value != default}


_DEFAULTS: dict[type, tuple[tuple[str, Any], ...]] = {
    row_type: tuple((field.name, field.default) for field in fields(row_type)) for row_type in (Program, Turn, ToolCall)
}


def read_program(data: Mapping[str, Any]) -> tuple[Program | None, list[FieldFault]]:
    """A program without its turns."""
    values, faults = _checked(data, _PROGRAM_RULES, {"kind"})
    if values.get("shared_prefix_tokens") and "shared_prefix_id" not in values:
        faults.append(FieldFault("shared_prefix_tokens", "given without shared_prefix_id"))
    return (None if faults else Program(turns=(), **values)), faults


def read_turn(data: Mapping[str, Any]) -> tuple[Turn | None, list[FieldFault]]:
    values, faults = _checked(data, _TURN_RULES, {"kind", "program_id", "turn", "tool_calls"})
    calls: list[ToolCall] = []
    raw_calls = data.get("tool_calls", [])
    if not isinstance(raw_calls, list):
        faults.append(FieldFault("tool_calls", "expected a list"))
        raw_calls = []
    for number, raw in enumerate(raw_calls):
        call, call_faults = _read_call(raw, f"tool_calls[{number}]")
        faults += call_faults
        calls += [call] if call is not None else []
    if "carried_tokens" in values and values["carried_tokens"] > values.get("output_tokens", math.inf):
        faults.append(FieldFault("carried_tokens", "more than output_tokens"))
    return (None if faults else Turn(tool_calls=tuple(calls), **values)), faults


def _read_call(raw: Any, where: str) -> tuple[ToolCall | None, list[FieldFault]]:
    if not isinstance(raw, Mapping):
        return None, [FieldFault(where, "expected an object")]
    values, faults = _checked(raw, _TOOL_RULES, set(), where + ".")
    return (None if faults else ToolCall(**values)), faults


def _checked(
    data: Mapping[str, Any], rules: Mapping[str, _Rule], other: set[str], where: str = ""
) -> tuple[dict[str, Any], list[FieldFault]]:
    """The valid fields, and the faults of the others."""
    values: dict[str, Any] = {}
    faults = [FieldFault(where + name, "unknown field") for name in data if name not in rules and name not in other]
    for name, rule in rules.items():
        value = data.get(name)
        if value is None:
            if rule.required:
                faults.append(FieldFault(where + name, "missing"))
            continue
        problem = _problem(value, rule)
        if problem:
            faults.append(FieldFault(where + name, problem))
        else:
            values[name] = float(value) if rule.kind == "seconds" else value
    return values, faults


def _problem(value: Any, rule: _Rule) -> str | None:
    """What is wrong with the value; None: it is valid."""
    if rule.kind == "text":
        return None if isinstance(value, str) and (value or not rule.required) else "expected text"
    if rule.kind == "flag":
        return None if isinstance(value, bool) else "expected true or false"
    wanted = (int,) if rule.kind == "count" else (int, float)
    if isinstance(value, bool) or not isinstance(value, wanted):
        return "expected a whole number" if rule.kind == "count" else "expected a number of seconds"
    if not math.isfinite(value):
        return "not finite"
    if value < rule.least:
        return f"{value} is below {rule.least:g}"
    return None
