"""The order: who runs next, and whose KV yields to whom. Both follow from the *places* of turns.

A place has four parts, which are compared in this order: the client's priority, a class, the policy's rank within the
class, and the number of the request. A turn that has started keeps its place until it ends. If it is preempted, it
therefore waits where it waited before. Held KV has a place too, that of its program's next turn. It yields to a turn
that is placed before it, and to no other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from enum import IntEnum
from typing import Literal, NamedTuple

from continuum_server.policy.base import Policy, Rank, Yielding
from continuum_server.policy.facts import TurnState
from continuum_server.policy.one_offs import OneOffs
from continuum_server.policy.pins import Pin, Pins
from continuum_server.policy.tenants import Claim, Tenants

PinsYieldTo = Literal["policy", Yielding]
"""``policy``: the policy's own ``pins_yield_to``."""


class Class(IntEnum):
    """The classes of places, the first one first."""

    OVERDUE = 0
    ONE_OFF = 1
    """One-offs, while they run before programs."""
    AWAY = 2
    """Pins whose programs' tools run: their next turns are placed before all that wait."""
    PINNED = 3
    """Turns whose KV is pinned."""
    REST = 4
    HELD_BACK = 5
    """Turns that the policy does not let run yet."""


class Place(NamedTuple):
    """Where a turn stands. The smallest place comes first."""

    priority: float
    """The client's (``TurnState.priority``); infinite for turns that come before or after all others."""
    kind: Class
    rank: Rank
    number: float
    """Number of the request among all requests."""
    tenant: str | None = None
    one_off: bool = False
    """It stands among the one-offs of its tenant, whose class may change while they wait."""

    @property
    def line(self) -> Hashable:
        """Two places of one line never change their order."""
        return (self.tenant, self.one_off)

    @classmethod
    def in_order_of_arrival(cls, number: float) -> Place:
        """Return the place of a request of which nothing else is known."""
        return cls(0.0, Class.REST, (), number)


_HELD_BACK = Place(math.inf, Class.HELD_BACK, (), 0.0)
_LAST = Place(math.inf, Class.HELD_BACK, (), math.inf)


class Order:
    """The places of an engine's turns and of the KV that is held.

    Args:
        pins_yield_to: ``Guards.pins_yield_to``.
    """

    def __init__(
        self, policy: Policy, pins: Pins, one_offs: OneOffs, tenants: Tenants, pins_yield_to: PinsYieldTo
    ) -> None:
        self._policy, self._pins, self._one_offs, self._tenants = policy, pins, one_offs, tenants
        self._pins_yield_to = policy.pins_yield_to if pins_yield_to == "policy" else pins_yield_to

    @property
    def changes(self) -> int:
        """Another number once the answers of ``first`` may have changed."""
        return self._tenants.changes

    def place(self, turn: TurnState) -> Place:
        """Return the turn's place."""
        number, tenant, priority = float(turn.sequence), turn.program.namespace, float(turn.priority)
        if turn.overdue:
            return Place(-math.inf, Class.OVERDUE, (), number, tenant)
        if turn.place is not None:
            return turn.place
        if self._policy.stock_order:
            return Place(priority, Class.REST, (), number, tenant)
        rank = self._policy.rank(turn)
        if rank is None:
            return _HELD_BACK
        pinned = self._policy.classes_first and not turn.one_off and self._pins.firm(turn.program) is not None
        kind = Class.PINNED if pinned else Class.REST
        return Place(priority, kind, tuple(map(float, rank)), number, tenant, turn.one_off)

    def keep_place(self, turn: TurnState) -> None:
        """Note that the turn starts. Only a policy that orders turns by their service moves it if it is preempted."""
        if self._policy.classes_first:
            turn.place = self.place(turn)

    def place_of_running(self, turn: TurnState | None) -> tuple[float, Class, Rank, float]:
        """Return the place of a running turn. vLLM preempts the turn that is placed last. None: it is unknown."""
        place = _HELD_BACK if turn is None else self.place(turn)
        return place.priority, place.kind, place.rank, place.number

    def now(self, place: Place) -> Place:
        """Return the place with its present class."""
        first = place.one_off and place.kind is Class.REST and self._one_offs.first(place.tenant)
        return place._replace(kind=Class.ONE_OFF) if first else place

    def first(self, heads: Collection[Place]) -> Place:
        """Return which of the first places of all lines comes first now."""
        tenants: Collection[str | None] = {head.tenant for head in heads}
        if len(tenants) > 1:
            tenants = self._tenants.within_lag(tenants)
        return min((head for head in heads if head.tenant in tenants), key=self.now)

    # --------------------------------------------------------------------------------- whose KV yields

    def place_of(self, pin: Pin) -> Place:
        """Return the place of held KV: that of its program's next turn."""
        if self._pins_yield_to == "anyone":
            return _LAST
        turn = pin.program.turn if self._pins_yield_to == "waiting" else None
        return Place(pin.priority, Class.AWAY, (), 0.0) if turn is None else self.now(self.place(turn))

    def yielding(self, asker: TurnState, must_free: bool) -> list[Pin]:
        """Return the pins that may be released so that ``asker`` fits, in the order in which they are released.

        Soft holds come first, the oldest first. Then come the pins of tenants on which the turn's tenant has a claim,
        then the others: those with the largest priority first, of these the last program in program order first. A
        program's own pin is the last.

        Args:
            asker: the turn that does not fit.
            must_free: without a release no request could run, or a running request would be preempted.
        """
        place = self.now(self.place(asker))
        claims = [
            (claim, pin)
            for pin in self._pins.values()
            if not pin.soft and (claim := self._claim(asker, place, pin, must_free)) is not None
        ]
        claims.sort(key=lambda claim: (claim[1].priority, self._policy.position(claim[1].program)), reverse=True)
        claims.sort(key=lambda claim: claim[0])
        return [*self._pins.soft, *(pin for _, pin in claims)]

    def _claim(self, asker: TurnState, place: Place, pin: Pin, must_free: bool) -> tuple[int, int] | None:
        """Return the claim by which a turn takes a pin; None: the pin does not yield. The smallest claim comes first.

        Args:
            place: the turn's.
        """
        if pin.program is asker.program:
            return (len(Claim), 0) if must_free else None
        key, holder = asker.program.namespace, pin.program.namespace
        claim, of_pin = self._tenants.claim(asker, holder), self.place_of(pin)
        before = place < of_pin or (of_pin.kind is not Class.AWAY and self._tenants.ahead(holder, key))
        yields = must_free or claim is Claim.ALWAYS or (claim is Claim.AS_THE_POLICY and before)
        return (claim, holder == key) if yields else None

    def preempted_for(self, asker: TurnState, running: Iterable[TurnState], now_s: float) -> Sequence[TurnState]:
        """Return the running turns that may be preempted so that ``asker`` fits, in the order of their preemption."""
        overrun = self._tenants.overrun(asker)
        if overrun or not self._policy.preempts:
            return overrun
        return self._policy.preemption_victims(asker, list(running), now_s)
