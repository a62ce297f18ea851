"""Conversations that are lists of messages: what most agents' session files are. One reader for all.

The tables below have the places where a message can say each thing, as paths with dots, the surer first. A format whose
messages say the same things elsewhere is one more path here; ``sessions.py`` and ``messages.py`` have what is left of
each format: which rows are messages, and what a conversation is called.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from continuum_traces.importers.described import (
    CHARACTERS,
    ESTIMATED,
    TOTAL_DIFFERS,
    RequestUsage,
    counts_of,
    number,
    request_of,
)
from continuum_traces.importers.importer import Source
from continuum_traces.importers.text_tokens import message_text, message_tokens, reasoning_tokens
from continuum_traces.importers.timed_requests import NO_COUNTS, AnsweredRequest, Thread, TimedCall, call_of, seconds
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.jsonl import TraceError
from continuum_traces.wire.usage import Usage, read_usage

Message = Mapping[str, Any]
Placed = tuple[str, Message]
"""A message, behind its place."""

ROLE = ("role", "message.role", "from", "info.role", "type", "kind", "source")
_ANSWERS = "assistant ai aimessage aimessagechunk model gpt chatgpt gemini bard bing agent response"
_ITEMS = "function_call reasoning custom_tool_call local_shell_call"
_RESULTS = "tool toolresult tool_result toolmessage function observation function_call_output toolcallexecutionevent"
ROLES = dict.fromkeys(f"{_ANSWERS} {_ITEMS}".split(), "assistant") | dict.fromkeys(_RESULTS.split(), "tool")
"""Who answers, and what is the result of a tool; all others ask."""
IDENT = ("message.id", "messageId", "info.id", "id", "uuid")
AT = ("timestamp", "time.created", "created_at", "createdAt", "ts", "meta.sentAt", "time", "date", "usage.timestamp")
END = ("time.completed", "completed_at", "completedAt", "end_time", "endTime", "usage.timestamp")
MODEL = ("model", "modelID", "message.model", "modelId", "usage.model", "response_metadata.model_name",
         "extra.response.model", "metadata.model", "raw_data.model", "model_name")  # fmt: skip
USAGE = ("usage", "message.usage", "usageMetadata", "message.usageMetadata", "tokens", "usage_metadata",
         "response_metadata.token_usage", "response_metadata.tokenUsage", "response_metadata.usage", "token_usage",
         "tokenUsage", "metadata.usage", "metadata.custom.usage", "extra.response.usage", "raw_data.usage", "metrics",
         "additional_kwargs.usage", "stats.usage", "llm_usage", "models_usage")  # fmt: skip
STOP = ("stop_reason", "message.stop_reason", "stopReason", "finish_reason")
PARTS = ("content", "parts", "message.content", "message.parts", "output")
CALLS = ("tool_calls", "toolCalls", "message.tool_calls", "additional_kwargs.tool_calls", "kwargs.tool_calls")
_CALLS = "tool_use toolcall tool-call tool_call server_tool_use tool function_call custom_tool_call local_shell_call"
CALL_KINDS = frozenset(_CALLS.split())
KIND = ("type", "part_kind")
CALL_ID = ("call_id", "callID", "toolCallId", "tool_call_id", "id")
CALL_NAME = ("function.name", "name", "tool", "toolName", "tool_name", "function_name", "function")
CALL_INPUT = ("function.arguments", "arguments", "input", "args", "state.input", "parameters")
CALL_START = ("state.time.start", "startTime", "start_time", "started_at")
CALL_END = ("state.time.end", "endTime", "end_time", "completed_at", "timestamp")
_RESULT_KINDS = "tool_result toolresult tool-result tool-return function_call_output functionresponse"
RESULT_KINDS = frozenset(_RESULT_KINDS.split())
RESULT_OF = ("tool_use_id", "tool_call_id", "toolUseID", "toolCallId", "call_id", "callId", "functionResponse.id", "id")


def first(data: Mapping[str, Any], paths: Iterable[str]) -> Any:
    """Return what stands at the first of these paths that has a value; None: there is none."""
    for path in paths:
        value: Any = data
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None and value != "":
            return value
    return None


def instant(data: Mapping[str, Any], paths: Iterable[str]) -> float | None:
    """Return the first of these fields that is an instant, in seconds since 1970; None: no field is one."""
    return next((at for path in paths if (at := seconds(first(data, [path]))) is not None), None)


def role_of(message: Message, where: str = "") -> str:
    """Return ``assistant``, ``tool``, or what the message calls its speaker.

    Raises:
        TraceError: it names none. The message begins with ``where``.
    """
    role = str(first(message, ROLE) or "").lower()
    if not role:
        raise TraceError(f"{where}: role: missing")
    return ROLES.get(role, "assistant" if message.get("models_usage") else role)


@dataclass(slots=True)
class Dialogue:
    """A conversation, read to its end."""

    thread: Thread
    opening: tuple[str, ...] = ()
    """The texts of the messages before the first answer."""
    estimated: int = 0
    """Answers whose lengths are estimates."""


@dataclass(slots=True)
class _Reading:
    """A conversation while it is read."""

    file: Source
    context: int
    """Tokens of the prompt so far: as counted with the latest answer, and by estimate since."""
    asked_s: float | None = None
    answer: AnsweredRequest | None = None
    ident: str = ""
    calls: dict[str, TimedCall] = field(default_factory=dict)
    waiting: list[TimedCall] = field(default_factory=list)
    """Calls of the latest answer without an end."""
    counted: bool = False
    """The latest answer has counts of its own."""
    media: Assumptions = field(default_factory=Assumptions)
    """What of the messages is no text: of interest if lengths are estimated."""

    def tokens(self, message: Message) -> int:
        return message_tokens(message, self.media.assume)


def read_dialogue(
    file: Source, name: str, messages: Sequence[Placed], parent: str | None = None, head_tokens: int = 0
) -> Dialogue:
    """Read a conversation. A turn is a message of the model; messages with the same id are one.

    The lengths of an answer are those that it says. Without them they are estimated from the text, an answer without
    text and calls is left out. A tool runs from its answer to the message with its result, unless it has times of its
    own; a request is sent at the time of the message, or of the tool's end, before its answer.

    Args:
        file: gets what was assumed.
        name: the program's id.
        messages: its messages, in order.
        parent: the program that started it.
        head_tokens: the tokens before the first message.
    """
    dialogue, reading, opening = Dialogue(Thread(name, parent)), _Reading(file, head_tokens), list[str]()
    for where, message in messages:
        if role_of(message, where) == "assistant":
            _answer(dialogue, reading, where, message)
        else:
            _question(dialogue, reading, where, message)
            if not dialogue.thread.answers:
                opening.append(message_text(message))
    dialogue.opening = tuple(opening)
    if dialogue.estimated:
        file.assumptions.add(*(replace(each, example=str(file)) for each in reading.media))
    return dialogue


def _question(dialogue: Dialogue, reading: _Reading, where: str, message: Message) -> None:
    reading.context += reading.tokens(message)
    at_s = instant(message, AT)
    reading.asked_s = at_s if at_s is not None else reading.asked_s
    reading.answer = None
    ended = [call for name in _results(message) if (call := reading.calls.get(name)) is not None]
    if role_of(message) == "tool" and not ended:
        ended = reading.waiting[:1]
    for call in ended:
        call.end_s = call.end_s if call.end_s is not None else at_s
        reading.waiting = [each for each in reading.waiting if each is not call]
    if message.get("delay_seconds") is not None:
        delay_s = float(number(where, message, "delay_seconds"))
        for call in [each for each in (*ended, *reading.waiting) if each.duration_s is None]:
            call.duration_s = delay_s
        for answer in dialogue.thread.answers[-1:]:
            answer.gap_s = max(delay_s, answer.gap_s or 0.0)


def _results(message: Message) -> Iterator[str]:
    """Yield the ids of the calls whose results the message has."""
    single = first(message, ("tool_call_id", "toolCallId", "call_id", "tool_use_id", "message.toolCallId"))
    if single is not None:
        yield str(single)
    listed = first(message, ("tool_results", "toolResults"))
    for part in (*_objects(listed), *_parts(message)):
        kind = str(first(part, KIND) or "").lower()
        if kind in RESULT_KINDS or "functionResponse" in part or part in _objects(listed):
            yield str(first(part, RESULT_OF) or "")


def _parts(message: Message) -> Iterator[Message]:
    for path in PARTS:
        yield from _objects(first(message, [path]))


def _objects(value: Any) -> list[Message]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _answer(dialogue: Dialogue, reading: _Reading, where: str, message: Message) -> None:
    counts = _counts(where, message)
    own, thoughts = reading.tokens(message), reasoning_tokens(message)
    calls = list(_calls(message))
    ident = str(first(message, IDENT) or "")
    if not (reading.answer is not None and (_is_item(message) or (ident and ident == reading.ident))):
        silent = not calls and not message_text(message).strip() and not thoughts
        if counts is None and (silent or not reading.context):  # nothing asked for it: a greeting
            reading.context += own
            left_out = int(not _is_item(message))
            reading.file.assumptions.assume("request", NO_COUNTS, left_out, example=dialogue.thread.name)
            return
        reading.counted = False
        usage = RequestUsage(reading.context, 0, estimated={"prompt": CHARACTERS, "output": CHARACTERS})
        reading.answer = AnsweredRequest(usage, instant(message, ("time.created",)) or reading.asked_s)
        dialogue.thread.answers.append(reading.answer)
        dialogue.estimated += 1
        reading.waiting = []
    answer, reading.ident = reading.answer, ident
    assert answer is not None
    counts = counts or Usage()
    reading.file.assumptions.assume("request", TOTAL_DIFFERS, int(counts.differs), example=where)
    dialogue.estimated -= bool(counts.prompt_tokens and counts.output_tokens) and not reading.counted
    _count(reading, answer, counts, own + thoughts, thoughts)
    end_s = instant(message, END) if instant(message, ("time.created",)) is not None else instant(message, AT)
    answer.end_s = end_s if end_s is not None else answer.end_s
    answer.model = str(first(message, MODEL) or "") or answer.model
    for number_, (call_id, call) in enumerate(calls):
        reading.calls[call_id or f"{where}/{number_}"] = call
        answer.calls.append(call)
    reading.waiting += [call for _, call in calls if call.end_s is None]
    ends = [call.end_s for _, call in calls if call.end_s is not None]
    reading.asked_s = max(ends, default=None)


def _count(reading: _Reading, answer: AnsweredRequest, counts: Usage, own: int, thoughts: int) -> None:
    """Give the answer its lengths. What a message says of them replaces the estimates, ``own`` with its thoughts."""
    before = answer.usage
    if counts.prompt_tokens:
        answer.usage, reading.counted = request_of(counts), True
        if not counts.output_tokens and "output" in before.estimated:
            answer.usage = replace(answer.usage, output_tokens=own, estimated={"output": CHARACTERS})
        reading.context = counts.prompt_tokens + answer.usage.output_tokens - answer.usage.reasoning_tokens
    elif not reading.counted:
        output = counts.output_tokens or before.output_tokens + own
        reasoning = min(before.reasoning_tokens + thoughts, output)
        answer.usage = replace(before, output_tokens=output, reasoning_tokens=reasoning)
        reading.context += own - thoughts


def _is_item(message: Message) -> bool:
    """Return whether a message is one of several parts of an answer, as in lists of the Responses API's items."""
    return "role" not in message and message.get("type") in ("function_call", "custom_tool_call", "reasoning")


