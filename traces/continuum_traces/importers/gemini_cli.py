"""Import Gemini CLI's sessions (``~/.gemini/tmp/*/chats/session-*.json``, later ``.jsonl``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from continuum_traces.assumptions import Assumptions
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.timeline import AnsweredRequest, Thread, call_of, programs_on_timeline, seconds
from continuum_traces.importers.usage import (
    Imported,
    RequestUsage,
    count_of,
    inner,
    listed,
)

Message = tuple[str, Mapping[str, Any]]
"""A message, behind its place."""
Session = tuple[str, str | None, dict[str, Message]]
"""A session's id, that of its parent, and its messages by their ids."""


def read_gemini_cli(source: Source) -> Iterator[Session]:
    """A session is a program, and the files of one session are one. A turn is a ``gemini`` message with ``tokens``.

    The prompt is ``input`` (with what was cached) and ``tool``, the output is ``output`` and ``thoughts``; thoughts
    count as not repeated. A tool runs from its message to its own ``timestamp``, and a request is sent at the time of
    the last message or tool before it.
    """
    name, parent, messages = source.path.stem, None, dict[str, Message]()
    for where, row in source.rows():
        if "sessionId" in row:
            name = str(row["sessionId"])
            parent = source.path.parent.name if row.get("kind") == "subagent" else None
        rows = [(f"{where}: messages[{n}]", each) for n, each in enumerate(listed(where, row, "messages", dict))]
        rows += [(where, row)] if "type" in row else []
        for place, message in rows:
            messages[str(message.get("id") or place)] = place, message
    yield name, parent, messages


def join_gemini_cli(sessions: Iterable[Session], assumptions: Assumptions) -> Iterator[Imported]:
    threads: dict[str, tuple[str | None, dict[str, Message]]] = {}
    for name, parent, messages in sessions:
        threads.setdefault(name, (parent, {}))[1].update(messages)
    made = [_thread(name, parent, messages, assumptions) for name, (parent, messages) in threads.items()]
    yield from programs_on_timeline(made, "gemini-cli", assumptions, one_agent=True)


def _thread(name: str, parent: str | None, messages: Mapping[str, Message], assumptions: Assumptions) -> Thread:
    thread, asked_s = Thread(name, parent), None
    for where, message in messages.values():
        at_s = seconds(message.get("timestamp"))
        if message.get("type") == "user":
            asked_s = at_s
        if message.get("type") != "gemini":
            continue
        usage = _usage(where, inner(where, message, "tokens"), assumptions)
        model = message.get("model")
        answer = AnsweredRequest(usage, asked_s, at_s, model=str(model) if model else None)
        for call in listed(where, message, "toolCalls", dict):
            end_s = seconds(call.get("timestamp"))
            answer.calls.append(call_of(call.get("name"), call.get("args"), None, end_s))
        ends = [call.end_s for call in answer.calls if call.end_s is not None]
        asked_s = max(ends, default=None)
        thread.answers.append(answer)
    return thread


def _usage(where: str, tokens: Mapping[str, Any], assumptions: Assumptions) -> RequestUsage:
    read = {
        each: count_of(where, tokens, each, 0) for each in ("input", "output", "cached", "thoughts", "tool", "total")
    }
    prompt, output = read["input"] + read["tool"], read["output"] + read["thoughts"]
    if read["total"] and read["total"] != prompt + output:
        text = "a total that is not the sum of prompt and output: the latter are read"
        assumptions.assume("request", text, example=where)
    return RequestUsage(prompt, output, read["thoughts"], cached_tokens=read["cached"])


IMPORTERS = (
    Importer(
        "gemini-cli",
        read_gemini_cli,
        (Signs({"sessionId": str, "projectHash": str}, ("messages", "messages.tokens", "startTime", "lastUpdated")),),
        join_gemini_cli,
    ),
)
