"""Tenants: the API keys of a server share its engine. What one key sends costs another at most its share, beyond a lag.

Each key has a *virtual time*: the engine seconds that it was given, divided by its weight. A prompt counts for the time
to compute what was not cached. Memory counts for the share of the KV pool that running requests and pins hold, times
the seconds that they hold it, so that aborted requests are paid for too. Of the keys that wait, those within ``lag_s``
of the smallest virtual time compete in the policy's own order, as one queue, and the others wait (start-time fair
queueing). A key that was idle continues at the present virtual time: it saves nothing up. A key whose requests all run,
or that has only pins, saves at most ``lag_s`` up.

A key that is behind by more than the lag gets its share of what runs, too: for its requests that stay within its share,
requests of keys ahead that hold more than theirs are preempted until it fits.
While all running requests of the key with the least virtual time decode, a step computes few tokens of prompts, because
each token of that key takes a whole step.

Memory is shared as the keys want it: what a key wants less than an equal share is for the others (``level``).

Nothing here has an effect while all requests have the same key, or none. docs/server/promises.md says what it promises.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from typing import Any

from continuum_server.policy.facts import Machine, TurnState
from continuum_server.policy.mechanism import Mechanism
from continuum_server.policy.pins import Pins

USUAL_PROMPT = 8192
"""Tokens of the prompts that fill the KV pool once in the time that is a lag of 1."""
TICK_S = 0.25
"""Seconds between two charges for memory while two keys have requests in the engine."""
STEP_TOKENS = 256
"""Tokens of prompts in a step while all running requests of the key with the least virtual time decode."""

Key = str | None
"""Digest of an API key; None: the server has fewer than two keys."""


class Claim(IntEnum):
    """When a pin is released for a request."""

    ALWAYS = -1
    AS_THE_POLICY = 0
    """If the policy says so."""
    IF_FORCED = 1
    """If no request could run otherwise, or a running request would be preempted."""


@dataclass(slots=True)
class Tenant:
    """What the engine does for one API key."""

    key: Key
    weight: float = 1.0
    """The engine is shared in proportion to the weights."""
    virtual_s: float = 0.0
    """Engine seconds that the key was given, divided by its weight."""
    waiting: dict[str, TurnState] = field(default_factory=dict)
    running: dict[str, TurnState] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        return bool(self.waiting or self.running)


_VIRTUAL_S = attrgetter("virtual_s")


class Tenants(Mechanism):
    """The virtual times of API keys, and what follows from them.

    Args:
        pins: the pins of all keys.
        lag: by how much a key may be ahead of another one that waits: the seconds to compute prompts that fill the KV
            pool, times ``lag``. Infinite: keys do not matter.
        context_tokens: returns the present context of a running turn, in tokens.
        seats: number of requests that can run at once. Each takes at least one of so many parts of the engine.
    """

    def __init__(
        self, machine: Machine, pins: Pins, lag: float, context_tokens: Callable[[TurnState], int], seats: int
    ) -> None:
        curve = machine.prefill
        self.lag_s = lag * machine.kv_tokens * curve.marginal_prefill_s(USUAL_PROMPT) / USUAL_PROMPT
        self.changes = 0
        """Number of arrivals, starts, ends and charges. Until the next one, the same keys may go on."""
        self.seats, self._context_tokens = seats, context_tokens
        self._prefill_s, self._kv_tokens, self._pins = curve.marginal_prefill_s, machine.kv_tokens, pins
        self._tenants: dict[Key, Tenant] = {}
        self._present_s = 0.0
        """The largest of the smallest virtual times of waiting keys: where a key continues that was idle."""
        self._charged_s = 0.0
        """When memory was last charged."""
        self.next_s = math.inf
        """The time after which ``tick`` has something to do."""
        self._prompts: list[TurnState] | None = None
        """The running turns of the key with the least virtual time whose prompts are computed, None: none runs."""
        self._prompts_at = -1
        """``changes`` when these were looked up."""
        self._level, self._level_at = math.inf, -1
        """``level`` and ``changes`` when it was computed."""

    @property
    def several(self) -> bool:
        """Whether the engine serves more than one key."""
        return len(self._tenants) > 1 and self.lag_s < math.inf

    def __iter__(self) -> Iterator[Tenant]:
        return iter(self._tenants.values())

    def virtual_s(self, key: Key) -> float:
        tenant = self._tenants.get(key)
        return 0.0 if tenant is None else tenant.virtual_s

    # ------------------------------------------------------------------------------- what happens

    def arrived(self, turn: TurnState, now_s: float) -> None:
        self.changes += 1
        key = turn.program.namespace
        if key not in self._tenants:
            self._forget_idle()
        tenant = self._tenants.setdefault(key, Tenant(key))
        tenant.weight = turn.weight
        if self._idle(tenant):
            least_s = min((other.virtual_s for other in self if other.active), default=0.0)
            tenant.virtual_s = max(tenant.virtual_s, self._present_s, least_s)
        elif not tenant.waiting:
            tenant.virtual_s = max(tenant.virtual_s, self._present_s - self.lag_s)
        tenant.waiting[turn.request_id] = turn
        if self.next_s == math.inf and self._competing():
            self.next_s, self._charged_s = now_s + TICK_S, now_s

    def came_first(self) -> None:
        """Note that the first waiting turn starts, or finds no room: the present virtual time is that of waiting keys.

        Keys that only have running requests do not hold the time back. If they did, several keys of which one always
        has a small stream running would always go before a request that needs the whole pool, and all turns behind
        that request would wait without end.
        """
        self._present_s = max(self._present_s, min((other.virtual_s for other in self if other.waiting), default=0.0))

    def started(self, turn: TurnState, now_s: float, hit_tokens: int) -> None:
        """Charge a turn's prompt, unless it was preempted and starts again."""
        self.changes += 1
        tenant = self._tenants[turn.program.namespace]
        self.came_first()
        tenant.waiting.pop(turn.request_id, None)
        tenant.running[turn.request_id] = turn
        if turn.start_s is None:
            seconds = max(0.0, self._prefill_s(turn.prompt_tokens) - self._prefill_s(hit_tokens))
            tenant.virtual_s += seconds / tenant.weight

    def preempted(self, turn: TurnState, now_s: float) -> None:
        """Note it before the turn waits again."""
        self.left(turn, now_s)
        self._tenants[turn.program.namespace].waiting[turn.request_id] = turn

    def left(self, turn: TurnState, now_s: float) -> None:
        """Charge the memory of a turn that ends, in whatever way."""
        self.changes += 1
        tenant = self._tenants[turn.program.namespace]
        tenant.waiting.pop(turn.request_id, None)
        if tenant.running.pop(turn.request_id, None) is not None:
            self._charge_running(tenant, [turn], now_s)

    def _charge_running(self, tenant: Tenant, turns: Iterable[TurnState], now_s: float) -> None:
        if self.next_s == math.inf:
            return
        for turn in turns:
            seconds = max(0.0, now_s - max(turn.since_s, self._charged_s))
            tenant.virtual_s += seconds * self._share(self._size(turn)) / tenant.weight

    def tick(self, now_s: float) -> None:
        """Charge memory if it is time."""
        if self.next_s >= now_s:
            return
        self.changes += 1
        for tenant in self:
            self._charge_running(tenant, tenant.running.values(), now_s)
            waits = sum(pin.tokens for turn in tenant.waiting.values() if (pin := self._pins.firm(turn.program)))
            pinned = self._share(self._pins.tokens_of[tenant.key] - waits)  # that they wait is not their choice
            tenant.virtual_s += (now_s - self._charged_s) * pinned / tenant.weight
        self._charged_s = now_s
        self.next_s = now_s + TICK_S if self._competing() else math.inf

    def _forget_idle(self) -> None:
        """Forget keys that will continue at the present virtual time. While nothing runs or waits, all keys do."""
        idle = [tenant for tenant in self if self._idle(tenant)]
        if not any(tenant.active for tenant in self):
            self._present_s = max((self._present_s, *(tenant.virtual_s for tenant in idle)))
        for tenant in idle:
            if tenant.virtual_s <= self._present_s:
                del self._tenants[tenant.key]

    def _competing(self) -> bool:
        return self.several and sum(tenant.active for tenant in self) > 1

    # ------------------------------------------------------------------------------------- memory

    def _size(self, turn: TurnState) -> float:
        return max(self._context_tokens(turn), self._kv_tokens / self.seats)

    def _share(self, tokens: float) -> float:
        return min(1.0, tokens / self._kv_tokens)

    def _idle(self, tenant: Tenant) -> bool:
        return not (tenant.active or self._pins.tokens_of[tenant.key])

    def held(self, key: Key) -> float:
        """Return the tokens that a key's running requests and pins hold."""
        tenant = self._tenants[key]
        return sum(map(self._size, tenant.running.values())) + self._pins.tokens_of[key]

    def _wanted(self, tenant: Tenant) -> float:
        """Return the tokens that a key's requests and pins hold or wait for."""
        return self.held(tenant.key) + sum(turn.prompt_tokens - self._own_pin(turn) for turn in tenant.waiting.values())

    def _own_pin(self, turn: TurnState) -> float:
        """Return the tokens that the pin of the turn's program holds. The turn begins with them."""
        pin = self._pins.firm(turn.program)
        return 0 if pin is None else min(pin.tokens, turn.prompt_tokens)

    def level(self) -> float:
        """Return the tokens that a key of weight 1 may have: what keys with less do not want is for the others (max-min
        fairness)."""
        if self._level_at != self.changes:
            self._level, self._level_at = self._water_level(), self.changes
        return self._level

    def _water_level(self) -> float:
        busy = (tenant for tenant in self if not self._idle(tenant))
        wanted = sorted((self._wanted(tenant) / tenant.weight, tenant.weight) for tenant in busy)
        tokens, weights = float(self._kv_tokens), sum(weight for _, weight in wanted)
        for of_weight_1, weight in wanted:
            if of_weight_1 * weights >= tokens:
                return tokens / weights
            tokens, weights = tokens - of_weight_1 * weight, weights - weight
        return math.inf

    def fair(self, key: Key) -> float:
        """Return the tokens that are a key's share of the pool; all of it if that is as much as all keys want."""
        tenant = self._tenants.get(key)
        return 0.0 if tenant is None else min(float(self._kv_tokens), self.level() * tenant.weight)

    def _within_share(self, asker: TurnState) -> bool:
        """Whether a waiting turn's key would hold at most its share beside the turn, or only the turn."""
        others = self.held(asker.program.namespace) - self._own_pin(asker)
        return others <= 0.0 or others + asker.prompt_tokens <= self.fair(asker.program.namespace)

    def rows(self, now_s: float) -> list[dict[str, Any]]:
        """Return what each key has; empty: all requests have the same key, or none."""
        if len(self._tenants) < 2:
            return []
        return [
            {
                "key": tenant.key or "none",
                "weight": tenant.weight,
                "share": self.held(tenant.key) / self._kv_tokens,
                "fair_share": self.fair(tenant.key) / self._kv_tokens,
                "virtual_s": tenant.virtual_s,
                "running": len(tenant.running),
                "waiting": len(tenant.waiting),
                "longest_wait_s": max((now_s - turn.since_s for turn in tenant.waiting.values()), default=0.0),
            }
            for tenant in self
        ]

    # ---------------------------------------------------------------------------------- decisions

    def within_lag(self, keys: Collection[Key]) -> Collection[Key]:
        """Return those of the waiting keys that may go on now."""
        limit_s = min(map(self.virtual_s, keys)) + self.lag_s
        return [key for key in keys if self.virtual_s(key) <= limit_s]

    def ahead(self, key: Key, of: Key) -> bool:
        """Whether a key was given more than ``lag_s`` of the engine more than another."""
        return self.several and self.virtual_s(key) > self.virtual_s(of) + self.lag_s

    def claim(self, asker: TurnState, holder: Key) -> Claim:
        """Return when a key's pin is released for a turn.

        A key that is behind may take what a key that is ahead has beyond its share. If none of its requests runs, its
        own pins yield too.
        """
        key = asker.program.namespace
        if not self.several or self.ahead(key, holder):
            return Claim.IF_FORCED if self.several else Claim.AS_THE_POLICY
        others = [tenant.key for tenant in self if not self._idle(tenant)] if holder == key else [holder]
        if not any(self.ahead(other, key) for other in others):
            return Claim.AS_THE_POLICY
        if holder == key:
            return Claim.AS_THE_POLICY if self._tenants[key].running else Claim.ALWAYS
        rich = self.held(holder) > self.fair(holder)
        return Claim.ALWAYS if rich and self._within_share(asker) else Claim.AS_THE_POLICY

    def overrun(self, asker: TurnState) -> list[TurnState]:
        """Return the running turns to preempt so that a turn within its key's share, or the only one of its key, fits.

        They belong to keys that are ahead of the turn's key by more than the lag, and make up what these hold beyond
        their shares. Those of the key with the largest virtual time come first, the latest of each key first.
        """
        key = asker.program.namespace
        ahead = [tenant for tenant in self if tenant.running and self.ahead(tenant.key, key)]
        if not ahead or not self._within_share(asker):
            return []
        turns: list[TurnState] = []
        alone = asker.prompt_tokens - self.fair(key)  # a request above its key's share takes turns
        for tenant in sorted(ahead, key=_VIRTUAL_S, reverse=True):
            beyond = self.held(tenant.key) - self.fair(tenant.key) + max(0.0, alone)
            for turn in reversed(tenant.running.values()):
                if beyond <= 0.0:
                    break
                beyond -= self._size(turn)
                turns.append(turn)
        return turns

    def step_tokens(self, limit: int, decode_tokens: Callable[[], int], decodes: Callable[[TurnState], bool]) -> int:
        """Return how many tokens the next step may compute, at most ``limit``.

        Args:
            decode_tokens: returns the tokens that all running requests decode in the step.
            decodes: whether a running turn's prompt is computed. From then on it is, until the turn is preempted.
        """
        if self._prompts_at != self.changes:
            active = [tenant for tenant in self if tenant.active]
            least = min(active, key=_VIRTUAL_S) if len(active) > 1 else None
            self._prompts = [*least.running.values()] if least is not None and least.running else None
            self._prompts_at = self.changes
        if self._prompts is None:
            return limit
        self._prompts = [turn for turn in self._prompts if not decodes(turn)]
        return limit if self._prompts else min(limit, STEP_TOKENS + decode_tokens())
