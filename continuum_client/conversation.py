"""Finds the conversation that a request continues, by comparing its messages with those of earlier requests.

No text is kept: each message is represented by a hash and its length.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from continuum_client.program import Program

MAX_CONVERSATIONS = 4096
"""Conversations outside ``client.program`` that are remembered; the least recently continued is forgotten first."""
BLOCK_CHARS = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """Hashes and lengths of a prompt's messages in order; of 512-character blocks, if the prompt is plain text."""

    marks: tuple[int, ...] = ()
    """A hash for each message. Equal messages have equal hashes within one process only."""
    chars: tuple[int, ...] = ()
    """The length of each message in characters."""

    def kept_share(self, later: Shape) -> float | None:
        """The share of this prompt's characters with which the prompt ``later`` begins; None if either is unknown."""
        if not self.marks or not later.marks:
            return None
        common = 0
        for mine, theirs in zip(self.marks, later.marks, strict=False):
            if mine != theirs:
                break
            common += 1
        total = sum(self.chars)
        return 1.0 if common == len(self.marks) or not total else sum(self.chars[:common]) / total


NO_SHAPE = Shape()
"""The shape of a prompt whose messages are not in the request."""


def shape_of(body: Any) -> Shape:
    """The shape of the prompt in a request's body: chat messages, a Responses input, or a completion's prompt."""
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
    """The messages in a request's body; empty if the body refers to a conversation that the server stores."""
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


def _mark(message: Any) -> tuple[int, int]:
    """Hash and length in characters of a message."""
    if isinstance(message, Mapping) and isinstance(message.get("content"), str):
        content, calls = message["content"], message.get("tool_calls")
        asked = repr(calls) if calls else ""
        return hash((message.get("role"), content, asked)), len(content) + len(asked)
    text = message if isinstance(message, str) else repr(_without_marks(message))
    return hash(text), len(text)


def _without_marks(value: Any) -> Any:
    """The value without Anthropic's ``cache_control``, which agents move from message to message."""
    if isinstance(value, Mapping):
        return {name: _without_marks(inner) for name, inner in value.items() if name != "cache_control"}
    return [_without_marks(inner) for inner in value] if isinstance(value, list) else value


@dataclass(slots=True, eq=False)
class _Conversation:
    program: Program
    key: int = 0
    """Hash over all messages of its latest request."""


class Conversations:
    """Programs for the calls that are made outside ``client.program``.

    A request that repeats all messages of an earlier request and adds to them is the next turn of that request's
    program. Any other request begins a new program.

    Args:
        new: makes a program.
    """

    def __init__(self, new: Callable[[], Program]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._sent: dict[int, deque[_Conversation]] = {}
        """Conversations by their key, oldest first."""
        self._failed: dict[int, deque[_Conversation]] = {}
        """Conversations whose latest request failed: the agent may send the same messages again."""
        self._order: OrderedDict[_Conversation, dict[int, deque[_Conversation]]] = OrderedDict()
        """All conversations, the least recently continued first, with the one of the two dicts that holds them."""

    def program_of(self, shape: Shape) -> tuple[Program, Callable[[], None]] | None:
        """The program of a request, and a function to call if the request fails; None if the messages are unknown."""
        if not shape.marks:
            return None
        keys = _prefixes(shape.marks)
        with self._lock:
            conversation = self._continued(keys) or _Conversation(self._new())
            conversation.key = keys[-1]
            self._put(self._sent, conversation)
            forgotten = self._taken(next(iter(self._order))) if len(self._order) > MAX_CONVERSATIONS else None
        if forgotten is not None:
            forgotten.program.forget()
        return conversation.program, lambda: self._fail(conversation)

    def forget(self) -> list[Program]:
        """Forget all conversations, and return their programs."""
        with self._lock:
            programs = [conversation.program for conversation in self._order]
            for each in (self._sent, self._failed, self._order):
                each.clear()
        return programs

    def _continued(self, keys: list[int]) -> _Conversation | None:
        """The conversation with the longest prefix of this request. Equal messages count only after a failure."""
        for key in reversed(keys):
            known = self._failed.get(key) or (self._sent.get(key) if key != keys[-1] else None)
            if known:
                return self._taken(known[0])
        return None

    def _put(self, where: dict[int, deque[_Conversation]], conversation: _Conversation) -> None:
        where.setdefault(conversation.key, deque()).append(conversation)
        self._order[conversation] = where

    def _taken(self, conversation: _Conversation) -> _Conversation:
        where = self._order.pop(conversation)
        where[conversation.key].remove(conversation)  # nearly always the first
        if not where[conversation.key]:
            del where[conversation.key]
        return conversation

    def _fail(self, conversation: _Conversation) -> None:
        with self._lock:
            if self._order.get(conversation) is self._sent:
                self._put(self._failed, self._taken(conversation))


def _prefixes(marks: Sequence[int]) -> list[int]:
    """A hash for each prefix of the messages, shortest first."""
    keys: list[int] = []
    key = 0
    for mark in marks:
        key = hash((key, mark))
        keys.append(key)
    return keys
