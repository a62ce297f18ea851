"""Import formats of other load generators: Mooncake, agentic_mooncake, Weka, MLPerf-agentic.

All are JSON lines that hold lengths, except MLPerf-agentic, which holds text. Only MLPerf-agentic names tools. In the
others a gap between two requests becomes a call of the tool ``unknown`` if the source says that it is tool time,
otherwise ``gap_overhead_s``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from continuum_traces.importers.shared_prefix import Opened, with_shared_prefixes
from continuum_traces.importers.usage import (
    ESTIMATED,
    UNKNOWN,
    RequestUsage,
    estimate_tokens,
    json_lines,
    number,
    turns_from_usage,
)
from continuum_traces.jsonl import TraceError
from continuum_traces.schema import Program, ToolCall

Row = dict[str, Any]


def read_mooncake(path: Path) -> Iterator[Program]:
    """One request per line: ``timestamp`` (ms), ``input_length``, ``output_length``, ``delay`` (ms, before the
    request). Rows with the same ``session_id`` are the turns of a program; a row without it is a whole program."""
    for name, rows in _grouped(path, "session_id", "input_length", "output_length"):
        yield _from_lengths(name, rows, "mooncake", tool_times=False)


def read_agentic_mooncake(path: Path) -> Iterator[Program]:
    """One request per line, in the order of each session. ``tool_wait_ms`` is the time of the tools, ``delay`` (ms) is
    other time."""
    for name, rows in _grouped(path, "session_id", "request_id", "input_length", "output_length"):
        yield _from_lengths(name, rows, "agentic_mooncake", tool_times=True)


def _from_lengths(name: str, rows: list[tuple[str, Row]], source: str, tool_times: bool) -> Program:
    delays_s = [number(where, row, "delay", 0) / 1e3 for where, row in rows[1:]]
    tools_s = [number(where, row, "tool_wait_ms", 0) / 1e3 if tool_times else 0.0 for where, row in rows[1:]]
    requests = [
        RequestUsage(
            int(number(where, row, "input_length")),
            int(number(where, row, "output_length")),
            tool_calls=(ToolCall(UNKNOWN, tool_s),) if tool_s else (),
            gap_overhead_s=delay_s,
        )
        for (where, row), delay_s, tool_s in zip(rows, [*delays_s, 0.0], [*tools_s, 0.0], strict=True)
    ]
    start = rows[0][1].get("timestamp")
    arrival_s = float(start) / 1e3 if isinstance(start, int | float) else None
    return Program(name, tuple(turns_from_usage(requests)), source, arrival_s=arrival_s)


def read_weka(path: Path) -> Iterator[Program]:
    """One conversation per line: ``requests[]`` of ``in``, ``out``, ``think_time`` (s, before the request)."""
    for line_number, row in json_lines(path, "requests"):
        where = f"{path}:{line_number}"
        if not isinstance(row["requests"], list):
            raise TraceError(f"{where}: requests: expected a list")
        requests = [request for request in row["requests"] if isinstance(request, dict) and "in" in request]
        thinking = [float(number(where, request, "think_time", 0)) for request in requests[1:]] + [0.0]
        usage = [
            RequestUsage(
                int(number(where, request, "in")),
                int(number(where, request, "out")),
                gap_overhead_s=gap,
                llm_s=request.get("api_time"),
            )
            for request, gap in zip(requests, thinking, strict=True)
        ]
        name = str(row.get("id") or row.get("conversation_id") or f"conversation-{line_number}")
        model = requests[0].get("model") if requests else None
        yield Program(name, tuple(turns_from_usage(usage)), "weka", model)


def read_mlperf_agentic(path: Path) -> Iterator[Program]:
    """One message per line: ``conversation_id``, ``turn``, ``role``, ``content``, ``tool_calls``, ``delay_seconds``.

    Lengths are estimated from the text, and the programs' ``source`` says so.
    """
    yield from with_shared_prefixes(_mlperf_opened(path))


def _mlperf_opened(path: Path) -> Iterator[Opened]:
    for name, rows in _grouped(path, "conversation_id", "role"):
        requests: list[RequestUsage] = []
        prompt = 0
        for (_, message), (where, after) in pairwise([*rows, rows[-1]]):
            size = max(1, estimate_tokens(_message_text(message)))
            if message["role"] == "assistant":
                delay_s = float(number(where, after, "delay_seconds", 0)) if after is not message else 0.0
                names = [_called(call) for call in message.get("tool_calls") or []]
                calls = tuple(ToolCall(tool, delay_s) for tool in names)
                requests.append(RequestUsage(prompt, size, tool_calls=calls, gap_overhead_s=0.0 if calls else delay_s))
            prompt += size
        turns = tuple(turns_from_usage(requests))
        asked = takewhile(lambda message: message["role"] != "assistant", (message for _, message in rows))
        yield Opened(Program(name, turns, f"mlperf-agentic ({ESTIMATED})"), tuple(map(_message_text, asked)))


def _message_text(message: Row) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    return text + (json.dumps(calls) if calls else "")


def _called(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    return str(function.get("name") or UNKNOWN) if isinstance(function, dict) else UNKNOWN


def _grouped(path: Path, key: str, *required: str) -> Iterator[tuple[str, list[tuple[str, Row]]]]:
    """Yield the rows with the same ``key``, each with its place; a row without ``key`` is a group of its own."""
    groups: dict[str, list[tuple[str, Row]]] = {}
    for line_number, row in json_lines(path, *required):
        name = str(row[key]) if key in row else f"request-{line_number}"
        groups.setdefault(name, []).append((f"{path}:{line_number}", row))
    yield from groups.items()
