"""``Policy``: the questions that a scheduling policy answers, and the answers of stock vLLM.

A policy is told facts and answers questions. It never sees KV blocks, clocks, files or vLLM (docs/policies/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

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

Rank = tuple[float, ...]
"""A place in an order: the smallest rank comes first."""
Yielding = Literal["never", "waiting", "later", "anyone"]
"""Which pins a waiting request may release while other requests run.

``never``: none. ``waiting``: pins of programs that arrived later and whose next request is queued too. ``later``: pins
of all programs that arrived later. ``anyone``: every pin.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a policy that has none. Options of other policies inherit the check of their types and ranges.

    Raises:
        LimitError: a value of another type or out of range.
    """

    def __post_init__(self) -> None:
        check_fields(self)


class Oracle(Protocol):
    """What the virtual engine knows from the trace. Requests are named by id, because program ids may repeat."""

    def tool_s(self, request_id: str) -> float:
        """Seconds from that request's finish to its program's next arrival."""
        ...

    def remaining_s(self, request_id: str) -> float:
        """Model seconds of that request and of all later ones of its program, alone on the machine."""
        ...

    def work_s(self, request_id: str) -> float:
        """Engine seconds that those requests take in a full batch.

        A prefill counts in full; of a decode step, the share that the request's context has in the batch.
        """
        ...

    def work_after_s(self, request_id: str) -> float:
        """``work_s`` without that request: only the later ones of its program."""
        ...


class Policy:
    """Stock vLLM: requests in order of arrival, and no KV is held after a turn.

    Every policy inherits from this class and overrides a few hooks (docs/how-to/my-policy.md). A decision may depend on
    facts and times, but not on how often a hook is called: the virtual engine skips steps in which nothing can happen.
    """

    name: ClassVar[str]
    """What ``--policy`` calls it."""
    label: ClassVar[Literal["policy", "bound"]] = "policy"
    """``policy`` can be deployed; ``bound`` knows the future and serves as a yardstick only."""
    options_type: ClassVar[type] = Options
    """A frozen dataclass on ``Options``; the sentence under each field documents it."""
    test_options: ClassVar[Mapping[str, Any]] = {}
    """Options under which the policy acts often within the few seconds of a test."""
    gauges: ClassVar[Mapping[str, str]] = {}
    """Numbers of ``state()`` that /metrics shows as ``continuum:NAME``, each with its help sentence."""
    stock_order: ClassVar[bool] = True
    """True: vLLM's own waiting queue is used, and ``rank`` is not asked."""
    classes_first: ClassVar[bool] = True
    """True: preempted requests come first, then requests of programs with a pin, then the rest; ``rank`` orders each
    class. False: ``rank`` alone orders the queue."""
    steps: ClassVar[bool] = False
    """True: ``step`` is asked before every scheduling step."""
    wants_batch: ClassVar[bool] = False
    """True: ``step`` is told the context tokens of the running batch, which costs a look at every running request."""
    preempts: ClassVar[bool] = False
    """True: ``preemption_victims`` is asked when the first waiting request does not fit. Needs ``steps``."""
    holds: ClassVar[bool] = False
    """True: a client may ask for another hold than the policy's (``kv_ttl_s``)."""
    pins_yield_to: ClassVar[Yielding] = "never"
    """Which pins a waiting request may release, unless the operator's guards say so."""
    oracle: Oracle | None = None
    """The future. Only the virtual engine sets it, and only for bounds."""

    def __init__(self, machine: Machine, options: object | None = None) -> None:
        self.machine = machine
        self.options = self.options_type() if options is None else options

    @property
    def future(self) -> Oracle:
        """What only a bound may know.

        Raises:
            RuntimeError: nobody set the future.
        """
        if self.oracle is None:
            raise RuntimeError(f"policy {self.name!r} is a bound: it needs the future, which only a replay has")
        return self.oracle

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        """A request entered the waiting queue."""

    def rank(self, turn: TurnState) -> Rank | None:
        """Place in the waiting queue. None: the request is held back until ``step`` orders its rank asked again."""
        return (turn.sequence,)

    def turn_started(self, start: TurnStart) -> None:
        """A turn was scheduled for the first time."""

    def turn_preempted(self, turn: TurnState, now_s: float) -> None:
        """A running turn was preempted and waits again."""

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """A turn ended well and its program goes on: how long to hold the KV."""
        return NO_HOLD

    def hold_changed(self, turn: TurnState, hold_s: float, now_s: float) -> None:
        """The turn's KV is held for so long from now on, because its client asked for it."""

    def turn_lost(self, turn: TurnState) -> None:
        """A turn was aborted, failed, or its client disconnected."""

    def program_finished(self, program: ProgramState) -> None:
        """The program's last turn ended."""

    def victim_rank(self, program: ProgramState) -> Rank:
        """Order in which pins are released under memory pressure. Default: the program that arrived last goes first."""
        return (-program.sequence,)

    def state(self) -> dict[str, Any]:
        """What the policy estimates now: numbers by name, and ``tools`` (samples by tool) where it counts them."""
        return {}

    def export_statistics(self) -> dict[str, Any]:
        """What the policy has learned, as JSON; empty if it learns nothing."""
        return {}

    def import_statistics(self, statistics: dict[str, Any]) -> None:
        """Start from what another run learned.

        Raises:
            ValueError: not the statistics of such a policy.
        """

    def step(self, step: Step) -> Orders:
        """What to do before the engine schedules. Asked if ``steps``."""
        return NO_ORDERS

    def next_event_s(self) -> float | None:
        """When ``step`` or ``preemption_victims`` may next answer something new although nothing happens; None: never.

        The instant may be too early, which costs time, but never too late.
        """
        return None

    def preemption_victims(self, asker: TurnState, running: Sequence[TurnState], now_s: float) -> Sequence[TurnState]:
        """Running turns that may be preempted so that ``asker`` fits, in the order in which they are preempted."""
        return ()
