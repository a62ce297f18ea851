"""Loads of KV from tiers, through any of vLLM's connectors: which requests wait for one, and how fast loads are."""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput

from continuum_server.policy.estimate import RecentMean
from continuum_server.vllm_plugin import kv_groups, touch_points

RECENT = 256
"""Number of reports of ended loads over which the time of a load is averaged."""
LINK_BYTES_S = 25e9
"""Bandwidth from DRAM to a GPU until a load was measured: 16 lanes of PCIe 4."""


class Loads:
    """The loads of one engine.

    Args:
        token_s: seconds to load one token's KV, until a load was measured. None: with vLLM's offloading connector
            ``LINK_BYTES_S`` is assumed. Any other connector counts as a tier after its first load, because some
            connectors only send KV to other servers.
    """

    def __init__(self, scheduler: Scheduler, token_s: float | None) -> None:
        self._token_bytes = kv_groups.token_bytes(scheduler)
        """Bytes of a token's KV on one worker."""
        self._measures = touch_points.offloads(scheduler)
        """The workers measure each transfer. With any other connector, the time until a load is reported counts."""
        self.token_s = self._assumed_s if token_s is None and self._measures else token_s
        """Seconds to load one token's KV; None: there is no tier, as far as is known."""
        self._begun: list[tuple[str, int]] = []
        self._running: dict[str, tuple[int, float]] = {}
        """For each request whose KV is being loaded: how many tokens are loaded, and when the load began."""
        self._tokens, self._seconds = RecentMean(RECENT), RecentMean(RECENT)

    @property
    def _assumed_s(self) -> float:
        return self._token_bytes / LINK_BYTES_S

    def allocated(self, request_id: str, tokens: int) -> None:
        """Note that vLLM will load so many of a request's tokens."""
        self._begun.append((request_id, tokens))

    def begun(self) -> list[tuple[str, int]]:
        """Return (request id, number of tokens) of the loads since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def start(self, request_id: str, tokens: int, now_s: float) -> None:
        """Note that a load began. The request starts when it has ended, or in the same step."""
        self._running[request_id] = tokens, now_s
        if self.token_s is None:
            self.token_s = self._assumed_s

    def reported(self, output: KVConnectorOutput, now_s: float) -> None:
        """Learn from what the workers report of loads that ended."""
        if self._measures:
            size, seconds = touch_points.loaded(output)
            self._learn(size / self._token_bytes, seconds)
            return
        for request_id in output.finished_recving or ():
            if request_id in self._running:
                tokens, since_s = self._running[request_id]
                self._learn(tokens, now_s - since_s)

    def _learn(self, tokens: float, seconds: float) -> None:
        if tokens > 0.0:
            self._tokens.add(tokens)
            self._seconds.add(seconds)
            self.token_s = self._seconds.value / self._tokens.value

    def end(self, request_id: str, now_s: float) -> tuple[int, float]:
        """Forget a request's load. Return its number of tokens, and the seconds since it began; 0, 0: there is none."""
        tokens, since_s = self._running.pop(request_id, (0, now_s))
        return tokens, now_s - since_s

    def clear(self) -> None:
        self._running.clear()
