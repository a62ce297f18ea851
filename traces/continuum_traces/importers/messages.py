"""Import conversations of messages: OpenAI's, ShareGPT, MLPerf-agentic, bare lists. What the messages do not count is
estimated from their text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from continuum_traces.importers.described import Imported, in_order, listed, rows_by
from continuum_traces.importers.dialogue import (
    IDENT,
    USAGE,
    Placed,
    first,
    read_dialogue,
    role_of,
    say_estimates,
    spoken_calls,
)
from continuum_traces.importers.importer import Importer, Signs, Source, cell
from continuum_traces.importers.text_tokens import message_tokens, prompt_head_tokens
from continuum_traces.importers.timed_requests import programs_on_timeline

FILES_BESIDE = ("ui_messages.json", "wire.jsonl")
"""Files that have the same conversation as a list of messages beside them, with its token counts."""
ID_FIELDS = ("id", "session_id", "sessionId", "conversation_id", "thread_id", "config.configurable.thread_id")
"""Fields with the id of a conversation."""
CONVERSATIONS = ("messages", "conversations", "conversation", "trajectory")
"""Fields with the messages of a conversation."""
UNANSWERED = "no answer in it"
OF_ALL = "with token counts that can be those of its last answer or of all: not read"


def read_mlperf_agentic(file: Source) -> Iterator[Imported]:
    """One message per line: ``conversation_id``, ``turn``, ``role``, ``content``, ``tool_calls``, ``tool_results``,
    ``delay_seconds``; ``system`` and ``tools`` in the first."""
    for name, rows in rows_by("conversation_id", file.rows("conversation_id", "role")).items():
        rows = in_order(rows, "turn")
        yield from _program(file, name, rows, "mlperf-agentic", rows[0][1])


def read_openai_messages(file: Source) -> Iterator[Imported]:
    """Conversations of ``messages`` in OpenAI's or Anthropic's form, with ``tools`` and ``system`` if they are there,
    or one conversation as a bare list of messages. An answer's own ``usage``, and times, count if they are there. Of
    the states of a LangGraph thread the longest is read."""
    alone, states = list[Placed](), dict[str, tuple[int, Placed]]()
    for number, (where, row) in enumerate(file.rows(), 1):
        if where.endswith(": values"):
            opening = next(iter(listed(where, row, "messages", dict)), row)
            thread, state = str(first(_spoken(where, opening), IDENT) or number), (number, (where, row))
            states[thread] = max(states.get(thread, state), state, key=lambda each: len(each[1][1]["messages"]))
        elif key := next((name for name in CONVERSATIONS if _is_list(row.get(name))), ""):
            yield from _conversation(file, number, (where, row), key, "openai-messages")
        else:
            alone.append((where, _spoken(where, row)))
    for number, placed in states.values():
        yield from _conversation(file, number, placed, "messages", "openai-messages")
    beside = next((name for name in FILES_BESIDE if file.path.with_name(name).is_file()), "")
    if alone and beside:
        file.assume("conversation", f"is in {beside} beside it, with its token counts: counted once")
    elif alone:
        name = str(first(alone[0][1], ID_FIELDS[1:]) or file.path.stem)
        yield from _program(file, name, list(_sized(alone)), "openai-messages", alone[0][1])


def _is_list(value: object) -> bool:
    """Return whether a value is a list, or the JSON of one with objects."""
    return isinstance(value, list) or (isinstance(value, str) and value.startswith("[{"))


def _sized(messages: Sequence[Placed]) -> Iterator[Placed]:
    """Yield the messages, those of Kimi with the sizes of the conversation that rows before and behind them say."""
    sizes = [message.get("token_count") for _, message in messages]
    for (where, message), said, size in zip(messages, [None, *sizes], [*sizes[1:], None], strict=False):
        if size and role_of(message, where) == "assistant":
            prompt = said or size - message_tokens(message, lambda *_: None)
            message = {**message, "usage": {"prompt_tokens": prompt, "completion_tokens": size - said if said else 0}}
        yield where, message


def read_sharegpt(file: Source) -> Iterator[Imported]:
    """The same of ``conversations``, whose messages have ``from`` and ``value``. ``function_call`` is said by the
    model."""
    for number, (where, row) in enumerate(file.rows("conversations"), 1):
        yield from _conversation(file, number, (where, row), "conversations", "sharegpt")


def _conversation(file: Source, number: int, placed: Placed, key: str, source: str) -> Iterator[Imported]:
    where, row = placed
    told = listed(where, {key: cell(row.get(key))}, key, dict)
    messages = [(place := f"{where}: {key}[{n}]", _spoken(place, message)) for n, message in enumerate(told)]
    completion = row.get("completion")
    if isinstance(completion, str):
        messages.append((f"{where}: completion", {"role": "assistant", "content": completion}))
    answers = [n for n, (place, message) in enumerate(messages) if role_of(message, place) == "assistant"]
    if isinstance(row.get("usage"), dict) and answers and first(messages[answers[-1]][1], USAGE) is None:
        place, last = messages[answers[-1]]
        if isinstance(completion, str) or len(answers) == 1:
            messages[answers[-1]] = place, {"model": row.get("model"), **last, "usage": row["usage"]}
        else:
            file.assume("conversation", OF_ALL)
    name = str(first(row, ID_FIELDS) or f"conversation-{number}")
    yield from _program(file, name, messages, source, row)


def _spoken(where: str, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message of ShareGPT's in OpenAI's form, and one that LangChain wrote without its envelope; others as
    they are."""
    told = first(message, ("kwargs", "data"))
    if isinstance(told, Mapping) and "content" in told and "content" not in message:
        return {"type": message.get("type"), **told}
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
        yield Imported(each.program, each.requests, dialogue.opening, empty=UNANSWERED)


_OTHERS = ("response", "trajectory_format", "info", "steps", "history", "simulations")
IMPORTERS = (
    Importer(
        "mlperf-agentic",
        read_mlperf_agentic,
        (Signs({"conversation_id": object, "role": str}, ("turn", "content", "tool_calls", "tool_results", "system")),),
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
            Signs({"messages": list, "messages.role": str}, ("id", "tools", "model", "messages.content"), _OTHERS),
            Signs({"messages": list, "messages.type": str, "messages.content": object}, without=("info", "response")),
            Signs({"messages": '[[]*"role"*'}, without=("response",)),
            *(Signs({name: list, f"{name}.role": str}) for name in CONVERSATIONS[1:]),
            Signs({"kind": "response", "parts.part_kind": str}),
            *(Signs({f"{name}.content": object, f"{name}.type": str, "type": str}) for name in ("kwargs", "data")),
            Signs({"role": "assistant", "content": object}, without=("conversation_id", "sessionID", "messageID")),
            Signs({"role": "user", "content": object}, without=("conversation_id", "sessionID", "messageID")),
        ),
    ),
)
