"""Which conversation a request goes on with, by what it sends. No text is kept: two numbers for each message."""

from __future__ import annotations

import threading
from collections import OrderedDict
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


@dataclass(slots=True)
class _Thread:
    """A conversation, at the last request seen of it."""

    program: Program
    failed: bool = False


class Conversations:
    """Programs of calls made outside any ``client.program``: a request that repeats an earlier one and adds to it is
    the
    same program's next turn; anything else opens a new one.

    Args:
        new: makes a program.
    """

    def __init__(self, new: Callable[[], Program]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._by_prefix: OrderedDict[int, list[_Thread]] = OrderedDict()

    def program_of(self, shape: Shape) -> tuple[Program, Callable[[], None]] | None:
        """The program of a request, and what to call if the request fails; None where its conversation is not known."""
        if not shape.marks:
            return None
        keys = _prefixes(shape.marks)
        with self._lock:
            found = self._continued(keys) or _Thread(self._new())
            found.failed = False
            self._by_prefix.setdefault(keys[-1], []).append(found)
            self._by_prefix.move_to_end(keys[-1])
            forgotten = self._by_prefix.popitem(last=False)[1] if len(self._by_prefix) > MAX_CONVERSATIONS else []
        for thread in forgotten:
            thread.program.forget()
        return found.program, lambda: _fail(found)

    def _continued(self, keys: list[int]) -> _Thread | None:
        """The longest known beginning of this request; the very same request only where it had failed."""
        for key in reversed(keys):
            for thread in self._by_prefix.get(key, ()):
                if key != keys[-1] or thread.failed:
                    self._forget(key, thread)
                    return thread
        return None

    def _forget(self, key: int, thread: _Thread) -> None:
        self._by_prefix[key].remove(thread)
        if not self._by_prefix[key]:
            del self._by_prefix[key]


def _fail(thread: _Thread) -> None:
    thread.failed = True


def _prefixes(marks: Sequence[int]) -> list[int]:
    keys: list[int] = []
    key = 0
    for mark in marks:
        key = hash((key, mark))
        keys.append(key)
    return keys
