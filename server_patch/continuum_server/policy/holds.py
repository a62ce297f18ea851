"""How long ``working-set`` holds a program's KV: at most until holding it has cost as much as losing it would.

Costs are seconds of engine time. Memory has a *worth*: the relative gain in the engine's speed per relative gain in
memory. Holding a share s of the KV pool for t seconds costs s * worth * t seconds.
"""

from __future__ import annotations

from continuum_server.policy.estimate import RecentMean
from continuum_server.policy.facts import Machine, PrefillCurve, Stored
from continuum_server.policy.tool_times import RecentToolTimes

USUAL_WORTH = 0.27
"""Worth of memory if decode times are unknown: about that of Llama-3.1-8B with 440K tokens on an A100 or an H100."""
USUAL_PREFILL = PrefillCurve(1.5e-9, 5.5e-5, 0.0, "Llama-3.1-8B on an A100")
"""Prefill times if no profile was measured. Recomputation is never free, and learned tool times shorten long holds."""
RECENT = 256
"""Number of turns over which times are averaged."""
TIMES = 1024
"""Number of most recent times between turns from which a hold is shortened."""


class Holds:
    """The costs of holding and of losing KV, and what was learned of the times between turns.

    Args:
        learns: whether the recent times between turns shorten holds and change the worth of memory.
    """

    def __init__(self, machine: Machine, learns: bool) -> None:
        self._machine = machine
        self._learns = learns
        decode_worth = machine.decode.memory_worth(machine.kv_tokens) if machine.decode is not None else 0.0
        self._worth = decode_worth or USUAL_WORTH
        self.tool_times = RecentToolTimes(TIMES if learns else 0)
        """The recent tool times."""
        self.kept_s, self.served_s = RecentMean(RECENT), RecentMean(RECENT)
        """Means: seconds for which a program stays inside after a turn, and seconds of a turn in the batch."""
        self.back_s, self.in_tier = RecentMean(RECENT), RecentMean(RECENT)
        """Means over turns whose KV had left the GPU: seconds until the turn started, and share with KV in a tier."""

    def worth(self) -> float:
        """Return the worth of memory: faster decoding, plus room for programs that run while the tools of others run.

        The second part is the time that a program stays inside after a turn, per time that the turn was in the batch.
        """
        served_s = self.served_s.value
        return self._worth + (self.kept_s.value / served_s if self._learns and served_s > 0.0 else 0.0)

    def break_even_s(self, tokens: int, shared_tokens: int, inside: int, stored: Stored | None = None) -> float:
        """Return the time after which a hold has cost as much engine time as losing the KV would.

        Args:
            tokens: the context.
            shared_tokens: leading tokens that other programs inside keep in memory anyway.
            inside: number of programs inside.
        """
        own = max(tokens - shared_tokens, self._machine.block_size)
        return self.loss_s(tokens, own, inside, stored) / (own / self._machine.kv_tokens * self.worth())

    def loss_s(self, tokens: int, own: int, inside: int, stored: Stored | None) -> float:
        """Return the engine seconds that it costs to lose the last ``own`` tokens of a context.

        Tokens that no tier has at the return are computed again. A reload takes memory, but not engine time. The
        program waits until there is room and its KV is loaded. With n programs inside, this costs 1/n of the engine.
        """
        prefill, machine = self._machine.prefill, self._machine
        rebuild_s = prefill.marginal_prefill_s(tokens) - prefill.marginal_prefill_s(tokens - own)
        if stored is None:
            return rebuild_s
        there = min(max(stored.tokens, tokens - own), tokens)
        rest_s = prefill.marginal_prefill_s(tokens) - prefill.marginal_prefill_s(there)
        load_s = machine.reload_s(stored) if stored.tokens > 0 else 0.0
        reload_s = own / machine.kv_tokens * self.worth() * load_s + rest_s
        wait_s = self.back_s.value / max(1, inside)
        return rebuild_s - self.in_tier.value * max(0.0, rebuild_s - reload_s - wait_s)
