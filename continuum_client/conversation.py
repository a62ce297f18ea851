"""Find the conversation that a request continues, by comparing its messages with those of earlier requests.

No text is kept: each message is represented by a hash and its length.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from continuum_client.program import Program
from continuum_client.shape import Shape

MAX_CONVERSATIONS = 4096
"""The number of conversations outside ``client.program`` that are remembered. If there are more, the conversation whose
last turn is longest ago is forgotten."""


@dataclass(slots=True, eq=False)
class _Conversation:
    program: Program
    key: int = 0
    """Hash of all messages of the conversation's latest request."""


class Conversations:
    """Finds the programs of calls that are made outside ``client.program``.

    A request that repeats all messages of an earlier request, and adds to them, is the next turn of that request's
    program. Any other request begins a new program.

    Args:
        new: a function that makes a program.
    """

    def __init__(self, new: Callable[[], Program]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._sent: dict[int, deque[_Conversation]] = {}
        """Conversations by their key, oldest first."""
        self._failed: dict[int, deque[_Conversation]] = {}
        """Conversations whose latest request failed, by their key. The agent may send the same messages again."""
        self._order: OrderedDict[_Conversation, dict[int, deque[_Conversation]]] = OrderedDict()
        """All conversations, each with the dictionary that holds it (``_sent`` or ``_failed``). The conversation whose
        last turn is longest ago is first."""

    def program_of(self, shape: Shape) -> tuple[Program, Callable[[], None]] | None:
        """Return the program of a request, and a function to call if the request fails. None: its messages are
        unknown."""
        if not shape.marks:
            return None
        keys = _prefix_hashes(shape.marks)
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
            for table in (self._sent, self._failed, self._order):
                table.clear()
        return programs

    def _continued(self, keys: list[int]) -> _Conversation | None:
        """Return the conversation whose messages are the longest prefix of this request. A conversation with exactly
        the request's messages counts only if its latest request failed."""
        for key in reversed(keys):
            candidates = self._failed.get(key) or (self._sent.get(key) if key != keys[-1] else None)
            if candidates:
                return self._taken(candidates[0])
        return None

    def _put(self, where: dict[int, deque[_Conversation]], conversation: _Conversation) -> None:
        where.setdefault(conversation.key, deque()).append(conversation)
        self._order[conversation] = where

    def _taken(self, conversation: _Conversation) -> _Conversation:
        """Remove a conversation from the tables, and return it."""
        where = self._order.pop(conversation)
        where[conversation.key].remove(conversation)  # nearly always the first
        if not where[conversation.key]:
            del where[conversation.key]
        return conversation

    def _fail(self, conversation: _Conversation) -> None:
        with self._lock:
            if self._order.get(conversation) is self._sent:
                self._put(self._failed, self._taken(conversation))


def _prefix_hashes(marks: Sequence[int]) -> list[int]:
    """Return the hashes of all prefixes of the messages, shortest first."""
    keys: list[int] = []
    key = 0
    for mark in marks:
        key = hash((key, mark))
        keys.append(key)
    return keys
