"""Import formats of other load generators: Mooncake, agentic_mooncake, Weka, MLPerf-agentic, ShareGPT, OpenAI.

The first three are JSON lines that hold lengths, the others hold text. Only MLPerf-agentic and OpenAI's messages name
tools. In the others a gap between two requests becomes a call of the tool ``unknown`` if the source says that it is
tool time, otherwise ``gap_overhead_s``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Any

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.usage import (
    ESTIMATED,
    UNKNOWN,
    Imported,
    RequestUsage,
    Row,
    estimate_tokens,
    inner,
    listed,
    number,
    rows_by,
)
from continuum_traces.schema import Program, ToolCall

WHOLE = "message_array_with_responses"
"""aiperf's ``context_mode`` of sessions whose rows are whole prompts."""


def read_mooncake(file: Source) -> Iterator[Imported]:
    """One request per line: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``, ``delay`` (ms,
    before the request). Rows with the same ``session_id`` are the turns of a program; a row without it is a whole
    program.

    As in aiperf, a later row of a session holds what its turn adds to the conversation. It is a whole prompt if
    ``context_mode`` says so, or without one if some row's ``hash_ids`` begin like those of the row before.
    """
    sessions = rows_by("session_id", file.rows("input_length", "output_length"))
    repeating = any(_repeats(rows) for rows in sessions.values())
    yield from (_from_lengths(name, rows, "mooncake", repeating) for name, rows in sessions.items())


def _repeats(rows: list[Row]) -> bool:
    ids = [listed(where, row, "hash_ids", int) for where, row in rows]
    return any(before and after and before[0] == after[0] for before, after in pairwise(ids))


def read_agentic_mooncake(file: Source) -> Iterator[Imported]:
    """One request per line, with its whole prompt, in the order of each session. ``tool_wait_ms`` is the time of the
    tools, ``delay`` (ms) is other time."""
    sessions = rows_by("session_id", file.rows("request_id", "input_length", "output_length"))
    yield from (_from_lengths(name, rows, "agentic_mooncake", True) for name, rows in sessions.items())


def _from_lengths(name: str, rows: list[Row], source: str, whole: bool) -> Imported:
    agentic = source == "agentic_mooncake"
    mode = rows[0][1].get("context_mode")
    whole = whole if mode is None or agentic else mode == WHOLE
    delays_s = [number(where, row, "delay", 0) / 1e3 for where, row in rows[1:]]
    tools_s = [number(where, row, "tool_wait_ms", 0) / 1e3 if agentic else 0.0 for where, row in rows[1:]]
    requests, context = [], 0
    for (where, row), delay_s, tool_s in zip(rows, [*delays_s, 0.0], [*tools_s, 0.0], strict=True):
        prompt = context + int(number(where, row, "input_length"))
        calls = (ToolCall(UNKNOWN, tool_s),) if tool_s else ()
        output = int(number(where, row, "output_length"))
        requests.append(RequestUsage(prompt, output, tool_calls=calls, gap_overhead_s=delay_s))
        context = 0 if whole else prompt + output
    start = rows[0][1].get("timestamp")
    arrival_s = float(start) / 1e3 if isinstance(start, int | float) else None
    ids = [listed(where, row, "hash_ids", int) if whole or n == 0 else () for n, (where, row) in enumerate(rows)]
    if len(rows) > 1 and not agentic:
        source = f"{source}, {'each row a whole prompt' if whole else 'each row added to its session'}"
    return Imported(Program(name, (), source, arrival_s=arrival_s), requests, ids=ids)


def read_weka(file: Source) -> Iterator[Imported]:
    """One conversation per line: ``requests[]`` of ``in``, ``out``, ``think_time`` (s, before the request), and
    ``hash_ids``."""
    for number_in_file, (where, row) in enumerate(file.rows("requests"), 1):
        yield _weka(where, number_in_file, row)


def _weka(where: str, line: int, row: dict[str, Any]) -> Imported:
    requests = [request for request in listed(where, row, "requests", dict) if "in" in request]
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
    name = str(row.get("id") or row.get("conversation_id") or f"conversation-{line}")
    model = requests[0].get("model") if requests else None
    return Imported(
        Program(name, (), "weka", model), usage, ids=[listed(where, request, "hash_ids", int) for request in requests]
    )


