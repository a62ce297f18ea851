"""The policy every other one starts from: stock vLLM's order, nothing held.

A policy is told facts and answers questions; it never sees blocks, clocks, files or vLLM (docs/policies/).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from continuum_server.policy.facts import (
    NO_HOLD,
    Hold,
    Machine,
    ProgramState,
    TurnFinish,
    TurnStart,
    TurnState,
)

Rank = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a policy without any."""


class Policy:
    """Request FCFS with end-of-turn eviction: vLLM as it is (policy ``vllm``).

    Six hooks; each other policy overrides a few.
    """

    name: ClassVar[str] = "vllm"
    label: ClassVar[str] = "policy"
    """``policy`` can be deployed; ``bound`` knows the future and is a yardstick only."""
    options_type: ClassVar[type] = Options
    stock_order: ClassVar[bool] = True
    """True: vLLM's own waiting queue is used and ``rank`` is not asked."""

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        self.machine = machine
        self.options = self.options_type() if options is None else options

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        """A request entered the waiting queue."""

    def rank(self, turn: TurnState) -> Rank:
        """Place in the waiting queue, smallest first, inside its class (preempted, pinned, rest)."""
        return (turn.sequence,)

    def turn_started(self, start: TurnStart) -> None:
        """A turn was scheduled for the first time."""

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """A turn ended well and the program goes on: how long to hold its KV."""
        return NO_HOLD

    def program_finished(self, program: ProgramState) -> None:
        """The program's last turn ended."""

    def victim_rank(self, program: ProgramState) -> Rank:
        """Which pin yields first under pressure: smallest first. Default: the latest program (SPEC 5)."""
        return (-program.sequence,)
