"""Import conversations of messages: OpenAI's, ShareGPT, MLPerf-agentic. Lengths are estimated from the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise, takewhile
from typing import Any

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.texts import message_text, message_tokens, prompt_head_tokens, reasoning_tokens
from continuum_traces.importers.usage import (
    ESTIMATED,
    UNKNOWN,
    Imported,
    RequestUsage,
    Row,
    in_order,
    inner,
    listed,
    number,
    rows_by,
)
from continuum_traces.schema import Program, ToolCall

SPEAKERS = dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bard", "bing"), "assistant")
"""Who answers in ShareGPT's files; all others ask."""


def read_mlperf_agentic(file: Source) -> Iterator[Imported]:
    """One message per line: ``conversation_id``, ``turn``, ``role``, ``content``, ``tool_calls``, ``delay_seconds``."""
    for name, rows in rows_by("conversation_id", file.rows("conversation_id", "role")).items():
        yield _from_messages(file, name, in_order(rows, "turn"), "mlperf-agentic")


def read_openai_messages(file: Source) -> Iterator[Imported]:
    """Conversations of ``messages`` in OpenAI's or Anthropic's form, with ``tools`` and ``system`` if they are there.
    The times of tools are not known, other times between turns are taken as 0."""
    yield from _conversations(file, "messages", "openai-messages", lambda where, message: message)


def read_sharegpt(file: Source) -> Iterator[Imported]:
    """The same of ``conversations``, whose messages have ``from`` and ``value``."""
    yield from _conversations(file, "conversations", "sharegpt", _spoken)


def _spoken(where: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": SPEAKERS.get(message["from"], "user"), "content": message["value"]}


Reader = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def _conversations(file: Source, key: str, source: str, read: Reader) -> Iterator[Imported]:
    for number_in_file, (where, row) in enumerate(file.rows(key), 1):
        rows = [(where, dict(read(where, message))) for message in listed(where, row, key, dict)]
        name = str(row.get("id") or f"conversation-{number_in_file}")
        yield _from_messages(file, name, rows, source, prompt_head_tokens(row))


def _from_messages(file: Source, name: str, rows: list[Row], source: str, prompt: int = 0) -> Imported:
    """Return a program with a request for each answer.

    Args:
        file: gets the assumptions.
        name: the program's id.
        rows: its messages.
        source: the format.
        prompt: the tokens before the first message.
    """
    requests: list[RequestUsage] = []
    for (here, message), (where, after) in pairwise([*rows, *rows[-1:]]):
        size = message_tokens(message, file.assume)
        if message["role"] == "assistant":
            delay_s = float(number(where, after, "delay_seconds", 0)) if after is not message else 0.0
            functions = [inner(here, call, "function") for call in listed(here, message, "tool_calls", dict)]
            names = [*(function.get("name") for function in functions), *_tools_used(message)]
            calls = tuple(
                ToolCall(str(tool or UNKNOWN), delay_s if "delay_seconds" in after else None) for tool in names
            )
            reasoning = reasoning_tokens(message)
            gap_s = 0.0 if calls else delay_s
            requests.append(RequestUsage(prompt, size + reasoning, reasoning, tool_calls=calls, gap_overhead_s=gap_s))
        prompt += size
    file.assume("program", ESTIMATED)
    opening = takewhile(lambda message: message["role"] != "assistant", (message for _, message in rows))
    return Imported(Program(name, (), source), requests, tuple(map(message_text, opening)), empty="no answer in it")


def _tools_used(message: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the names of the tools in the parts of an answer, in Anthropic's form."""
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and part.get("type") == "tool_use":
            yield part.get("name")


IMPORTERS = (
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
