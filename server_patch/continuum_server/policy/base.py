"""The policy every other one starts from: stock vLLM's order, nothing held.

A policy is told facts and answers questions; it never sees blocks, clocks, files or vLLM (docs/policies/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from continuum_server.policy.facts import (
    NO_HOLD,
    NO_ORDERS,
    Hold,
    Machine,
    Orders,
    ProgramState,
    Step,
    TurnFinish,
    TurnStart,
    TurnState,
)
from continuum_server.policy.limits import check_fields
from continuum_server.policy.oracle import Oracle

Rank = tuple[float, ...]
Yielding = Literal["never", "waiting", "later", "anyone"]
"""Whose pins a waiting request may take while others run: nobody's; those of programs that arrived later and whose own
request is back and waits too; of all that arrived later; anyone's."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a policy without any. Those of others inherit the check: types, and the ranges beside them.

    Raises:
        LimitError: a value of another type or out of range.
    """

    def __post_init__(self) -> None:
        check_fields(self)


class Policy:
    """Request FCFS with end-of-turn eviction: vLLM as it is (policy ``vllm``).

    Each other policy overrides a few of the hooks. Decisions may depend on facts and times, never on how often a hook
    is called: the virtual engine skips steps in which nothing can happen.
    """

    name: ClassVar[str] = "vllm"
    label: ClassVar[str] = "policy"
    """``policy`` can be deployed; ``bound`` knows the future and is a yardstick only."""
    options_type: ClassVar[type] = Options
    stock_order: ClassVar[bool] = True
    """True: vLLM's own waiting queue is used and ``rank`` is not asked."""
    classes_first: ClassVar[bool] = True
    """True: preempted requests first, then those of held programs (SPEC 4); False: ``rank`` alone decides."""
    steps: ClassVar[bool] = False
    """True: ``step`` is asked before every scheduling step."""
    wants_batch: ClassVar[bool] = False
    """True: ``step`` is told the batch's context, which takes a look at every running request."""
    preempts: ClassVar[bool] = False
    """True: ``preemption_victims`` is asked when the first waiting request does not fit. Needs ``steps``."""
    pins_yield_to: ClassVar[Yielding] = "never"
    """Where the guards leave it to the policy."""
    oracle: Oracle | None = None
    """The future, given to bounds by the virtual engine only."""

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        self.machine = machine
        self.options = self.options_type() if options is None else options

    @property
    def future(self) -> Oracle:
        """What a bound knows and nobody else may.

        Raises:
            RuntimeError: none was given.
        """
        if self.oracle is None:
            raise RuntimeError(f"policy {self.name!r} is a bound: it needs the future, which only a replay has")
        return self.oracle

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        """A request entered the waiting queue."""

    def rank(self, turn: TurnState) -> Rank | None:
        """Place in the waiting queue, smallest first; None: held back until its rank is asked again."""
        return (turn.sequence,)

    def turn_started(self, start: TurnStart) -> None:
        """A turn was scheduled for the first time."""

    def turn_preempted(self, turn: TurnState, now_s: float) -> None:
        """A running turn lost its place and waits again."""

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """A turn ended well and the program goes on: how long to hold its KV."""
        return NO_HOLD

    def turn_lost(self, turn: TurnState) -> None:
        """A turn ended badly: aborted, failed or disconnected."""

    def program_finished(self, program: ProgramState) -> None:
        """The program's last turn ended."""

    def victim_rank(self, program: ProgramState) -> Rank:
        """Which pin yields first under pressure: smallest first. Default: the latest program (SPEC 5)."""
        return (-program.sequence,)

    def state(self) -> dict[str, Any]:
        """What it believes now, for people: ``delay_s`` (T), ``eta``, ``tools`` (samples by tool) where it has them."""
        return {}

    def export_statistics(self) -> dict[str, Any]:
        """What it has learned, as JSON; empty where it learns nothing."""
        return {}

    def import_statistics(self, statistics: dict[str, Any]) -> None:
        """Start from what another run learned.

        Raises:
            ValueError: not the statistics of such a policy.
        """

    def step(self, step: Step) -> Orders:
        """What is to be done before the engine schedules (where ``steps``)."""
        return NO_ORDERS

    def next_event_s(self) -> float | None:
        """The instant after which ``step`` or ``preemption_victims`` may answer something new though nothing happened.

        Never later than that instant; earlier only costs time. None: there is none.
        """
        return None

    def preemption_victims(self, asker: TurnState, running: Sequence[TurnState], now_s: float) -> Sequence[TurnState]:
        """Running turns that may be taken out of the batch so that ``asker`` fits, the first to go first."""
        return ()
