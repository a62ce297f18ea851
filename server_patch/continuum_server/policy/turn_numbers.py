"""Which turn of its program an arriving request is. Pure.

A request with a ``turn_id`` that the program used before is a retry of that turn. A request without ``turn_id`` whose
prompt equals that of a failed turn is a retry of that turn. Any other request is the program's next turn.
"""

from __future__ import annotations

from collections.abc import Hashable

RECENT = 8
"""Turn ids and failed turns remembered of each program; the oldest are forgotten first."""


class TurnNumbers:
    """The turn numbers of one program."""

    __slots__ = ("_by_id", "_failed")

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}
        self._failed: list[tuple[Hashable, int]] = []

    def arrived(self, turn_id: str | None, prompt: Hashable, following: int) -> int:
        """The number of a request that arrives now.

        Args:
            turn_id: as the client sent it.
            prompt: equal for equal prompts.
            following: the number of a turn that did not arrive before.
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
        """The turn failed: a request with the same prompt and no id is a retry of it."""
        self._failed = [*self._failed, (prompt, number)][-RECENT:]

    def _failed_with(self, prompt: Hashable) -> int | None:
        return next((number for failed, number in self._failed if failed == prompt), None)
