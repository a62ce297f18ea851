"""``Policy``: the base class of scheduling policies, which behaves as stock vLLM.

The scheduler calls a policy's methods, its hooks, when something happens to a request and when it needs a decision. A
policy never sees KV blocks, clocks, files or vLLM (docs/policies/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from continuum_server.policy.hints import Predictions
from continuum_server.policy.limits import check_fields

Rank = tuple[float, ...]
"""A position in an order: the smallest rank comes first."""
Yielding = Literal["never", "waiting", "anyone"]
"""Which pins yield to a waiting request that is placed before their programs' next ones (``policy.order``).

``never``: none, as if the programs' next requests came before all others. ``waiting``: those of programs whose next
request waits too. One-offs and overdue requests come before all programs whose tools run, so all pins yield to them.
``anyone``: all pins yield to every request, which is one way to read the papers.
"""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a policy: none. Policies with options derive a dataclass, whose types and ranges are checked.

    Raises:
        LimitError: a value has a wrong type or is out of range.
    """

    def __post_init__(self) -> None:
        check_fields(self)


class Policy:
    """Stock vLLM: requests in order of arrival, and no KV is held after a turn.

    Every policy inherits from this class and overrides a few hooks (docs/how-to/my-policy.md). A decision may depend on
    facts and times, but not on how often a hook is called: the virtual engine skips steps in which nothing can happen.
    """

    name: ClassVar[str]
    """The policy's name on the command line (``--policy``)."""
    label: ClassVar[Literal["policy", "bound"]] = "policy"
    """``policy``: a server can run it. ``bound``: it knows the future, and only the virtual engine runs it."""
    options_type: ClassVar[type] = Options
    """A frozen dataclass derived from ``Options``. The string under each field is the option's help text."""
    gone: ClassVar[Mapping[str, str]] = {}
    """Options of earlier versions, and what replaces them."""
    gauges: ClassVar[Mapping[str, str]] = {}
    """Numbers in ``state()`` that /metrics exports as ``continuum:NAME``, with their help texts."""
    stock_order: ClassVar[bool] = True
    """True: requests run in order of arrival. The engine uses vLLM's own waiting queue until two API keys compete, and
    does not call ``rank``."""
    classes_first: ClassVar[bool] = True
    """True: requests of programs with a pin come first, then the rest. ``rank`` orders each class, and a preempted
    request keeps its place. False: ``rank`` alone orders the queue, and is asked again after a preemption."""
    steps: ClassVar[bool] = False
    """True: ``step`` is called before every scheduling step."""
    preempts: ClassVar[bool] = False
    """True: ``preemption_victims`` is called when the first waiting request does not fit. Requires ``steps``."""
    soft_holds: ClassVar[bool] = True
    """Whether a client may ask to keep KV that nobody else wants (``kv_ttl_s``)."""
    one_offs_first: ClassVar[bool] = True
    """Whether one-offs may run before programs, if the operator's guards allow it."""
    first_words: ClassVar[bool] = False
    """Whether tools that run a shell command are named by its first word, as in the papers, and not by the first
    program that it runs. Only servers read commands."""
    guards_checkpoints: ClassVar[bool] = True
    """Whether the windows and states at the end of a prompt are kept while its answer is generated. Models whose
    layers are all full attention have none."""
    pins_yield_to: ClassVar[Yielding] = "never"
    """Which pins yield to a waiting request, unless the operator's guards override it."""

    def __init__(self, machine: Machine, options: Options | None = None) -> None:
        self.machine = machine
        self.options = self.options_type() if options is None else options
        self.predictions = Predictions()
        """What clients predict of tool times. Only policies that ask it use predictions and tool events."""

    def turn_arrived(self, turn: TurnState, now_s: float) -> None:
        """A request entered the waiting queue."""

    def rank(self, turn: TurnState) -> Rank | None:
        """Return the turn's position in the queue. None keeps it waiting until it is in ``Orders.rank_again``."""
        return (turn.sequence,)

    def turn_started(self, start: TurnStart) -> None:
        """A turn was scheduled for the first time."""

    def turn_preempted(self, turn: TurnState, now_s: float) -> None:
        """A running turn was preempted and waits again."""

    def turn_finished(self, finish: TurnFinish) -> Hold:
        """Return how long to hold the KV of a turn that finished. Not called for the last turn of a program."""
        return NO_HOLD

    def turn_lost(self, turn: TurnState) -> None:
        """A turn was aborted, failed, or its client disconnected."""

    def program_finished(self, program: ProgramState) -> None:
        """The program's last turn ended."""

    def position(self, program: ProgramState) -> Rank:
        """Return the program's position among programs: the smallest comes first. Pins are released from the other
        end."""
        return (program.sequence,)

    def state(self) -> dict[str, Any]:
        """Return the policy's current estimates by name."""
        return {}

    def tool_counts(self) -> Mapping[str, int]:
        """Return how many durations the policy has recorded of each tool, by the tool's key."""
        return {}

    def export_statistics(self) -> dict[str, Any]:
        """Return what the policy has learned as a JSON object, which is empty if it learns nothing."""
        return {}

    def import_statistics(self, statistics: dict[str, Any]) -> None:
        """Add the statistics that another run exported.

        Raises:
            ValueError: the statistics have another form.
        """

    def step(self, step: Step) -> Orders:
        """Return what to do before the engine schedules. Called if ``steps`` is set."""
        return NO_ORDERS

    def next_event_s(self) -> float | None:
        """Return the next time at which ``step`` or ``preemption_victims`` could decide otherwise without an event.

        None: never. A time that is too early only costs computing time. It must not be too late.
        """
        return None

    def preemption_victims(self, asker: TurnState, running: Sequence[TurnState], now_s: float) -> Sequence[TurnState]:
        """Return the running turns to preempt so that ``asker`` fits, in the order in which they are preempted."""
        return ()
