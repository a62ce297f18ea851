"""``GET /continuum/state`` in the API server's process: ask the engines rarely, and write the answer.

An engine answers between two steps, so that no request advances meanwhile. So there is one question at a time,
whoever asks how often, and an answer is used for ``KEPT_S`` by everybody with the same key. The engine sends bare rows;
names, ages and shares are added here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

KEPT_S = 1.0
"""How old an answer may be."""
LISTED = 200
"""Length of the longest lists of programs, pins and soft holds. An entry takes the engine 5 us."""

PROGRAM_ROW = (
    *("program_id", "recognised_by", "turns", "context_tokens", "state", "since_s", "deadline_s", "hit_share"),
    *("parent_id", "left"),
)
LEFT_ROW = ("turn", "token", "of", "times")
PIN_ROW = ("program_id", "turn", "tokens", "since_s", "deadline_s")

Engines = list[dict[str, Any]]
"""The snapshot of each engine (``Online.snapshot``)."""


class StateCache:
    """The engines' latest snapshots.

    Args:
        ask: asks all engines for their snapshots, with the programs of one key (its digest; None: of all); returns
            None if the engines run without the plugin's scheduler. May raise exceptions.
        clock: returns seconds.
    """

    def __init__(self, ask: Callable[[str | None], Awaitable[Engines | None]], clock: Callable[[], float]) -> None:
        self._ask = ask
        self._clock = clock
        self._latest: dict[str | None, _Question] = {}
        """By key. Only a server's own keys come here, so there are few."""
        self._last: _Question | None = None
        """The question of whichever key that was asked last. The next one is asked when it is answered."""

    async def get(self, namespace: str | None, limit_s: float) -> Engines | None:
        """Return snapshots that were taken at most ``KEPT_S`` before this call, or after it.

        Raises:
            asyncio.TimeoutError: no answer within ``limit_s``. The question stays asked, and no other is asked before
                its answer.
            Exception: of ``ask``.
        """
        question = self._latest.get(namespace)
        if question is None or not question.is_good(self._clock()):
            question = self._latest[namespace] = _Question()
            question.answer = asyncio.ensure_future(self._in_turn(question, namespace, self._last))
            self._last = question
        if question.answer.done():
            return question.answer.result()
        return await asyncio.wait_for(asyncio.shield(question.answer), limit_s)

    def forget(self) -> None:
        """Take new snapshots at the next call, because a program was released."""
        self._latest.clear()

    async def _in_turn(self, question: _Question, namespace: str | None, before: _Question | None) -> Engines | None:
        if before is not None and not before.answer.done():
            await asyncio.wait([before.answer])
        question.asked_s = self._clock()
        return await self._ask(namespace)


class _Question:
    """A question to the engines, and its answer."""

    answer: asyncio.Future[Engines | None]
    asked_s: float | None = None
    """When the engines were asked; None: the question waits for an earlier one."""

    def is_good(self, now_s: float) -> bool:
        """Whether it is not answered yet, or was answered well and lately."""
        if not self.answer.done():
            return True
        fails = self.answer.cancelled() or self.answer.exception() is not None
        return not fails and self.asked_s is not None and now_s - self.asked_s < KEPT_S


def engine_state(snapshot: Mapping[str, Any], limit: int = LISTED) -> dict[str, Any]:
    """Return an engine's state as users see it: ids, numbers and names of tools, but no text of prompts."""
    now_s, share = snapshot["now_s"], snapshot["pinned_blocks"] / snapshot["pool_blocks"]
    lists = {name: [_pin(row, now_s) for row in snapshot[name][:limit]] for name in ("pins", "soft_holds")}
    programs = [_program(row, now_s) for row in snapshot["program_list"][:limit]]
    return {**snapshot, **lists, "program_list": programs, "pinned_share": share}


def _pin(values: Sequence[Any], now_s: float) -> dict[str, Any]:
    row = dict(zip(PIN_ROW, values, strict=True))
    deadline_s = row.pop("deadline_s")
    return {**row, "expires_in_s": deadline_s - now_s}


def _program(values: Sequence[Any], now_s: float) -> dict[str, Any]:
    row = dict(zip(PROGRAM_ROW, values, strict=True))
    since_s, deadline_s = row.pop("since_s"), row.pop("deadline_s")
    row["left"] = row["left"] and dict(zip(LEFT_ROW, row["left"], strict=True))
    ages = {"for_s": None if since_s is None else now_s - since_s}
    return {**row, **ages, "expires_in_s": None if deadline_s is None else deadline_s - now_s}
