"""How long ``working-set`` holds a program's KV: at most until holding it has cost as much as losing it would.

Costs are seconds of engine time. Memory has a *worth*: the relative gain in the engine's speed per relative gain in
memory. Holding a share s of the KV pool for t seconds costs s * worth * t seconds.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from itertools import count

from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import Machine, Stored
from continuum_server.policy.tool_times import RecentToolTimes

USUAL_WORTH = 0.27
"""Worth of memory if decode times are unknown: about that of Llama-3.1-8B with 440K tokens on an A100 or an H100."""
TIMES = 1024
"""Number of most recent times between turns from which a hold is shortened."""
RECENT_HOLDS = 256
"""Number of turns that count most in the means of ``Holds``."""


@dataclass(slots=True, eq=False)
class Away:
    """A program between two turns."""

    tokens: int
    hold_s: float
    """The hold that was learned, which counts in the worth of memory. A hint changes it for its own program only."""
    back: bool = False
    """It returned, or its client said that it ended."""


@dataclass(slots=True, order=True)
class _End:
    at_s: float
    number: int
    away: Away = field(compare=False)


class Holds:
    """What holding and losing KV costs, and what was learned of the times between turns."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        decode = machine.decode
        self._decode_worth = (decode.memory_worth(machine.kv_tokens) if decode is not None else 0.0) or USUAL_WORTH
        self.tool_times = RecentToolTimes(TIMES)
        """The recent tool times."""
        self.kept_s, self.served_s = RecentMean(RECENT_HOLDS), RecentMean(RECENT_HOLDS)
        """Means: seconds for which KV is held after a turn, and seconds of a turn in the batch."""
        self._ends: list[_End] = []
        """A heap of the times at which programs that are away count as finished."""
        self._numbers = count()

    def worth(self) -> float:
        """Return the worth of memory: faster decoding, plus room for programs that run while the tools of others run.

        The second part is the time for which KV is held after a turn, per time that the turn was in the batch.
        """
        served_s = self.served_s.value
        return self._decode_worth + (self.kept_s.value / served_s if served_s > 0.0 else 0.0)

    def break_even_s(self, tokens: int, stored: Stored | None = None) -> float:
        """Return the time after which a hold has cost as much engine time as losing the KV would: what it takes to
        compute the context again, or to reload it."""
        loss_s = self._machine.prefill.marginal_prefill_s(tokens)
        if stored is not None:
            loss_s = min(loss_s, self._machine.rebuild_s(tokens, stored))
        held = self._machine.room(tokens) / self._machine.kv_tokens
        return loss_s / (held * self.worth()) if held > 0.0 else math.inf

    def left(self, tokens: int, hold_s: float, until_s: float) -> Away:
        """Note that a program's tool runs. If it does not return by ``until_s``, it counts as finished."""
        away = Away(tokens, hold_s)
        heapq.heappush(self._ends, _End(until_s, next(self._numbers), away))
        return away

    def returned(self, away: Away, tool_s: float) -> None:
        """Learn from a tool time that ends now."""
        self.tool_times.add(tool_s)
        if not away.back:
            away.back = True
            self.kept_s.add(min(tool_s, away.hold_s))

    def gone(self, now_s: float) -> list[Away]:
        """Return the programs that count as finished from now on, because they did not return."""
        out: list[Away] = []
        while self._ends and self._ends[0].at_s < now_s:
            away = heapq.heappop(self._ends).away
            if not away.back:
                away.back = True
                self.kept_s.add(away.hold_s)
                out.append(away)
        return out
