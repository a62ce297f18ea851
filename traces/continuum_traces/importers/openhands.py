"""OpenHands evaluation logs (``output.jsonl``): one JSON line per run, with its event history and token counts.

A turn is one model response. Its actions are the actions in the history with the response's id. A tool's time is the
instant of the observation minus the instant of its action. Events are those of OpenHands before 1.0 or of its SDK. In
the SDK the actions of a response run one after the other, and all have timestamps from before the first one runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from continuum_traces.importers.shared_prefix import Opened, with_shared_prefixes
from continuum_traces.importers.usage import RequestUsage, digest, turns_from_usage
from continuum_traces.jsonl import TraceError, text_lines
from continuum_traces.schema import Program, ToolCall
from continuum_traces.shell import first_program

Event = dict[str, Any]

_ACTION = "ActionEvent"
_SHELLS = ("terminal", "execute_bash", "bash")
"""The SDK's names of the terminal tool."""


def read_openhands(*paths: Path) -> Iterator[Program]:
    """The programs of logs.

    Raises:
        TraceError: naming file, line and field.
    """
    yield from with_shared_prefixes(one for path in paths for one in _opened(path))


def _opened(path: Path) -> Iterator[Opened]:
    for line_number, line in text_lines(path):
        try:
            run = json.loads(line)
        except ValueError as error:
            raise TraceError(f"{path}:{line_number}: not JSON: {error}") from error
        if not isinstance(run, dict) or not isinstance(run.get("history"), list):
            raise TraceError(f"{path}:{line_number}: history: missing")
        yield Opened(_program(run), tuple(_opening([event for event in run["history"] if isinstance(event, dict)])))


def _program(run: Mapping[str, Any]) -> Program:
    events = [event for event in run["history"] if isinstance(event, dict)]
    calls = _sdk_calls(events) if any("kind" in event for event in events) else _calls(events)
    latencies = {row.get("response_id"): row.get("latency") for row in _metrics(run, "response_latencies")}
    usages = _metrics(run, "token_usages") or list(_usages(events))
    requests = [
        RequestUsage(
            prompt_tokens=int(row.get("prompt_tokens") or 0),
            output_tokens=int(row.get("completion_tokens") or 0),
            reasoning_tokens=int(row.get("reasoning_tokens") or 0),
            tool_calls=tuple(calls.get(str(row.get("response_id")), ())),
            cached_tokens=row.get("cache_read_tokens"),
            llm_s=latencies.get(row.get("response_id")),
        )
        for row in usages
    ]
    turns = tuple(turns_from_usage(requests))
    model = next((str(row["model"]) for row in usages if row.get("model")), None)
    return Program(str(run.get("instance_id", "run")), turns, "openhands", model)


def _usages(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """The token counts of older logs, in the form of the newer ones: each stands in the answer itself, which every
    action of that answer repeats."""
    answers = {str(answer["id"]): answer for event in events if (answer := _answer(event)).get("id")}
    for response_id, answer in answers.items():
        usage = answer.get("usage") or {}
        yield {
            "response_id": response_id,
            "model": answer.get("model"),
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
            "reasoning_tokens": (usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
            "cache_read_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        }


def _opening(events: Sequence[Event]) -> Iterator[str]:
    """The prompt of the first answer: system prompt, tools, task."""
    for event in events:
        found = event.get("args")
        given: Event = found if isinstance(found, dict) else {}
        if event.get("kind") == "SystemPromptEvent" or event.get("action") == "system":
            prompt, tools = event.get("system_prompt") or given, event.get("tools") or given.get("tools")
            yield _text(prompt) + (json.dumps(tools) if tools else "")
        elif event.get("source") == "agent":
            return
        elif event.get("kind") == "MessageEvent" or event.get("action") == "message":
            yield _text(event.get("llm_message") or given)


def _text(message: Any) -> str:
    """The text of ``{"content": "..."}``, of ``{"text": "..."}``, or of a list of these."""
    if isinstance(message, list):
        return "".join(map(_text, message))
    if not isinstance(message, dict):
        return str(message or "")
    return _text(message.get("text") or message.get("content"))


def _calls(events: Sequence[Event]) -> dict[str, list[ToolCall]]:
    """The tool calls, by the response that asked for them."""
    observations = {event["cause"]: event for event in events if event.get("cause") is not None}
    calls: dict[str, list[ToolCall]] = {}
    for event in events:
        response = _response_id(event)
        if response and "action" in event:
            calls.setdefault(response, []).append(_call(event, observations.get(event.get("id"))))
    return calls


def _sdk_calls(events: Sequence[Event]) -> dict[str, list[ToolCall]]:
    """The same for the SDK's events. A call begins when the call before it in the same response has ended."""
    answers = (event for event in events if event.get("tool_call_id") and event.get("kind") != _ACTION)
    observations = {event["tool_call_id"]: event for event in answers}
    calls: dict[str, list[ToolCall]] = {}
    free: Event = {}
    for event in events:
        if event.get("kind") == _ACTION and event.get("llm_response_id"):
            before = calls.setdefault(str(event["llm_response_id"]), [])
            observation = observations.get(event.get("tool_call_id"))
            before.append(_sdk_call(event, free if before else event, observation))
            free = observation or event
    return calls


def _sdk_call(event: Event, begin: Event, observation: Event | None) -> ToolCall:
    asked = event.get("tool_call") or {}
    name, arguments = str(event.get("tool_name") or "unknown"), str(asked.get("arguments") or "")
    try:
        command = str(json.loads(arguments)["command"]) if name in _SHELLS else ""
    except (ValueError, KeyError, TypeError):
        command = ""
    return ToolCall(first_program(command) or name, _seconds(begin, observation), digest=digest(arguments))


def _metrics(run: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    rows = (run.get("metrics") or {}).get(name) or []
    return [row for row in rows if isinstance(row, dict)]


def _response_id(event: Event) -> str | None:
    found = _answer(event).get("id")
    return str(found) if found else None


def _answer(event: Event) -> dict[str, Any]:
    """The model's answer that asked for this action; empty if there is none."""
    found = (event.get("tool_call_metadata") or {}).get("model_response")
    return found if isinstance(found, dict) else {}


def _call(event: Event, observation: Event | None) -> ToolCall:
    command = str((event.get("args") or {}).get("command") or "")
    function = str((event.get("tool_call_metadata") or {}).get("function_name") or event.get("action") or "unknown")
    name = (first_program(command) if event.get("action") == "run" else None) or function
    return ToolCall(name, _seconds(event, observation), digest=digest(command) if command else None)


def _seconds(event: Event, observation: Event | None) -> float | None:
    try:
        start = datetime.fromisoformat(str(event["timestamp"]))
        end = datetime.fromisoformat(str((observation or {})["timestamp"]))
    except (KeyError, ValueError):
        return None
    return max(0.0, (end - start).total_seconds())
