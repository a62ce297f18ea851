"""Find the conversation that a request continues, by comparing its messages with those of earlier requests.

No text is kept: messages and answers are represented by hashes. Our clients and the proxy do the same.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

from continuum_client.current import running_loop
from continuum_client.ending import do_what_is_left
from continuum_client.reply import Reply

if TYPE_CHECKING:
    from continuum_client.state import TaggedProgram

MAX_CONVERSATIONS = 4096
"""The number of conversations outside ``client.program`` that are remembered. If there are more, the conversation whose
last turn is longest ago is forgotten."""


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


@dataclass(slots=True, eq=False)
class Conversation:
    """A conversation, and what is known of its latest turn."""

    program: TaggedProgram
    key: int = 0
    """Hash of all messages of the request."""
    answer: frozenset[int] = frozenset()
    """Hashes by which the answer is recognised in the next request: the ids of its tool calls, and its text."""
    worker: weakref.ref[Any] | None = None
    """The task or thread that sent the request."""
    shape: Shape = NO_SHAPE
    """The shape of the latest request's prompt."""
    failed: bool = False
    """The request failed, or its answer was cut off. The agent may send the same messages again."""

    def ended(self, reply: Reply, at_s: float, error: str | None) -> None:
        """Note that the latest request has ended, with an answer or an error."""
        self.failed = error is not None
        if error is None:
            ids = (tool.call_id for tool in reply.asked)
            self.answer = frozenset(hashes_in([*ids, *map("".join, reply.texts.values())]))


class Conversations:
    """Finds the programs of calls that are made outside ``client.program``.

    A request that repeats all messages of an earlier request, and adds to them, is the next turn of that request's
    program. If there are several such requests, the one whose answer is in the new request counts, or else the one that
    the same task or thread sent, or else the latest. Any other request begins a new program.

    Args:
        new: a function that makes a program.
    """

    def __init__(self, new: Callable[[], TaggedProgram]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._by_key: dict[int, list[Conversation]] = {}
        """Conversations by their key, oldest first."""
        self._order: dict[Conversation, None] = {}
        """All conversations. The conversation whose last turn is longest ago is first."""

    def find(self, path: str, body: Any) -> Conversation | None:
        """Return the conversation that a request belongs to; None: its messages are unknown.

        Args:
            path: the request's path. A completion's prompt has no messages.
            body: the request's body.
        """
        shape = NO_SHAPE if path == "/completions" else shape_of(body)
        if not shape.marks:
            return None
        do_what_is_left()  # an earlier request may have failed
        keys = _prefix_hashes(shape.marks)
        with self._lock:
            conversation = self._continued(keys, messages_of(body)) or Conversation(self._new())
            conversation.key, conversation.answer, conversation.failed = keys[-1], frozenset(), False
            conversation.shape = shape
            conversation.worker = weakref.ref(_worker())
            self._by_key.setdefault(conversation.key, []).append(conversation)
            self._order[conversation] = None
            forgotten = self._taken(next(iter(self._order))) if len(self._order) > MAX_CONVERSATIONS else None
        if forgotten is not None:
            forgotten.program.forget()
        return conversation

    def forget(self) -> list[TaggedProgram]:
        """Forget all conversations, and return their programs."""
        with self._lock:
            programs = [conversation.program for conversation in self._order]
            self._by_key.clear()
            self._order.clear()
        return programs

    def _continued(self, keys: list[int], messages: Sequence[Any]) -> Conversation | None:
        """Return the conversation whose messages are the longest prefix of this request. A conversation with exactly
        the request's messages counts only if its latest request failed."""
        for length in range(len(keys), 0, -1):
            equal = self._by_key.get(keys[length - 1], [])
            candidates = [conversation for conversation in equal if conversation.failed]
            if length < len(keys):
                candidates = candidates or equal
            if candidates:
                return self._taken(_likeliest(candidates, messages[length:]))
        return None

    def _taken(self, conversation: Conversation) -> Conversation:
        """Remove a conversation from the tables, and return it."""
        del self._order[conversation]
        self._by_key[conversation.key].remove(conversation)
        if not self._by_key[conversation.key]:
            del self._by_key[conversation.key]
        return conversation


def _likeliest(candidates: Sequence[Conversation], added: Sequence[Any]) -> Conversation:
    """Return the conversation to which the messages ``added`` belong."""
    if len(candidates) == 1:
        return candidates[0]
    texts, current = hashes_in(added), _worker()

    def likely(conversation: Conversation) -> tuple[bool, bool]:
        worker = None if conversation.worker is None else conversation.worker()
        return not texts.isdisjoint(conversation.answer), worker is current

    return max(reversed(candidates), key=likely)


def _worker() -> Any:
    """Return the current task, or the current thread if no task runs."""
    task = None if running_loop() is None else sys.modules["asyncio"].current_task()
    return task or threading.current_thread()


def _prefix_hashes(marks: Sequence[int]) -> list[int]:
    """Return the hashes of all prefixes of the messages, shortest first."""
    return list(accumulate(marks, lambda key, mark: hash((key, mark)), initial=0))[1:]
