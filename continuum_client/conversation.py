"""Which conversation a request goes on with, by what it sends. No text is kept: two numbers for each message."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from continuum_client.program import Program

MAX_CONVERSATIONS = 4096
"""Remembered without ``client.program``; the oldest is forgotten first."""
BLOCK_CHARS = 512


@dataclass(frozen=True, slots=True)
class Shape:
    """A prompt's messages (or blocks of 512 characters of a plain prompt), first to last."""

    marks: tuple[int, ...] = ()
    """Two messages with one mark are equal; valid in this process only."""
    chars: tuple[int, ...] = ()

    def kept_share(self, later: Shape) -> float | None:
        """Share of this prompt, by characters, that ``later`` opens with; None where that cannot be told."""
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
"""Of a prompt that cannot be looked at."""


def shape_of(body: Any) -> Shape:
    """Of a request's body: chat messages, a Responses input, or a completion's prompt."""
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
    """The messages a request sends; none where it refers to a conversation kept by the server."""
    if body.get("previous_response_id") or body.get("conversation"):
        return ()
    messages = body.get("messages")
    if messages is None:
        messages = body.get("input")
        if isinstance(messages, str):
            messages = [messages]
        if isinstance(body.get("instructions"), str) and isinstance(messages, list):
            messages = [body["instructions"], *messages]
    return messages if isinstance(messages, list | tuple) else ()


def _mark(message: Any) -> tuple[int, int]:
    if not isinstance(message, Mapping):
        text = message if isinstance(message, str) else repr(message)
        return hash(text), len(text)
    content = message.get("content")
    if isinstance(content, str):
        calls = message.get("tool_calls")
        asked = repr(calls) if calls else ""
        return hash((message.get("role"), content, asked)), len(content) + len(asked)
    text = repr(message)
    return hash(text), len(text)


@dataclass(slots=True, eq=False)
class _Thread:
    """A conversation, at the last request seen of it."""

    program: Program
    key: int = 0


class Conversations:
    """Programs of calls made outside any ``client.program``. A request that repeats an earlier one and adds to it is
    the same program's next turn; anything else opens a new one.

    Args:
        new: makes a program.
    """

    def __init__(self, new: Callable[[], Program]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._sent: dict[int, deque[_Thread]] = {}
        """By the digest of a whole request: conversations that can be gone on with, oldest first."""
        self._failed: dict[int, deque[_Thread]] = {}
        """The same, where the request failed: the very same request may come again."""
        self._order: OrderedDict[_Thread, dict[int, deque[_Thread]]] = OrderedDict()
        """All of them and where they are, oldest first."""

    def program_of(self, shape: Shape) -> tuple[Program, Callable[[], None]] | None:
        """The program of a request, and what to call if the request fails; None where its messages cannot be read."""
        if not shape.marks:
            return None
        keys = _prefixes(shape.marks)
        with self._lock:
            found = self._continued(keys) or _Thread(self._new())
            found.key = keys[-1]
            self._put(self._sent, found)
            forgotten = self._taken(next(iter(self._order))) if len(self._order) > MAX_CONVERSATIONS else None
        if forgotten is not None:
            forgotten.program.forget()
        return found.program, lambda: self._fail(found)

    def _continued(self, keys: list[int]) -> _Thread | None:
        """The longest known beginning of this request; the very same request only where it had failed."""
        for key in reversed(keys):
            known = self._failed.get(key) or (self._sent.get(key) if key != keys[-1] else None)
            if known:
                return self._taken(known[0])
        return None

    def _put(self, where: dict[int, deque[_Thread]], thread: _Thread) -> None:
        where.setdefault(thread.key, deque()).append(thread)
        self._order[thread] = where

    def _taken(self, thread: _Thread) -> _Thread:
        where = self._order.pop(thread)
        where[thread.key].remove(thread)  # mostly the first
        if not where[thread.key]:
            del where[thread.key]
        return thread

    def _fail(self, thread: _Thread) -> None:
        with self._lock:
            if self._order.get(thread) is self._sent:
                self._put(self._failed, self._taken(thread))


def _prefixes(marks: Sequence[int]) -> list[int]:
    keys: list[int] = []
    key = 0
    for mark in marks:
        key = hash((key, mark))
        keys.append(key)
    return keys
