"""The shape of a prompt: a hash and the length of each message, so that prompts can be compared without their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

BLOCK_CHARS = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """The hashes and lengths of a prompt's messages, in order. A prompt of plain text counts as messages of 512
    characters."""

    marks: tuple[int, ...] = ()
    """A hash for each message. Equal messages have equal hashes within one process only."""
    chars: tuple[int, ...] = ()
    """The length of each message in characters."""

    def kept_share(self, later: Shape) -> float | None:
        """Return the share of this prompt's characters with which ``later`` begins; None if a prompt is unknown."""
        if not self.marks or not later.marks:
            return None
        pairs = zip(self.marks, later.marks, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        total = sum(self.chars)
        return 1.0 if common == len(self.marks) or not total else sum(self.chars[:common]) / total


NO_SHAPE = Shape()
"""The shape of a prompt whose messages are unknown because they are not in the request."""


def shape_of(body: Any) -> Shape:
    """Return the shape of the prompt in a request's body: chat messages, a Responses input or a completion's prompt."""
    if not isinstance(body, Mapping):
        return NO_SHAPE
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        whole = range(0, len(prompt) - BLOCK_CHARS + 1, BLOCK_CHARS)
        return Shape(tuple(hash(prompt[at : at + BLOCK_CHARS]) for at in whole), (BLOCK_CHARS,) * len(whole))
    messages = messages_of(body)
    marks = [_mark(message) for message in messages]
    return Shape(tuple(mark for mark, _ in marks), tuple(chars for _, chars in marks))


def messages_of(body: Mapping[str, Any]) -> Sequence[Any]:
    """Return the messages in a request's body; empty if the body refers to a conversation that the server stores."""
    if body.get("previous_response_id") or body.get("conversation"):
        return ()
    messages = body.get("messages")
    if messages is None:
        messages = body.get("input")
        if isinstance(messages, str):
            messages = [messages]
        if isinstance(body.get("instructions"), str) and isinstance(messages, list):
            messages = [body["instructions"], *messages]
    elif body.get("system") and isinstance(messages, list):  # Anthropic's API
        messages = [body["system"], *messages]
    return messages if isinstance(messages, list | tuple) else ()


def hashes_in(value: Any) -> set[int]:
    """Return the hashes of all texts in messages or parts of messages, without spaces at their ends."""
    if isinstance(value, str):
        return {hash(value.strip())} if value.strip() else set()
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return {mark for part in inner for mark in hashes_in(part)}


def _mark(message: Any) -> tuple[int, int]:
    """Return the hash of a message, and its length in characters."""
    if isinstance(message, Mapping) and isinstance(message.get("content"), str):
        content, calls = message["content"], message.get("tool_calls")
        asked = repr(calls) if calls else ""
        return hash((str(message.get("role")), content, asked)), len(content) + len(asked)
    text = message if isinstance(message, str) else repr(_without_cache_control(message))
    return hash(text), len(text)


def _without_cache_control(value: Any) -> Any:
    """Remove Anthropic's ``cache_control``, which agents move from message to message."""
    if isinstance(value, Mapping):
        return {name: _without_cache_control(inner) for name, inner in value.items() if name != "cache_control"}
    return [_without_cache_control(inner) for inner in value] if isinstance(value, list) else value
