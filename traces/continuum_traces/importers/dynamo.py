"""Import NVIDIA Dynamo's request traces (``DYN_REQUEST_TRACE=1``, schema ``dynamo.request.trace.v1``).

The fields are those of Dynamo 1.6.1 (lib/llm/src/request_trace/types.rs in its source). A ``request_end`` record is a
turn, and its session is the program. The gap behind a turn lasts until the session's next request is received. Tools
that the agent reports (``tool_end``) have their own times. If it reports none, the tools that the answer calls share
the gap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from continuum_traces.assumptions import Assumptions
from continuum_traces.importers.block_ids import Ids, alike
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.usage import (
    UNKNOWN,
    Imported,
    RequestUsage,
    calls_sharing_a_time,
    count_of,
    inner,
    listed,
    number,
)
from continuum_traces.jsonl import TraceError
from continuum_traces.schema import Program, ToolCall

SCHEMA = "dynamo.request.trace.v1"

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Request:
    received_ms: float
    end_ms: float
    usage: RequestUsage
    called: Mapping[str, str]
    """The names of the tools that the answer calls, by the ids of the calls."""
    block_tokens: int | None
    ids: Ids
    """The ids of the prompt's blocks."""
    ids_after: Ids
    """The ids of the blocks of prompt and answer; empty if the source does not say."""


@dataclass(frozen=True, slots=True)
class _Tool:
    call_id: str
    name: str
    ended_ms: float
    duration_ms: float


@dataclass(slots=True)
class _Session:
    name: str
    tagged: bool = True
    parent: str | None = None
    model: str | None = None
    requests: list[_Request] = field(default_factory=list)
    tools: list[_Tool] = field(default_factory=list)


Part = tuple[str, Record]
"""A record, behind its place."""


def read_dynamo(file: Source) -> Iterator[Part]:
    """NVIDIA Dynamo's request trace, in one file or several: one turn per ``request_end`` record.

    Raises:
        TraceError: a file has a fault. The message names file, line and field.
    """
    for where, row in file.rows():
        record = inner(where, row, "event") or row
        if record.get("schema") != SCHEMA:
            raise TraceError(f"{where}: schema: expected {SCHEMA}, found {repr(record.get('schema'))[:60]}")
        yield where, record


def join_dynamo(parts: Iterable[Part], assumptions: Assumptions) -> Iterator[Imported]:
    """Yield the sessions of all files: Dynamo begins a new file when one is full."""
    sessions: dict[str, _Session] = {}
    places: dict[str, str] = {}
    for where, record in parts:
        _add(sessions, places, where, record)
    begun = [session for session in sessions.values() if session.requests]
    start_ms = min((request.received_ms for each in begun for request in each.requests), default=0.0)
    yield from (_imported(session, sessions.get(session.parent or ""), start_ms) for session in begun)


def _add(sessions: dict[str, _Session], places: dict[str, str], where: str, record: Record) -> None:
    """Add a record to its session; ``places`` says where each request id stands."""
    kind, context = record.get("event_type"), inner(where, record, "agent_context")
    if kind == "request_end":
        request, request_at = inner(where, record, "request"), f"{where}: request"
        request_id = _text(request_at, request, "request_id")
        if request_id in places:
            raise TraceError(f"{request_at}: request_id: {request_id[:60]!r} is also at {places[request_id]}")
        places[request_id] = where
        name = _text(f"{where}: agent_context", context, "session_id") if context else request_id
        session = sessions.setdefault(name, _Session(name, bool(context)))
        session.parent = session.parent or context.get("parent_session_id")
        session.model = session.model or request.get("model")
        session.requests.append(_request(request_at, number(where, record, "event_time_unix_ms"), request))
    elif kind in ("tool_end", "tool_error"):
        name = _text(f"{where}: agent_context", context, "session_id")
        tool = _tool(f"{where}: tool", number(where, record, "event_time_unix_ms"), inner(where, record, "tool"))
        sessions.setdefault(name, _Session(name)).tools.append(tool)
    elif kind not in ("tool_start", "request_payload"):
        raise TraceError(f"{where}: event_type: expected request_end or tool_end, found {repr(kind)[:60]}")


