"""Import conversations of messages: OpenAI's, ShareGPT, MLPerf-agentic, bare lists. What the messages do not count is
estimated from their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from continuum_traces.importers.dialogue import Placed, first, read_dialogue, role_of, say_estimates, spoken_calls
from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.texts import prompt_head_tokens
from continuum_traces.importers.timeline import programs_on_timeline
from continuum_traces.importers.usage import Imported, in_order, listed, rows_by

BESIDE = ("ui_messages.json", "wire.jsonl")
"""Files that have the same conversation as a list of messages beside them, with its token counts."""
NAMES = ("id", "session_id", "sessionId", "conversation_id", "thread_id")
"""Fields with the id of a conversation."""
NO_ANSWER = "no answer in it"


def read_mlperf_agentic(file: Source) -> Iterator[Imported]:
    """One message per line: ``conversation_id``, ``turn``, ``role``, ``content``, ``tool_calls``, ``tool_results``,
    ``delay_seconds``; ``system`` and ``tools`` in the first."""
    for name, rows in rows_by("conversation_id", file.rows("conversation_id", "role")).items():
        rows = in_order(rows, "turn")
        yield from _program(file, name, rows, "mlperf-agentic", rows[0][1])


def read_openai_messages(file: Source) -> Iterator[Imported]:
    """Conversations of ``messages`` in OpenAI's or Anthropic's form, with ``tools`` and ``system`` if they are there,
    or one conversation as a bare list of messages. An answer's own ``usage``, and times, count if they are there."""
    alone: list[Placed] = []
    for number, (where, row) in enumerate(file.rows(), 1):
        if isinstance(row.get("messages"), list):
            yield from _conversation(file, number, where, row, "messages", "openai-messages")
        else:
            alone.append((where, row))
    beside = next((name for name in BESIDE if file.path.with_name(name).is_file()), "")
    if alone and beside:
        file.assume("conversation", f"is in {beside} beside it, with its token counts: counted once")
    elif alone:
        name = str(first(alone[0][1], NAMES[1:]) or file.path.stem)
        yield from _program(file, name, alone, "openai-messages", alone[0][1])


def read_sharegpt(file: Source) -> Iterator[Imported]:
    """The same of ``conversations``, whose messages have ``from`` and ``value``. ``function_call`` is said by the
    model."""
    for number, (where, row) in enumerate(file.rows("conversations"), 1):
        yield from _conversation(file, number, where, row, "conversations", "sharegpt")


def _conversation(
    file: Source, number: int, where: str, row: Mapping[str, Any], key: str, source: str
) -> Iterator[Imported]:
    places = ((f"{where}: {key}[{n}]", message) for n, message in enumerate(listed(where, row, key, dict)))
    messages = [(place, _spoken(place, message)) for place, message in places]
    name = str(first(row, NAMES) or f"conversation-{number}")
    yield from _program(file, name, messages, source, row)


def _spoken(where: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message of ShareGPT's in OpenAI's form; others as they are."""
    if "value" not in message:
        return message
    text = str(message["value"])
    calls = spoken_calls(text) if message.get("from") == "function_call" else []
    return {"role": role_of(message, where), "content": "" if calls else text, "tool_calls": calls}


def _program(
    file: Source, name: str, messages: Sequence[Placed], source: str, head: Mapping[str, Any]
) -> Iterator[Imported]:
    dialogue = read_dialogue(file, name, messages, None, prompt_head_tokens(head))
    say_estimates(file, [dialogue])
    for each in programs_on_timeline([dialogue.thread], source, file.assumptions):
        yield Imported(each.program, each.requests, dialogue.opening, empty=NO_ANSWER)


IMPORTERS = (
    Importer(
        "mlperf-agentic",
        read_mlperf_agentic,
        (
            Signs(
                {"conversation_id": object, "role": str, "turn": object},
                more=("content", "tool_calls", "tool_results", "system", "tools"),
            ),
            Signs({"conversation_id": object, "role": str, "content": object}, more=("tool_calls", "tool_results")),
        ),
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
                without=("response", "trajectory_format", "info", "steps", "history", "simulations"),
            ),
            Signs({"messages": list, "messages.type": str, "messages.content": object}, without=("info", "response")),
            Signs({"role": "assistant", "content": object}, without=("conversation_id", "sessionID", "messageID")),
            Signs({"role": "user", "content": object}, without=("conversation_id", "sessionID", "messageID")),
        ),
    ),
)
