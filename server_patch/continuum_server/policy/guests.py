"""Guests: newcomers whose first turn runs before the turns of earlier programs that have no pin.

In program order alone, a newcomer's first answer would wait for all programs that came before it. One newcomer of an
API key at a time is its *guest*, in order of arrival. After its first turn it stands at its place in program order.

Only the first programs of families are guests, and none is while a sub-agent of its key waits: an earlier program waits
for that one. Requests in the background (``TurnState.priority``) do not count. The prompts of a key's guests take at
most ``GUESTS_SHARE`` of the engine's time. So a client that begins a new program with every request, however large,
delays earlier programs by that share and no more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from continuum_server.policy.facts import Machine, TurnState
from continuum_server.policy.lru import Lru

GUESTS_SHARE = 0.125
"""Share of the engine's time that prompts of a key's guests may take."""
BURST_S = 10.0
"""So many engine seconds of prompts of guests may be ahead of their share: what a key saves up while it has none."""
KEYS = 1024
"""Number of API keys remembered. The key that had no newcomer for longest is forgotten first."""


@dataclass(slots=True)
class _Key:
    """The newcomers of one API key."""

    paid_s: float = -math.inf
    """When the prompts of its guests so far will have taken no more than their share."""
    newcomers: dict[str, TurnState] = field(default_factory=dict)
    """First turns that wait, by request id, the oldest first."""
    children: set[str] = field(default_factory=set)
    """Request ids of turns of sub-agents that wait."""
    guest: TurnState | None = None


class Guests:
    """The guests of all API keys."""

    def __init__(self, machine: Machine) -> None:
        self._prefill_s = machine.prefill.marginal_prefill_s
        self._keys = Lru[str | None, _Key](_Key, KEYS)
        self._waiting: dict[str | None, _Key] = {}
        """The keys with newcomers."""

    def includes(self, turn: TurnState) -> bool:
        """Whether a turn is that of a guest."""
        return self._keys.of(turn.program.namespace).guest is turn

    def arrived(self, turn: TurnState) -> None:
        key = self._keys.of(turn.program.namespace)
        if turn.priority > 0:
            return  # nobody in the foreground waits for it
        if turn.program.family is not None:
            key.children.add(turn.request_id)
        elif turn.program.turns_arrived == 1 and not turn.one_off:
            key.newcomers[turn.request_id] = turn
            self._waiting[turn.program.namespace] = key

    def started(self, turn: TurnState) -> None:
        """Note that a turn runs. It is no newcomer any more, but may still be a guest."""
        name = turn.program.namespace
        key = self._keys.of(name)
        key.children.discard(turn.request_id)
        key.newcomers.pop(turn.request_id, None)
        if not key.newcomers:
            self._waiting.pop(name, None)

    def left(self, turn: TurnState) -> bool:
        """Note that a turn ended, in whatever way. Return whether it was that of a guest."""
        self.started(turn)
        key = self._keys.of(turn.program.namespace)
        was_guest = key.guest is turn
        if was_guest:
            key.guest = None
        return was_guest

    def invite(self, now_s: float) -> list[TurnState]:
        """Make the oldest newcomer of each key its guest, if it may have one now. Return the new guests."""
        return [turn for key in self._waiting.values() if (turn := self._invite(key, now_s)) is not None]

    def _invite(self, key: _Key, now_s: float) -> TurnState | None:
        if key.guest is not None or key.children or key.paid_s > now_s or not key.newcomers:
            return None
        turn = key.guest = next(iter(key.newcomers.values()))
        key.paid_s = (
            max(key.paid_s, now_s - BURST_S / GUESTS_SHARE) + self._prefill_s(turn.prompt_tokens) / GUESTS_SHARE
        )
        return turn

    def next_s(self) -> float | None:
        """Return the next time at which a newcomer may become a guest without an event; None: there is none."""
        return min(
            (key.paid_s for key in self._waiting.values() if key.guest is None and not key.children), default=None
        )