def _counts(where: str, message: Message) -> Usage | None:
    """Return the first token counts that the message has, with what further ones that say the same add; None: it has
    none."""
    counts: Usage | None = None
    for path in USAGE:
        usage = first(message, [path])
        if isinstance(usage, Mapping) and counts is None:
            said = counts_of(f"{where}: {path.replace('.', ': ')}", usage)
            counts = said if said.prompt_tokens or said.output_tokens else None
        elif isinstance(usage, Mapping) and counts is not None:
            more = read_usage(usage)
            if (more.prompt_tokens, more.output_tokens) == (counts.prompt_tokens, counts.output_tokens):
                cached = more.cached_tokens if counts.cached_tokens is None else counts.cached_tokens
                reasoning = max(counts.reasoning_tokens, more.reasoning_tokens)
                counts = replace(counts, cached_tokens=cached, reasoning_tokens=reasoning)
    return counts


def _calls(message: Message) -> Iterator[tuple[str, TimedCall]]:
    """Yield the tool calls of an answer with their ids: in a list of their own, or among its parts."""
    listed = first(message, CALLS)
    calls = _objects(listed)
    if message.get("type") in CALL_KINDS and first(message, CALL_NAME):
        calls = [message]
    for part in _parts(message) if not calls else ():
        call = part.get("functionCall", part)
        kind = str(first(part, KIND) or "").lower()
        if call is not part or kind in CALL_KINDS or (not kind and {"name", "arguments"} <= part.keys()):
            calls.append(call)
    legacy = first(message, ("function_call", "additional_kwargs.function_call"))
    calls += [legacy] if isinstance(legacy, Mapping) and not calls else []
    for call in calls:
        name = first(call, CALL_NAME)
        name = name if isinstance(name, str) else None
        timed = call_of(name, first(call, CALL_INPUT), instant(call, CALL_START), instant(call, CALL_END))
        yield str(first(call, CALL_ID) or ""), timed


def spoken_calls(text: str) -> list[Message]:
    """Return the tool calls of a text that is their JSON; empty if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]


def say_estimates(file: Source, dialogues: Iterable[Dialogue]) -> None:
    """Note how many programs have estimated lengths: all of them, or those of some answers."""
    for each in dialogues:
        whole = each.estimated == len(each.thread.answers)
        file.assume("program", ESTIMATED, int(whole and each.estimated > 0))
        text = "without token counts: estimated at 4 characters a token"
        file.assume("answer", text, 0 if whole else each.estimated)
