"""The lines of a trace file: write programs and turns as dictionaries, read dictionaries and name their faults.

Standard library only: the client's recorder writes the same lines. docs/trace-format.md describes the format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from continuum_traces.schema import TRACE_SCHEMA, TRACE_VERSION, Program, ToolCall, Turn
from continuum_traces.typed import LARGEST, field_types

MAX_METADATA, MAX_METADATA_NAME_CHARS, MAX_METADATA_CHARS = 16, 64, 512
"""The most entries of a program's metadata, and the longest name and text: those of OpenAI's own ``metadata``."""
_LEAST = {"output_tokens": 1}
"""The smallest value of a number, by field; 0 for all other fields."""


@dataclass(frozen=True, slots=True)
class FieldFault:
    """A fault in one field of one line."""

    field: str
    message: str


def header_line(**facts: Any) -> dict[str, Any]:
    """Return the first line of a file. ``facts`` may contain source, note, command."""
    return {"kind": "header", "schema": TRACE_SCHEMA, "version": TRACE_VERSION, **facts}


def program_line(program: Program) -> dict[str, Any]:
    """Return the line that opens a program. Its turns follow, each on its own line."""
    data = _written(program)
    data.pop("turns", None)
    return {"kind": "program", **data}


def turn_line(program_id: str, index: int, turn: Turn) -> dict[str, Any]:
    data = _written(turn)
    if turn.tool_calls:
        data["tool_calls"] = [_written(call) for call in turn.tool_calls]
    return {"kind": "turn", "program_id": program_id, "turn": index, **data}


def end_line(program_id: str) -> dict[str, Any]:
    """Return the line that closes a program: no turn of the program follows."""
    return {"kind": "end", "program_id": program_id}


def encoded(line: Mapping[str, Any]) -> bytes:
    """Return the bytes of a line, with its line end."""
    return _encode(line).encode("utf-8", "replace") + b"\n"


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def _written(row: Program | Turn | ToolCall) -> dict[str, Any]:
    """Return the fields that differ from their default."""
    values = ((name, getattr(row, name), default) for name, default in _DEFAULTS[type(row)])
    return {name: value for name, value, default in values if value is not None and value != () and value != default}


_DEFAULTS: dict[type, tuple[tuple[str, Any], ...]] = {
    row_type: tuple((field.name, field.default) for field in fields(row_type)) for row_type in (Program, Turn, ToolCall)
}


def read_program(data: Mapping[str, Any]) -> tuple[Program | None, list[FieldFault]]:
    """Read the line that opens a program. The program has no turns yet; it is None if there are faults."""
    values, faults = _checked(Program, data, {"kind"})
    if values.get("shared_prefix_tokens") and "shared_prefix_id" not in values:
        faults.append(FieldFault("shared_prefix_tokens", "given without shared_prefix_id"))
    return (None if faults else Program(turns=(), **values)), faults


def read_turn(data: Mapping[str, Any]) -> tuple[Turn | None, list[FieldFault]]:
    """Read the line of a turn. The turn is None if there are faults."""
    values, faults = _checked(Turn, data, {"kind", "program_id", "turn", "tool_calls"})
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
    values, faults = _checked(ToolCall, raw, set(), where + ".")
    return (None if faults else ToolCall(**values)), faults


def _checked(
    row_type: type, data: Mapping[str, Any], other: set[str], where: str = ""
) -> tuple[dict[str, Any], list[FieldFault]]:
    """Return the valid text, numbers and flags of a row, and the faults of its other fields.

    Args:
        row_type: the dataclass that declares the fields.
        data: the row as it was read.
        other: further names that the row may have.
        where: put before the names of fields in faults.
    """
    types, required = field_types(row_type)
    scalars = {name: kinds[0] for name, (kinds, _) in types.items() if kinds[0] is not tuple}
    values: dict[str, Any] = {}
    faults = [FieldFault(where + name, "unknown field") for name in data if name not in scalars and name not in other]
    for name, kind in scalars.items():
        value = data.get(name)
        if value is None:
            problem = "missing" if name in required else None
        else:
            problem = _problem(value, kind, name in required, _LEAST.get(name, 0))
        if problem is not None:
            faults.append(FieldFault(where + name, problem))
        elif value is not None:
            values[name] = float(value) if kind is float else value
    return values, faults


def _problem(value: Any, kind: type, required: bool, least: int) -> str | None:
    """Return what is wrong with a value of a field, or None. A field of type float is a number of seconds."""
    if kind is str:
        return None if isinstance(value, str) and (value or not required) else "expected text"
    if kind is dict:
        return metadata_fault(value)
    if kind is bool:
        return None if isinstance(value, bool) else "expected true or false"
    if isinstance(value, bool) or not isinstance(value, int if kind is int else (int, float)):
        return "expected a whole number" if kind is int else "expected a number of seconds"
    if not abs(value) < LARGEST:
        return "not finite or too large"
    return None if value >= least else f"{value} is below {least}"


def metadata_fault(metadata: Any) -> str | None:
    """Return what is wrong with a program's metadata, or None."""
    if not isinstance(metadata, Mapping) or len(metadata) > MAX_METADATA:
        return f"expected at most {MAX_METADATA} names with a value each"
    for name, value in metadata.items():
        if not isinstance(name, str) or not 0 < len(name) <= MAX_METADATA_NAME_CHARS:
            return f"{str(name)[:60]!r}: a name is text of 1 to {MAX_METADATA_NAME_CHARS} characters"
        fault = _value_fault(value)
        if fault is not None:
            return f"{name!r}: {fault}"
    return None


def _value_fault(value: Any) -> str | None:
    if isinstance(value, str):
        return None if len(value) <= MAX_METADATA_CHARS else f"longer than {MAX_METADATA_CHARS} characters"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"expected text or a number, not {type(value).__name__}"
    return None if abs(value) < LARGEST else "not finite or too large"
