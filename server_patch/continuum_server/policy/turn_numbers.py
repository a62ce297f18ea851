"""Which turn of its program an arriving request is. Pure.

A client that gives its turns ids (``turn_id``) says it itself: an id that the program used before is that turn again.
Without an id, a request whose prompt is that of a try that ended badly is that turn again. Anything else is the
program's next turn.
"""

from __future__ import annotations

from collections.abc import Hashable

RECENT = 8
"""Ids, and tries that ended badly, remembered of each program; the oldest are forgotten first."""


class TurnNumbers:
    """Of one program."""

    __slots__ = ("_by_id", "_failed")

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}
        self._failed: list[tuple[Hashable, int]] = []

    def arrived(self, turn_id: str | None, prompt: Hashable, following: int) -> int:
        """The number of a request that arrives now.

        Args:
            turn_id: as its client sent it.
            prompt: equal for equal prompts.
            following: the number that a turn gets which did not arrive before.
        """
        known = self._failed_with(prompt) if turn_id is None else self._by_id.pop(turn_id, None)
        number = following if known is None else known
        self._failed = [entry for entry in self._failed if entry[1] != number]
        if turn_id is not None:
            self._by_id[turn_id] = number
            if len(self._by_id) > RECENT:
                del self._by_id[next(iter(self._by_id))]
        return number

    def failed(self, number: int, prompt: Hashable) -> None:
        """A try of that turn ended badly: the same prompt without an id is that turn again."""
        self._failed = [*self._failed, (prompt, number)][-RECENT:]

    def _failed_with(self, prompt: Hashable) -> int | None:
        return next((number for failed, number in self._failed if failed == prompt), None)
