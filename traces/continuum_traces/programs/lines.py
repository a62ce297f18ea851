"""The lines of a trace file: write programs and turns as dictionaries, read dictionaries and name their faults.

The client's recorder writes the same lines. docs/trace-format.md describes the format.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from continuum_traces.schema import TRACE_SCHEMA, TRACE_VERSION, Program, ToolCall, Turn
from continuum_traces.typed import LARGEST, FieldFault, numbers, parse

Row = TypeVar("Row", Program, Turn)

MAX_METADATA, MAX_METADATA_NAME_CHARS, MAX_METADATA_CHARS = 16, 64, 512
"""The most entries of a program's metadata, and the longest name and text: those of OpenAI's own ``metadata``."""
_LEAST = {"output_tokens": 1}
"""The smallest value of a number, by field; 0 for all other fields."""


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


def gap_line(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line that completes the line of a turn, when the next turn or the end of the program is known.

    Args:
        before: the turn's line as it is in the file.
        now: the whole line.
    """
    more = {name: value for name, value in now.items() if before.get(name) != value}
    return {"kind": "gap", "program_id": now["program_id"], "turn": now["turn"], **more}


def end_line(program_id: str) -> dict[str, Any]:
    """Return the line that closes a program: no turn of the program follows."""
    return {"kind": "end", "program_id": program_id}


def digest(text: str) -> str:
    """Return a digest of the arguments of a call: equal arguments have equal digests."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
    named = {name: value for name, value in data.items() if name != "kind"}
    metadata = named.pop("metadata", None)
    fault = None if metadata is None else metadata_fault(metadata)
    program, faults = _read(Program, {**named, "turns": []})
    if named.get("program_id") == "":
        faults.append(FieldFault("program_id", "expected text"))
    if fault is not None:
        faults.append(FieldFault("metadata", fault))
    if program is not None and program.shared_prefix_tokens and program.shared_prefix_id is None:
        faults.append(FieldFault("shared_prefix_tokens", "given without shared_prefix_id"))
    return (None if faults or program is None else replace(program, metadata=metadata)), faults


def read_turn(data: Mapping[str, Any]) -> tuple[Turn | None, list[FieldFault]]:
    """Read the line of a turn. The turn is None if there are faults."""
    turn, faults = _read(Turn, {name: data[name] for name in data if name not in ("kind", "program_id", "turn")})
    if turn is not None:
        if turn.carried > turn.output_tokens:
            faults.append(FieldFault("carried_tokens", "more than output_tokens"))
        for number, call in enumerate(turn.tool_calls):
            if not call.name:
                faults.append(FieldFault(f"tool_calls[{number}].name", "expected text"))
    return (None if faults else turn), faults


def _read(row_type: type[Row], data: Mapping[str, Any]) -> tuple[Row | None, list[FieldFault]]:
    """Read a row, in which no number is below its least value."""
    row, faults = parse(row_type, json.dumps(data))
    for name, value in numbers(row) if row is not None else ():
        if value < _LEAST.get(name, 0):
            faults.append(FieldFault(name, f"{value} is below {_LEAST.get(name, 0)}"))
    return (None if faults else row), faults


def is_sound(program: Program) -> bool:
    """Return whether a program without metadata and text has no fault, quickly: False means that it may have one."""
    names = (program.program_id, program.source)
    optional = (program.model, program.parent_id, program.shared_prefix_id)
    if not all(type(name) is str and name for name in names) or any(type(name) not in _TEXT for name in optional):
        return False
    if program.metadata is not None or not all(map(_is_number, (program.arrival_s, program.parent_gap_s))):
        return False
    if program.parent_turn is not None and not _is_count(program.parent_turn):
        return False
    return all(_is_sound_turn(turn) for turn in program.turns)


_TEXT = (str, type(None))


def _is_sound_turn(turn: Turn) -> bool:
    counts = (turn.new_input_tokens, turn.output_tokens, turn.carried_tokens, turn.kept_tokens, turn.cached_tokens)
    if not all(each is None or _is_count(each) for each in counts):
        return False
    if turn.output_tokens < 1 or turn.carried > turn.output_tokens or turn.text is not None:
        return False
    times = (turn.gap_overhead_s, turn.llm_s, turn.ttft_s)
    calls = turn.tool_calls
    return all(map(_is_number, times)) and all(
        type(call.name) is str and call.name and _is_number(call.duration_s) and _is_number(call.start_s)
        for call in calls
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _is_number(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < LARGEST)  # type: ignore[operator]


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