def read_mlperf_agentic(file: Source) -> Iterator[Imported]:
    """One message per line: ``conversation_id``, ``turn``, ``role``, ``content``, ``tool_calls``, ``delay_seconds``.

    Lengths are estimated from the text, and the programs' ``source`` says so.
    """
    for name, rows in rows_by("conversation_id", file.rows("role")).items():
        yield _from_messages(name, rows, "mlperf-agentic")


def read_openai_messages(file: Source) -> Iterator[Imported]:
    """Conversations of ``messages`` in OpenAI's form: JSON lines, or a list of them. Lengths are estimated from the
    text; the times of tools are not known, other times between turns are taken as 0."""
    yield from (_from_messages(*each, "openai-messages") for each in _conversations(file, "messages"))


def read_sharegpt(file: Source) -> Iterator[Imported]:
    """The same of ``conversations``, whose messages have ``from`` and ``value``."""
    for name, rows in _conversations(file, "conversations"):
        spoken = [(where, {"role": SPEAKERS.get(row["from"], "user"), "content": row["value"]}) for where, row in rows]
        yield _from_messages(name, spoken, "sharegpt")


SPEAKERS = dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bard", "bing"), "assistant")
"""Who answers in ShareGPT's files; all others ask."""


def _conversations(file: Source, key: str) -> Iterator[tuple[str, list[Row]]]:
    for number_in_file, (where, row) in enumerate(file.rows(key), 1):
        messages = listed(where, row, key, dict)
        yield str(row.get("id") or f"conversation-{number_in_file}"), [(where, message) for message in messages]


def _from_messages(name: str, rows: list[Row], source: str) -> Imported:
    requests: list[RequestUsage] = []
    prompt = 0
    for (here, message), (where, after) in pairwise([*rows, *rows[-1:]]):
        size = max(1, estimate_tokens(_message_text(message)))
        if message["role"] == "assistant":
            delay_s = float(number(where, after, "delay_seconds", 0)) if after is not message else 0.0
            functions = [inner(here, call, "function") for call in listed(here, message, "tool_calls", dict)]
            names = [str(function.get("name") or UNKNOWN) for function in functions]
            calls = tuple(ToolCall(tool, delay_s if "delay_seconds" in after else None) for tool in names)
            requests.append(RequestUsage(prompt, size, tool_calls=calls, gap_overhead_s=0.0 if calls else delay_s))
        prompt += size
    asked = takewhile(lambda message: message["role"] != "assistant", (message for _, message in rows))
    return Imported(Program(name, (), f"{source} ({ESTIMATED})"), requests, tuple(map(_message_text, asked)))


def _message_text(message: dict[str, Any]) -> str:
    content, calls = message.get("content"), message.get("tool_calls")
    text = content if isinstance(content, str) else json.dumps(content) if content else ""
    return text + (json.dumps(calls) if calls else "")


IMPORTERS = (
    Importer(
        "mooncake",
        read_mooncake,
        (
            Signs(
                {"input_length": object, "output_length": object},
                more=("timestamp", "hash_ids", "session_id", "delay", "context_mode"),
                without=("tool_wait_ms", "wait_for", "chat_id", "request_id"),
            ),
        ),
    ),
    Importer(
        "agentic-mooncake",
        read_agentic_mooncake,
        (
            Signs(
                {"request_id": object, "session_id": object, "input_length": object, "output_length": object},
                more=("timestamp", "hash_ids", "delay", "tool_wait_ms", "wait_for"),
            ),
        ),
    ),
    Importer(
        "weka",
        read_weka,
        (
            Signs(
                {"requests": list, "requests.in": int, "requests.out": int},
                more=("id", "block_size", "hash_id_scope", "totals", "requests.hash_ids", "requests.think_time"),
            ),
        ),
    ),
    Importer(
        "mlperf-agentic",
        read_mlperf_agentic,
        (Signs({"conversation_id": object, "role": str, "content": object}, more=("turn", "tool_calls")),),
    ),
    Importer(
        "sharegpt",
        read_sharegpt,
        (Signs({"conversations": list, "conversations.from": str, "conversations.value": str}, more=("id",)),),
    ),
    Importer(
        "openai-messages",
        read_openai_messages,
        (
            Signs(
                {"messages": list, "messages.role": str},
                more=("id", "tools", "model", "messages.content"),
                without=("response", "trajectory_format", "info", "steps", "history"),
            ),
        ),
    ),
)
