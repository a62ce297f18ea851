"""Import OpenHands evaluation logs (``output.jsonl``): one JSON line per run, with its event history and token counts.

A turn is one response of the model. Its actions are the actions in the history with the response's id. The time of a
tool is the timestamp of the observation minus the timestamp of its action. Events are those of OpenHands before 1.0, or
of its SDK. In the SDK the actions of a response run one after the other, and the timestamps of all these actions are
earlier than the first run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from continuum_traces.grouped import grouped
from continuum_traces.importers.described import (
    UNKNOWN,
    Imported,
    RequestUsage,
    differing_totals,
    inner,
    listed,
    usage_of,
)
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.jsonl import TraceError
from continuum_traces.programs.lines import digest
from continuum_traces.schema import Program, ToolCall
from continuum_traces.shell import first_program

Event = dict[str, Any]

CONDENSATIONS = ("Condensation", "CondensationEvent")
"""Kinds of the events in which a condenser, with a prompt of its own, rewrote the history."""
_ACTION = "ActionEvent"
_SHELLS = ("terminal", "execute_bash", "bash")
"""The SDK's names of the terminal tool."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A file of a conversation's folder: its state, or one event."""

    folder: Path
    file: Source
    data: Event


def read_openhands(file: Source) -> Iterator[Imported | Conversation]:
    """OpenHands' ``output.jsonl``: one program per line, with its event history; or the folder of a conversation
    (``base_state.json``, ``events/*.json``). A condenser's requests are programs of one turn, whose parent is the run.
    What counts only answers that are in no event, as those that make a title, is left out.

    Raises:
        TraceError: the file has a fault. The message names file, line and field.
    """
    for where, run in file.rows():
        if "history" in run:
            yield from _programs(file, where, run, listed(where, run, "history", dict))
        elif "stats" in run:
            yield Conversation(file.path.parent, file, run)
        elif "kind" in run:
            yield Conversation(file.path.parent.parent, file, run)
        else:
            raise TraceError(f"{where}: history: missing")


def join_openhands(parts: Iterable[Imported | Conversation], assumptions: Assumptions) -> Iterator[Imported]:
    """Yield the programs, those of conversations' folders made of their events, in the order of their names."""
    folders: dict[Path, list[Conversation]] = {}
    for part in parts:
        if isinstance(part, Imported):
            yield part
        else:
            folders.setdefault(part.folder, []).append(part)
    for folder, files in folders.items():
        events = [each.data for each in sorted(files, key=lambda each: each.file.path.name) if "stats" not in each.data]
        state = next((each for each in files if "stats" in each.data), None)
        if state is None:
            text = "without its base_state.json, which has the token counts: left out"
            assumptions.assume("conversation", text, example=folder)
            continue
        where, file = str(state.file), Source(state.file.path, assumptions)
        usages = inner(where, inner(where, state.data, "stats"), "usage_to_metrics")
        metrics = [inner(where, usages, name) for name in usages]
        ids = {event.get("llm_response_id") for event in events}
        of_run = [each for each in metrics if ids & _answers(where, each)] or metrics
        beside = sum(len(_answers(where, each)) for each in metrics if each not in of_run)
        assumptions.assume("request", "in no event, as of a title: left out", beside, example=where)
        run = {"instance_id": str(state.data.get("id") or folder.name), "metrics": _together(where, of_run)}
        yield from _programs(file, where, run, events)


def _answers(where: str, metrics: Mapping[str, Any]) -> set[Any]:
    """Return the ids of the answers that an entry of ``usage_to_metrics`` counts."""
    return {row.get("response_id") for row in listed(where, metrics, "token_usages", dict)}


def _together(where: str, metrics: Sequence[Mapping[str, Any]]) -> Event:
    """Return the metrics of an agent and its condenser as one."""
    names = ("token_usages", "response_latencies")
    return {name: [row for each in metrics for row in listed(where, each, name, dict)] for name in names}


def _programs(file: Source, where: str, run: Mapping[str, Any], events: Sequence[Event]) -> Iterator[Imported]:
    calls = _sdk_calls(events) if any("kind" in event for event in events) else _calls(events)
    metrics = inner(where, run, "metrics")
    timed = listed(where, metrics, "response_latencies", dict)
    latencies = {str(row.get("response_id")): row.get("latency") for row in timed}
    usages = listed(where, metrics, "token_usages", dict) or list(_usages(where, events))
    condensing = {str(event.get("llm_response_id")) for event in events if event.get("kind") in CONDENSATIONS}
    requests, condensed = list[RequestUsage](), list[RequestUsage]()
    for row in usages:
        name = str(row.get("response_id"))
        request = replace(usage_of(where, row, calls.get(name, ())), llm_s=latencies.get(name), response_id=name)
        (condensed if name in condensing else requests).append(request)
    name = str(run.get("instance_id") or "run")
    totals = inner(where, metrics, "accumulated_token_usage")
    expected = {"prompt_tokens": totals.get("prompt_tokens"), "output_tokens": totals.get("completion_tokens")}
    file.assumptions.add(*differing_totals(name, expected, [*requests, *condensed]))
    program = Program(name, (), "openhands", next((str(row["model"]) for row in usages if row.get("model")), None))
    yield Imported(program, requests, tuple(_opening(events)))
    for number, request in enumerate(condensed, 1):
        yield Imported(replace(program, program_id=f"{name}/condenser-{number}", parent_id=name), [request])


def _usages(where: str, events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """Yield the token counts of older logs, in which they are part of the model's answer, which is repeated in every
    action of that answer."""
    answers = {str(answer["id"]): answer for event in events if (answer := _answer(event)).get("id")}
    for response_id, answer in answers.items():
        yield {**inner(where, answer, "usage"), "response_id": response_id, "model": answer.get("model")}


def _opening(events: Sequence[Event]) -> Iterator[str]:
    """Yield the parts of the prompt of the first answer: system prompt with tools, task."""
    for event in events:
        raw = event.get("args")
        arguments: Event = raw if isinstance(raw, dict) else {}
        if event.get("kind") == "SystemPromptEvent" or event.get("action") == "system":
            prompt, tools = event.get("system_prompt") or arguments, event.get("tools") or arguments.get("tools")
            yield _text(prompt) + (json.dumps(tools) if tools else "")
        elif event.get("source") == "agent":
            return
        elif event.get("kind") == "MessageEvent" or event.get("action") == "message":
            yield _text(event.get("llm_message") or arguments)


def _text(message: Any) -> str:
    """Return the text of ``{"content": "..."}``, of ``{"text": "..."}``, or of a list of such objects."""
    if isinstance(message, list):
        return "".join(map(_text, message))
    if not isinstance(message, dict):
        return str(message or "")
    return _text(message.get("text") or message.get("content"))


def _calls(events: Sequence[Event]) -> dict[str, list[ToolCall]]:
    """Return the tool calls by the id of the response that asked for them."""
    observations = {event["cause"]: event for event in events if event.get("cause") is not None}
    actions = [(_answer(event).get("id"), event) for event in events if "action" in event]
    return grouped((str(name), _call(event, observations.get(event.get("id")))) for name, event in actions if name)


def _sdk_calls(events: Sequence[Event]) -> dict[str, list[ToolCall]]:
    """Do the same as ``_calls`` for the SDK's events. A call begins when the call before it in the same response has
    ended."""
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
    name, arguments = str(event.get("tool_name") or UNKNOWN), str(asked.get("arguments") or "")
    try:
        command = str(json.loads(arguments)["command"]) if name in _SHELLS else ""
    except (ValueError, KeyError, TypeError):
        command = ""
    return ToolCall(first_program(command) or name, _seconds(begin, observation), digest=digest(arguments))


def _answer(event: Event) -> dict[str, Any]:
    """Return the model's answer that asked for this action; empty if there is none."""
    answer = (event.get("tool_call_metadata") or {}).get("model_response")
    return answer if isinstance(answer, dict) else {}


def _call(event: Event, observation: Event | None) -> ToolCall:
    command = str((event.get("args") or {}).get("command") or "")
    function = str((event.get("tool_call_metadata") or {}).get("function_name") or event.get("action") or UNKNOWN)
    name = (first_program(command) if event.get("action") == "run" else None) or function
    return ToolCall(name, _seconds(event, observation), digest=digest(command) if command else None)


def _seconds(event: Event, observation: Event | None) -> float | None:
    try:
        start = datetime.fromisoformat(str(event["timestamp"]))
        end = datetime.fromisoformat(str((observation or {})["timestamp"]))
    except (KeyError, ValueError):
        return None
    if (start.tzinfo is None) != (end.tzinfo is None):
        return None
    return max(0.0, (end - start).total_seconds())


IMPORTERS = (
    Importer(
        "openhands",
        read_openhands,
        (
            Signs({"history": list, "instance_id": object}, more=("metrics", "instruction", "test_result", "error")),
            Signs({"stats": dict, "agent": dict, "stats.usage_to_metrics": dict}, ("id", "workspace")),
            Signs({"id": str, "kind": str, "timestamp": str, "source": str}, ("tool_name", "llm_message", "action")),
            Signs({"history": list, "issue": dict, "metrics": dict}, more=("instruction", "issue_type", "success")),
        ),
        join_openhands,
    ),
)
