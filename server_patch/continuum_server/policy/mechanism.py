"""``Mechanism``: what takes notes of turns beside the policy. The program table tells all of its mechanisms each event.

A mechanism's notes are its own. What it knows of one program or turn is in a slot of that object, or under its id.
"""

from __future__ import annotations

from collections.abc import Sequence

from continuum_server.policy.facts import TurnFinish, TurnState


class Mechanism:
    """Subclasses override the events that they need. The table changes its own fields of turns and programs later."""

    def arrived(self, turn: TurnState, now_s: float) -> None:
        """A turn enters the waiting queue. ``turns_arrived`` does not count it yet."""

    def started(self, turn: TurnState, now_s: float, hit_tokens: int) -> None:
        """A turn is scheduled: for the first time if its ``start_s`` is None, else after a preemption."""

    def preempted(self, turn: TurnState, now_s: float) -> None:
        """A running turn waits again."""

    def left(self, turn: TurnState, now_s: float) -> None:
        """A turn leaves the engine, in whatever way. ``finished`` or ``lost`` follows."""

    def finished(self, finish: TurnFinish, answer: Sequence[int]) -> None:
        """A turn ended well. ``answer``: tokens of the output."""

    def lost(self, turn: TurnState, context_tokens: int, output_tokens: int) -> None:
        """A turn was aborted or failed, with this part of its answer."""