def _text(where: str, data: Record, name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise TraceError(f"{where}: {name}: expected text, found {repr(value)[:60]}")
    return value


def _request(where: str, event_ms: float, request: Record) -> _Request:
    received_ms = number(where, request, "request_received_ms")
    end_ms = received_ms + number(where, request, "total_time_ms", max(0.0, event_ms - received_ms))
    replay, replay_at = inner(where, request, "replay"), f"{where}: replay"
    usage = RequestUsage(
        prompt_tokens=count_of(where, request, "input_tokens", count_of(replay_at, replay, "input_length", 0)),
        output_tokens=count_of(where, request, "output_tokens", 0),
        cached_tokens=request.get("cached_tokens"),
        llm_s=(end_ms - received_ms) / 1e3,
    )
    calls = listed(where, inner(where, request, "finish_reason_metadata"), "tool_calls", dict)
    return _Request(
        received_ms,
        end_ms,
        usage,
        {str(call.get("id") or n): str(call.get("name") or UNKNOWN) for n, call in enumerate(calls)},
        count_of(replay_at, replay, "trace_block_size", 0) or None,
        listed(replay_at, replay, "input_sequence_hashes", int),
        listed(replay_at, replay, "completion_sequence_hashes", int),
    )


def _tool(where: str, event_ms: float, tool: Record) -> _Tool:
    ended_ms = number(where, tool, "ended_at_unix_ms", event_ms)
    started_ms = number(where, tool, "started_at_unix_ms", ended_ms)
    duration_ms = number(where, tool, "duration_ms", max(0.0, ended_ms - started_ms))
    return _Tool(_text(where, tool, "tool_call_id"), str(tool.get("tool_class") or UNKNOWN), ended_ms, duration_ms)


def _started(parent: _Session | None, sent_ms: float) -> tuple[int | None, float]:
    """Return the parent's last turn that ended before a request was sent, or its first, and the seconds between them;
    None: the parent has no turns."""
    requests = [] if parent is None else sorted(parent.requests, key=lambda each: (each.received_ms, each.end_ms))
    if not requests:
        return None, 0.0
    turn = max((turn for turn, each in enumerate(requests) if each.end_ms <= sent_ms), default=0)
    return turn, max(0.0, round((sent_ms - requests[turn].end_ms) / 1e3, 6))


def _imported(session: _Session, parent: _Session | None, start_ms: float) -> Imported:
    requests = sorted(session.requests, key=lambda request: (request.received_ms, request.end_ms))
    starts_ms = [request.received_ms for request in requests]
    reported: list[list[_Tool]] = [[] for _ in requests]
    for tool in sorted(session.tools, key=lambda tool: tool.ended_ms):
        reported[max(0, bisect_left(starts_ms, tool.ended_ms) - 1)].append(tool)
    gaps_s = [max(0.0, after.received_ms - before.end_ms) / 1e3 for before, after in pairwise(requests)]
    kept = [_kept(before, after) for before, after in pairwise(requests)]
    usage = [
        replace(_with_tools(request, tools, gap_s), kept_tokens=tokens)
        for request, tools, gap_s, tokens in zip(requests, reported, [*gaps_s, None], [None, *kept], strict=True)
    ]
    arrival_s = (starts_ms[0] - start_ms) / 1e3
    turn, gap_s = _started(parent, starts_ms[0])
    started: dict[str, Any] = {"parent_id": session.parent, "parent_turn": turn, "parent_gap_s": gap_s}
    program = Program(session.name, (), "dynamo", session.model, arrival_s=arrival_s, **started)
    ids = [request.ids for request in requests]
    return Imported(replace(program, tagged=session.tagged), usage, ids=ids, block_tokens=requests[0].block_tokens)


def _with_tools(request: _Request, tools: Sequence[_Tool], gap_s: float | None) -> RequestUsage:
    """Return the request with its tools and the rest of the gap behind it. None: no request follows."""
    names = dict(request.called)
    calls = tuple(_call(names.pop(tool.call_id, tool.name), tool, request.end_ms) for tool in tools)
    calls += calls_sharing_a_time(names.values(), None if calls else gap_s)
    tools_s = max((call.end_s for call in calls), default=0.0)
    return replace(request.usage, tool_calls=calls, gap_overhead_s=max(0.0, (gap_s or 0.0) - tools_s))


def _call(name: str, tool: _Tool, turn_end_ms: float) -> ToolCall:
    """Return the part of a tool behind its turn. Instants are whole milliseconds, while durations are exact."""
    start_ms = tool.ended_ms - tool.duration_ms - turn_end_ms
    if abs(start_ms) < 1.0:
        start_ms = 0.0
    return ToolCall(name, max(0.0, tool.duration_ms + min(0.0, start_ms)) / 1e3, max(0.0, start_ms) / 1e3)


def _kept(before: _Request, after: _Request) -> int | None:
    """Return how much of the context before is kept, if the source says that it is not all of the answer."""
    prompt, context = before.usage.prompt_tokens, before.usage.prompt_tokens + before.usage.output_tokens
    blocks, block_tokens = alike(after.ids, before.ids_after), before.block_tokens
    if block_tokens is None or not before.ids_after or blocks >= context // block_tokens:
        return None
    return min(max(prompt, blocks * block_tokens), after.usage.prompt_tokens - 1)


IMPORTERS = (
    Importer(
        "dynamo",
        read_dynamo,
        (
            Signs({"timestamp": object, "event": dict, "event.schema": SCHEMA}),
            Signs({"schema": SCHEMA, "event_type": str}, more=("event_time_unix_ms", "agent_context")),
        ),
        join_dynamo,
    ),
)
