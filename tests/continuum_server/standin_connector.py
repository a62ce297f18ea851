"""A connector to a tier: the scheduler's side of vLLM's connector interface.

Like LMCache's, it cannot be asked what it holds, stores chunks of prompts, has no transfer statistics, and loads all of
a prompt but the last token. Loads come with the forward pass, or earlier (``asynchronous``), as vLLM allows both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput

CHUNK_BLOCKS = 2


@dataclass
class LoadsOfStep(KVConnectorMetadata):
    tokens: dict[str, int]


class StandIn(KVConnectorBase_V1):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        extra = self._kv_transfer_config.kv_connector_extra_config
        self.asynchronous, self.keeps = extra["asynchronous"], extra.get("keeps", True)
        self._held: set[Any] = set()
        self._loads: dict[str, int] = {}

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        tokens = 0
        for block_hash in request.block_hashes[CHUNK_BLOCKS - 1 :: CHUNK_BLOCKS]:
            if block_hash not in self._held:
                break
            tokens += CHUNK_BLOCKS * 16
        tokens = min(tokens, request.num_tokens - 1) - num_computed_tokens
        return max(0, tokens), self.asynchronous and tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens and self.asynchronous:
            self._loads[request.request_id] = num_external_tokens

    def build_connector_meta(self, scheduler_output: Any) -> LoadsOfStep:
        loads, self._loads = LoadsOfStep(self._loads), {}
        return loads

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        if self.keeps:
            self._held.update(request.block_hashes)
        return False, None

    # ------------------------------------------------------------------ a worker's side: unused, see ``Workers``

    def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, *args: Any) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


class Workers:
    """In the place of ``Transfers``: the asynchronous loads take so many seconds a token, next to each other."""

    fenced = pending = False

    def __init__(self, token_s: float) -> None:
        self.token_s = token_s
        self.clock: Callable[[], float] = lambda: 0.0
        self._ends: dict[str, float] = {}
        self.quiet = True

    def run_step(self, output: Any) -> tuple[KVConnectorOutput, float]:
        now_s, begun = self.clock(), output.kv_connector_metadata.tokens
        ended = {request_id for request_id, end_s in self._ends.items() if end_s <= now_s}
        self._ends = {request_id: end_s for request_id, end_s in self._ends.items() if request_id not in ended}
        self._ends |= {request_id: now_s + self.token_s * tokens for request_id, tokens in begun.items()}
        self.quiet = not (begun or ended)
        return KVConnectorOutput(finished_recving=ended), now_s

    def next_s(self) -> float:
        return min(self._ends.values(), default=inf)
