"""Import NVIDIA Dynamo's request traces (``DYN_REQUEST_TRACE=1``, schema ``dynamo.request.trace.v1``).

The fields are those of Dynamo 1.6.1 (lib/llm/src/request_trace/types.rs in its source). A ``request_end`` record is a
turn, and its session is the program. The gap behind a turn lasts until the session's next request is received. Tools
that the agent reports (``tool_end``) have their own times. If it reports none, the tools that the answer calls share
the gap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from continuum_traces.importers.block_ids import Ids, alike
from continuum_traces.importers.described import UNKNOWN, Imported, RequestUsage, count_of, inner, listed, number
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timed_requests import AnsweredRequest, Thread, TimedCall, programs_on_timeline
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.jsonl import TraceError

SCHEMA = "dynamo.request.trace.v1"

CLOCK_S = 1e-3
"""The unit of the instants in the records."""
Record = Mapping[str, Any]


class _Asked(NamedTuple):
    """A request, with what only Dynamo's records have."""

    answer: AnsweredRequest
    called: dict[str, str]
    """The names of the tools that the answer calls, by the ids of the calls."""
    ids: Ids
    """The ids of the prompt's blocks."""
    ids_after: Ids
    """The ids of the blocks of prompt and answer; empty if the source does not say."""
    block_tokens: int | None


@dataclass(slots=True)
class _Session:
    thread: Thread
    tagged: bool
    requests: list[_Asked] = field(default_factory=list)
    tools: list[tuple[str, TimedCall]] = field(default_factory=list)
    """Those that the agent reports, by the ids of their calls."""


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
    for session in begun:
        _finish(session)
    described = programs_on_timeline((each.thread for each in begun), "dynamo", assumptions)
    for session, each in zip(begun, described, strict=True):
        counted = [request for request in session.requests if request.answer.usage.prompt_tokens]
        program = replace(each.program, tagged=session.tagged)
        size = counted[0].block_tokens if counted else None
        yield replace(each, program=program, ids=[request.ids for request in counted], block_tokens=size)


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
        session = sessions.setdefault(name, _Session(Thread(name), bool(context)))
        session.thread.parent = session.thread.parent or context.get("parent_session_id")
        session.requests.append(_request(request_at, number(where, record, "event_time_unix_ms"), request))
    elif kind in ("tool_end", "tool_error"):
        name = _text(f"{where}: agent_context", context, "session_id")
        tool = _tool(f"{where}: tool", number(where, record, "event_time_unix_ms"), inner(where, record, "tool"))
        sessions.setdefault(name, _Session(Thread(name), True)).tools.append(tool)
    elif kind not in ("tool_start", "request_payload"):
        raise TraceError(f"{where}: event_type: expected request_end or tool_end, found {repr(kind)[:60]}")


def _text(where: str, data: Record, name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise TraceError(f"{where}: {name}: expected text, found {repr(value)[:60]}")
    return value


def _request(where: str, event_ms: float, request: Record) -> _Asked:
    received_ms = number(where, request, "request_received_ms")
    took_ms = number(where, request, "total_time_ms", max(0.0, event_ms - received_ms))
    replay, replay_at = inner(where, request, "replay"), f"{where}: replay"
    usage = RequestUsage(
        prompt_tokens=count_of(where, request, "input_tokens", count_of(replay_at, replay, "input_length", 0)),
        output_tokens=count_of(where, request, "output_tokens", 0),
        cached_tokens=request.get("cached_tokens"),
    )
    calls = listed(where, inner(where, request, "finish_reason_metadata"), "tool_calls", dict)
    return _Asked(
        AnsweredRequest(usage, received_ms / 1e3, (received_ms + took_ms) / 1e3, model=request.get("model")),
        {str(call.get("id") or n): str(call.get("name") or UNKNOWN) for n, call in enumerate(calls)},
        listed(replay_at, replay, "input_sequence_hashes", int),
        listed(replay_at, replay, "completion_sequence_hashes", int),
        count_of(replay_at, replay, "trace_block_size", 0) or None,
    )


def _tool(where: str, event_ms: float, tool: Record) -> tuple[str, TimedCall]:
    ended_ms = number(where, tool, "ended_at_unix_ms", event_ms)
    started_ms = number(where, tool, "started_at_unix_ms", ended_ms)
    took_ms = number(where, tool, "duration_ms", max(0.0, ended_ms - started_ms))
    name = str(tool.get("tool_class") or UNKNOWN)
    return _text(where, tool, "tool_call_id"), TimedCall(name, (ended_ms - took_ms) / 1e3, ended_ms / 1e3)


def _finish(session: _Session) -> None:
    """Put a session's requests in order, each with the tools behind it and with what it keeps of the one before."""
    session.requests.sort(key=lambda each: (each.answer.sent_s, each.answer.end_s))
    answers = session.thread.answers = [request.answer for request in session.requests]
    starts_s = [answer.sent_s or 0.0 for answer in answers]
    reported: list[list[tuple[str, TimedCall]]] = [[] for _ in answers]
    for tool in sorted(session.tools, key=lambda tool: tool[1].end_s or 0.0):
        reported[max(0, bisect_left(starts_s, tool[1].end_s or 0.0) - 1)].append(tool)
    for request, tools, sent_s in zip(session.requests, reported, [*starts_s[1:], None], strict=True):
        names, end_s = dict(request.called), request.answer.end_s or 0.0
        calls = [_at_turn_end(names.pop(call_id, call.name), call, end_s) for call_id, call in tools]
        for name in names.values():  # without reported tools the first has the time until the next request
            first, later = TimedCall(name, end_s=sent_s), TimedCall(name, duration_s=0.0)
            calls.append(TimedCall(name) if tools else later if calls else first)
        request.answer.calls = calls
    for before, after in pairwise(session.requests):
        after.answer.usage = replace(after.answer.usage, kept_tokens=_kept(before, after))


def _at_turn_end(name: str, tool: TimedCall, turn_end_s: float) -> TimedCall:
    """Return the tool, moved to the end of the turn if it began less than ``CLOCK_S`` before or after it."""
    late_s = (tool.start_s or 0.0) - turn_end_s
    moved_s = late_s if abs(late_s) < CLOCK_S else 0.0
    return TimedCall(name, (tool.start_s or 0.0) - moved_s, (tool.end_s or 0.0) - moved_s)


def _kept(before: _Asked, after: _Asked) -> int | None:
    """Return how much of the context before is kept, if the source says that it is not all of the answer."""
    usage, blocks = before.answer.usage, alike(after.ids, before.ids_after)
    context, block_tokens = usage.prompt_tokens + usage.output_tokens, before.block_tokens
    if block_tokens is None or not before.ids_after or blocks >= context // block_tokens:
        return None
    return min(max(usage.prompt_tokens, blocks * block_tokens), after.answer.usage.prompt_tokens - 1)


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
