"""Import rows of lengths and block ids: Mooncake, agentic_mooncake, Qwen-Bailian. They hold no text and no tools.

A gap between two requests becomes a call of the tool ``unknown`` if the source says that it is tool time, otherwise
``gap_overhead_s``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.usage import (
    UNKNOWN,
    Imported,
    RequestUsage,
    Row,
    count_of,
    in_order,
    listed,
    number,
    rows_by,
)
from continuum_traces.schema import Program, ToolCall

WHOLE = "message_array_with_responses"
"""aiperf's ``context_mode`` of sessions whose rows are whole prompts."""
BAILIAN_BLOCK_TOKENS = 16
BRANCH = "goes on from a request that another one goes on from: a program of its own"
START_TO_START = "time to the next counted from start to start: the answer's own time is part of it"


def read_mooncake(file: Source) -> Iterator[Imported]:
    """One request per line: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``, ``delay`` (ms,
    before the request). Rows with the same ``session_id`` are the turns of a program; a row without it is a whole
    program.

    As in aiperf, a later row of a session holds what its turn adds to the conversation. It is a whole prompt if
    ``context_mode`` says so, or without one if some row's ``hash_ids`` begin like those of the row before.
    """
    of_sessions: list[Row] = []
    for number_in_file, (where, row) in enumerate(file.rows("input_length", "output_length"), 1):
        if row.get("session_id") is None:
            yield _from_lengths(file, f"request-{number_in_file}", [(where, row)], "mooncake", False)
        else:
            of_sessions.append((where, row))
    sessions = rows_by("session_id", of_sessions)
    repeating = any(_repeats(rows) for rows in sessions.values())
    yield from (_from_lengths(file, name, rows, "mooncake", repeating) for name, rows in sessions.items())


def _repeats(rows: list[Row]) -> bool:
    ids = [listed(where, row, "hash_ids", int) for where, row in rows]
    return any(before and after and before[0] == after[0] for before, after in pairwise(ids))


def read_agentic_mooncake(file: Source) -> Iterator[Imported]:
    """One request per line, with its whole prompt. ``tool_wait_ms`` is the time of the tools, ``delay`` (ms) is other
    time."""
    sessions = rows_by("session_id", file.rows("request_id", "input_length", "output_length"))
    yield from (_from_lengths(file, name, rows, "agentic_mooncake", True) for name, rows in sessions.items())


def _from_lengths(file: Source, name: str, rows: list[Row], source: str, whole: bool) -> Imported:
    agentic = source == "agentic_mooncake"
    rows = in_order(rows, "timestamp") if len(rows) > 1 else rows
    mode = rows[0][1].get("context_mode")
    whole = whole if mode is None or agentic else mode == WHOLE
    delays_s = [number(where, row, "delay", 0) / 1e3 for where, row in rows[1:]]
    tools_s = [number(where, row, "tool_wait_ms", 0) / 1e3 if agentic else 0.0 for where, row in rows[1:]]
    requests, context = [], 0
    for (where, row), delay_s, tool_s in zip(rows, [*delays_s, 0.0], [*tools_s, 0.0], strict=True):
        prompt = context + count_of(where, row, "input_length")
        calls = (ToolCall(UNKNOWN, tool_s),) if tool_s else ()
        output = count_of(where, row, "output_length")
        requests.append(RequestUsage(prompt, output, tool_calls=calls, gap_overhead_s=delay_s))
        context = 0 if whole else prompt + output
    if len(rows) > 1 and not agentic:
        file.assume("session", "each row read as a whole prompt" if whole else "each row added to the rows before it")
    where, first = rows[0]
    arrival_s = None if first.get("timestamp") is None else number(where, first, "timestamp") / 1e3
    ids = [listed(where, row, "hash_ids", int) if whole or n == 0 else () for n, (where, row) in enumerate(rows)]
    return Imported(Program(name, (), source, arrival_s=arrival_s), requests, ids=ids)


def read_bailian(file: Source) -> Iterator[Imported]:
    """Qwen-Bailian's usage traces: one request per line, with its whole prompt. ``parent_chat_id`` is the chat's
    request before it (-1: none), ``timestamp`` is in seconds, ``hash_ids`` name blocks of 16 tokens."""
    rows: dict[str, Row] = {}
    for where, row in file.rows("chat_id", "parent_chat_id", "timestamp"):
        again = rows.setdefault(str(row["chat_id"]), (where, row))[0] != where
        file.assume("request", "with the chat_id of an earlier one: left out", int(again))
    latest: dict[str, list[str]] = {}
    """The ids of each chat so far, by the id of its latest request."""
    for chat_id, (_, row) in sorted(rows.items(), key=_timestamp):
        parent = str(row["parent_chat_id"])
        begun = latest.pop(parent, [])
        file.assume("chat", "its earlier requests are not in the file", int(parent != "-1" and parent not in rows))
        file.assume("chat", BRANCH, int(parent in rows and not begun))
        latest[chat_id] = [*begun, chat_id]
    for ids in sorted(latest.values(), key=lambda ids: _timestamp((ids[0], rows[ids[0]]))):
        yield _chat(file, [rows[chat_id] for chat_id in ids])


def _timestamp(named: tuple[str, Row]) -> float:
    where, row = named[1]
    return number(where, row, "timestamp")


def _chat(file: Source, rows: list[Row]) -> Imported:
    starts_s = [number(where, row, "timestamp") for where, row in rows]
    gaps_s = [after - before for before, after in pairwise(starts_s)]
    file.assume("request", START_TO_START, len(gaps_s))
    requests = [
        RequestUsage(count_of(where, row, "input_length"), count_of(where, row, "output_length"), gap_overhead_s=gap_s)
        for (where, row), gap_s in zip(rows, [*gaps_s, 0.0], strict=True)
    ]
    program = Program(str(rows[0][1]["chat_id"]), (), "bailian", arrival_s=float(starts_s[0]))
    ids = [listed(where, row, "hash_ids", int) for where, row in rows]
    return Imported(program, requests, ids=ids, block_tokens=BAILIAN_BLOCK_TOKENS)


_LENGTHS = {"input_length": object, "output_length": object}
_MORE = ("timestamp", "hash_ids", "session_id", "delay", "context_mode", "tool_wait_ms", "wait_for", "turn", "type")
_AGENTIC = ("tool_wait_ms", "wait_for", "request_id")
_BAILIAN = ("chat_id", "parent_chat_id")
IMPORTERS = (
    Importer("mooncake", read_mooncake, (Signs(_LENGTHS, _MORE, without=(*_AGENTIC, *_BAILIAN)),)),
    Importer(
        "agentic-mooncake",
        read_agentic_mooncake,
        (Signs({**_LENGTHS, "session_id": object, "request_id": object}, _MORE, without=_BAILIAN),),
    ),
    Importer(
        "bailian",
        read_bailian,
        (Signs({**_LENGTHS, "chat_id": object, "parent_chat_id": object, "timestamp": object}, _MORE),),
    ),
)
