"""Import logs of single calls: OpenHands' ``log_completions``, LiteLLM's payloads and spend logs, proxies' request and
response, of chat completions, Anthropic's messages or the Responses API.

Each object is one request, with its messages and its answer. Calls are joined into programs by the rule that the server
uses: a call goes on from the one whose messages and answer its own messages begin with; of several, from the longest.
Calls without messages are joined by their session. Of a text only a digest is kept, but for what opens a conversation:
that is kept once, however often it is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any

from continuum_traces.importers.described import (
    UNKNOWN,
    Imported,
    RequestUsage,
    calls_sharing_a_time,
    counts_of,
    inner,
    listed,
    number,
    request_of,
)
from continuum_traces.importers.dialogue import first, instant
from continuum_traces.importers.importer import Importer, Signs, Source, cell
from continuum_traces.importers.text_tokens import message_text
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.lines import digest
from continuum_traces.programs.truth import TOOLS
from continuum_traces.schema import Program
from continuum_traces.wire.usage import Usage

Object = Mapping[str, Any]
ENDS = ("timestamp", "endTime", "end_time", "completed_at", "response_timestamp", "response_created_at",
        "response.completed_at")  # fmt: skip
STARTS = ("startTime", "start_time", "request_time", "started_at", "request_timestamp", "request_created_at",
          "response.created_at")  # fmt: skip
LATENCIES = ("latency_sec", "response_time", "latency_s", "response.generation_time_seconds")
CALLED = ("function.name", "name")
"""Where a tool call says which tool."""
REDACTED = "redacted-by-litellm"
"""What LiteLLM writes in the place of messages that it is told not to log."""
REQUESTS = ("request", "request_body", "requestBody", "body", "kwargs", "req")
RESPONSES = ("response", "response_body", "responseBody", "resp", "raw_response")
SESSIONS = ("session_id", "trace_id", "litellm_session_id", "metadata.session_id", "metadata.trace_id")
NO_TIMES = "no times in it, or not in every call: calls taken in the order of the files, 0 s between them"


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One logged call."""

    request: RequestUsage
    prompt: tuple[str, ...]
    """A digest of each message."""
    after: tuple[str, ...]
    """The same, then the answer's."""
    opening: tuple[str, ...]
    """The texts of the messages before the first answer."""
    tools: tuple[str, ...]
    end_s: float | None
    model: str | None
    user: str | None
    goes_on_from: str = ""
    """The id of the answer from which the call goes on, if the request names it."""


def read_call_logs(file: Source) -> Iterator[LoggedCall]:
    """Logged calls, one or more a file: ``messages`` or ``input`` and ``response`` (or inside ``request``), with usage
    and times; LiteLLM's spend logs. Calls are joined into programs where one's messages begin with another's messages
    and answer, or by their session. The tools of an answer share the time until the next call."""
    texts: dict[str, str] = {}
    for where, row in file.rows():
        request = next((inner(where, row, name) for name in REQUESTS if isinstance(row.get(name), dict)), row)
        response = next((_object(row[name]) or {"content": row[name]} for name in RESPONSES if row.get(name)), {})
        usage = _usage(where, row, response)
        embeds = "embedding" in str(row.get("call_type")) or response.get("object") == "list"
        if embeds or not usage.prompt_tokens:
            file.assume("call", "of embeddings: left out" if embeds else "no token counts: left out")
            continue
        differs = usage.total_tokens is not None and usage.differs
        file.assume("call", "total_tokens is not the sum of prompt and answer: not used", int(differs))
        several = len(listed(where, response, "choices", dict)) > 1
        file.assume("call", "several answers to one prompt: the first, with the tokens of all", int(several))
        yield _call(where, row, request if request is not row else {**row}, response, request_of(usage), texts)


def _object(value: Any) -> Object:
    """Return an object that is one, or whose JSON text this is; empty if it is neither."""
    read = cell(value)
    return read if isinstance(read, dict) else {}


def _usage(where: str, row: Object, response: Object) -> Usage:
    """Return the counts of the answer, or of the row beside it."""
    for place, counted in (("response: usage", response.get("usage")), ("usage", row.get("usage"))):
        usage = counts_of(f"{where}: {place}", _object(counted))
        if usage.prompt_tokens:
            return usage
    metadata = _object(row.get("metadata"))
    more = {**_object(metadata.get("usage_object")), **_object(metadata.get("additional_usage_values"))}  # LiteLLM
    return counts_of(where, {**more, **{name: each for name, each in row.items() if name.endswith("tokens")}})


def _messages(where: str, request: Object) -> list[Object]:
    """Return the messages of a request: of chats, or the items of the Responses API."""
    name = "messages" if request.get("messages") else "input"
    value = cell(request.get(name))
    value = [{"role": "user", "content": value}] if isinstance(value, str) else value
    messages = listed(where, {name: value}, name, dict) if isinstance(value, list) else []
    return [message for message in messages if message.get("content") != REDACTED]


def _call(
    where: str, row: Object, request: Object, response: Object, usage: RequestUsage, texts: dict[str, str]
) -> LoggedCall:
    messages = _messages(where, request)
    answers = _answers(where, response)
    names = [name for answer in answers for name in _tools(where, answer)]
    end_s, took_s = _seconds(where, {**row, "response": response})
    prompt = tuple(map(_digest, messages))
    opening = takewhile(lambda pair: pair[1].get("role") != "assistant", zip(prompt, messages, strict=True))
    model = response.get("model") or request.get("model") or row.get("model")
    after = tuple(_digest(each) for each in answers if each.get("type") != "reasoning")
    return LoggedCall(
        replace(usage, llm_s=took_s, response_id=str(response.get("id") or "")),
        prompt,
        (*prompt, *after),
        tuple(texts.setdefault(key, message_text(message)) for key, message in opening),
        tuple(names),
        end_s,
        str(model) if model else None,
        str(first(row, SESSIONS) or "") or None,
        str(request.get("previous_response_id") or ""),
    )


