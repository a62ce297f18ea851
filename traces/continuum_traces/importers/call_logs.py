"""Import logs of single calls: OpenHands' ``log_completions``, LiteLLM's payloads, proxies' request and response.

Each object is one request, with its messages and its answer. Calls are joined into programs by the rule that the server
uses: a call goes on from the one whose messages and answer its own messages begin with; of several, from the longest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from continuum_traces.assumptions import Assumptions
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.texts import message_text
from continuum_traces.importers.timeline import seconds
from continuum_traces.importers.usage import (
    UNKNOWN,
    Imported,
    RequestUsage,
    calls_sharing_a_time,
    inner,
    listed,
    number,
    usage_of,
)
from continuum_traces.lines import digest
from continuum_traces.schema import Program

Object = Mapping[str, Any]
ENDS = ("timestamp", "endTime", "end_time")
STARTS = ("startTime", "start_time", "request_time")
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
    """The texts of the messages."""
    tools: tuple[str, ...]
    end_s: float | None
    model: str | None
    user: str | None


def read_call_logs(file: Source) -> Iterator[LoggedCall]:
    """Logged calls, one or more a file: ``messages`` and ``response`` (or inside ``request``), with usage and times.
    Calls are joined into programs where one's messages begin with another's messages and answer. The tools of an answer
    share the time until the next call."""
    for where, row in file.rows("response"):
        request = row if "messages" in row else inner(where, row, "request")
        messages = listed(where, request, "messages", dict)
        response = inner(where, row, "response")
        usage = inner(where, response, "usage")
        if not usage:
            file.assume("call", "no token counts: left out")
            continue
        counts = usage_of(where, usage)
        total = number(where, usage, "total_tokens", counts.prompt_tokens + counts.output_tokens)
        differs = total != counts.prompt_tokens + counts.output_tokens
        file.assume("call", "total_tokens is not the sum of prompt and answer: not used", int(differs))
        several = len(listed(where, response, "choices", dict)) > 1
        file.assume("call", "several answers to one prompt: the first, with the tokens of all", int(several))
        yield _call(where, row, request, messages, response, counts)


def _call(
    where: str, row: Object, request: Object, messages: Sequence[Object], response: Object, usage: RequestUsage
) -> LoggedCall:
    choices = listed(where, response, "choices", dict)
    answer = inner(where, choices[0], "message") if choices else {"content": response.get("content")}
    functions = [inner(where, call, "function") for call in listed(where, answer, "tool_calls", dict)]
    parts = answer.get("content") if isinstance(answer.get("content"), list) else []
    used = [part.get("name") for part in parts or () if isinstance(part, dict) and part.get("type") == "tool_use"]
    end_s, took_s = _seconds(where, row)
    prompt = tuple(map(_digest, messages))
    model = response.get("model") or request.get("model")
    return LoggedCall(
        replace(usage, llm_s=took_s),
        prompt,
        (*prompt, _digest({"role": "assistant", **answer})),
        tuple(map(message_text, messages)),
        tuple(str(name or UNKNOWN) for name in (*(each.get("name") for each in functions), *used)),
        end_s,
        str(model) if model else None,
        str(row.get("session_id") or row.get("trace_id") or "") or None,
    )


def _digest(message: Object) -> str:
    """Return what is equal for an answer and for the message that repeats it in a later prompt."""
    calls = message.get("tool_calls")
    names = [
        (each.get("id"), inner("", each, "function").get("name")) for each in calls or () if isinstance(each, dict)
    ]
    return digest(json.dumps([message.get("role"), message_text({"content": message.get("content")}).strip(), names]))


def _seconds(where: str, row: Object) -> tuple[float | None, float | None]:
    """Return the instant of a call's end and how long it took, in seconds; None: not recorded."""
    end_s = next((at for name in ENDS if (at := seconds(row.get(name))) is not None), None)
    start_s = next((at for name in STARTS if (at := seconds(row.get(name))) is not None), None)
    took = next((name for name in ("latency_sec", "response_time", "latency_s") if row.get(name) is not None), None)
    took_s = None if took is None else float(number(where, row, took))
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
    latest: dict[tuple[str, ...], list[LoggedCall]] = {}
    """The programs by the messages with which their next call begins."""
    for call in calls:
        beginnings = (call.prompt[:n] for n in range(len(call.prompt), 0, -1))
        program = next((latest.pop(each) for each in beginnings if each in latest), None)
        if program is None:
            programs.append(program := [])
        program.append(call)
        latest[call.after] = program
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
        requests.append(replace(call.request, tool_calls=tools, gap_overhead_s=0.0 if tools else gap_s or 0.0))
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
            Signs({"request": dict, "request.messages": list, "response": dict, "response.usage": dict}, _MORE),
        ),
        join_call_logs,
    ),
)