def _answers(where: str, response: Object) -> list[Object]:
    """Return the answer as messages: one, or the items of the Responses API."""
    choices = listed(where, response, "choices", dict)
    if choices:
        return [{"role": "assistant", **inner(where, choices[0], "message")}]
    if isinstance(response.get("output"), list):
        return list(listed(where, response, "output", dict))
    return [{"role": "assistant", "content": response.get("content"), "tool_calls": response.get("tool_calls")}]


def _tools(where: str, answer: Object) -> Iterator[str]:
    """Yield the names of the tools that an answer, or a part of it, calls."""
    for call in listed(where, answer, "tool_calls", dict):
        yield str(first(call, CALLED) or UNKNOWN)
    parts = answer.get("content") if isinstance(answer.get("content"), list) else []
    for part in [answer, *(parts or ())]:
        if isinstance(part, dict) and part.get("type") in ("tool_use", "function_call"):
            yield str(part.get("name") or UNKNOWN)


def _digest(message: Object) -> str:
    """Return what is equal for an answer and for the message that repeats it in a later prompt."""
    calls = [(first(each, ["id"]), first(each, CALLED)) for each in message.get("tool_calls") or ()]
    text = "".join(message_text({"content": message.get("content")}).split())
    if message.get("type") in ("function_call", "function_call_output"):
        return digest(json.dumps([message["type"], message.get("call_id"), message.get("output")]))
    return digest(json.dumps([message.get("role"), text, calls]))


def _seconds(where: str, row: Object) -> tuple[float | None, float | None]:
    """Return the instant of a call's end and how long it took, in seconds; None: not recorded."""
    end_s, start_s = instant(row, ENDS), instant(row, STARTS)
    took = ((name, value) for name in LATENCIES if (value := first(row, [name])) is not None)
    took_s = next((float(number(where, {name: value}, name)) for name, value in took), None)
    if took_s is None and None not in (start_s, end_s):
        took_s = max(0.0, (end_s or 0.0) - (start_s or 0.0))
    return (end_s if end_s is not None or start_s is None else start_s + (took_s or 0.0)), took_s


def join_call_logs(parts: Iterable[LoggedCall], assumptions: Assumptions) -> Iterator[Imported]:
    """Yield the programs that the calls make, in the order of their first calls."""
    calls = list(parts)
    if any(call.end_s is None for call in calls):
        assumptions.assume("log", NO_TIMES)
        calls = [replace(call, end_s=None) for call in calls]
    else:
        calls.sort(key=lambda call: (call.end_s or 0.0) - (call.request.llm_s or 0.0))
    programs: list[list[LoggedCall]] = []
    latest: dict[object, list[LoggedCall]] = {}
    """The programs by the messages with which their next call begins, by the answer that it names, by their session."""
    for call in calls:
        beginnings: list[object] = [call.goes_on_from] if call.goes_on_from else []
        beginnings += [call.prompt[:n] for n in range(len(call.prompt), 0, -1)]
        beginnings += [(None, call.user)] if call.user and not call.prompt else []
        program = next((latest.pop(each) for each in beginnings if each in latest), None)
        if program is None:
            programs.append(program := [])
        program.append(call)
        latest[call.after if call.prompt else (None, call.user)] = program
        if call.request.response_id:
            latest[call.request.response_id] = program
    start_s = min((_start_s(call) for call in calls), default=0.0)
    yield from (_program(number_in_log, program, start_s) for number_in_log, program in enumerate(programs, 1))


def _start_s(call: LoggedCall) -> float:
    return (call.end_s or 0.0) - (call.request.llm_s or 0.0)


def _program(number_in_log: int, calls: Sequence[LoggedCall], start_s: float) -> Imported:
    timed = calls[0].end_s is not None
    gaps_s = [max(0.0, _start_s(after) - (before.end_s or 0.0)) if timed else None for before, after in pairwise(calls)]
    requests = []
    for call, gap_s in zip(calls, [*gaps_s, None], strict=True):
        tools = calls_sharing_a_time(call.tools, gap_s)
        overhead_s = 0.0 if tools else gap_s or 0.0
        requests.append(
            replace(
                call.request, tool_calls=tools, gap_overhead_s=overhead_s, estimated={TOOLS: "time to the next call"}
            )
        )
    arrival_s = _start_s(calls[0]) - start_s if timed else None
    name = calls[0].user or f"program-{number_in_log}"
    return Imported(Program(name, (), "call-logs", calls[0].model, arrival_s=arrival_s), requests, calls[0].opening)


_MORE = ("timestamp", "latency_sec", "kwargs", "cost", "startTime", "endTime", "model", "id", "response.choices")
IMPORTERS = (
    Importer(
        "call-logs",
        read_call_logs,
        (
            Signs({"messages": list, "response": dict, "response.usage": dict}, _MORE),
            Signs({"messages": list, "response": str, "usage.prompt_tokens": int}, _MORE),
            Signs({"request": dict, "request.messages": list, "response": dict, "response.usage": dict}, _MORE),
            Signs({"request.input": object, "response": dict, "response.usage": dict}, _MORE),
            Signs({"input": object, "response": dict, "response.usage": dict, "response.output": list}, _MORE),
            Signs({"request_body": dict, "response_body": dict, "response_body.usage": dict}, _MORE),
            Signs(
                {"call_type": str, "startTime": object, "prompt_tokens": object}, ("request_id", "spend", "session_id")
            ),
        ),
        join_call_logs,
    ),
)
