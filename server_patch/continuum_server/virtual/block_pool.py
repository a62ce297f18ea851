"""vLLM's block pool, prefix lookup and growth of an answer with shorter inner loops, for the virtual engine.

vLLM makes several calls for each block that it looks up, allocates or caches, and for each token that it appends to an
answer. Most of these calls do nothing if there is one engine and the model uses full attention in every layer. For such
a model this module omits them. It allocates, caches and evicts the same blocks in the same order as vLLM, which
``tests/continuum_server/test_block_pool.py`` checks. A server always runs vLLM's own code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, takewhile
from operator import eq
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.request import Request

from continuum_server.policy.lru import Lru
from continuum_server.virtual.config import replaces_loops


def shorten_loops(scheduler: Scheduler) -> None:
    """Switch the scheduler's pool and lookup to the classes below, if its version and configuration allow it."""
    coordinator = scheduler.kv_cache_manager.coordinator
    pool, managers = coordinator.block_pool, coordinator.single_type_managers
    plain = type(coordinator) is UnitaryKVCacheCoordinator and type(managers[0]) is FullAttentionManager
    extras = pool.metrics_collector or pool.enable_kv_cache_events or coordinator.eagle_group_ids
    if replaces_loops() and plain and not extras:
        coordinator.__class__, managers[0].__class__ = ShortLookup, ShortCount
        coordinator.lookups = Lru(Lookup, limit=256)  # type: ignore[attr-defined]
        pool.__class__ = ShortLoops
        scheduler._update_request_with_output = partial(append_output, scheduler)  # type: ignore[method-assign]


def append_output(
    scheduler: Scheduler, request: Request, new_token_ids: list[int], **stale: Any
) -> tuple[list[int], bool]:
    """Append new tokens to the request's output. Return the tokens, and whether the request has ended.

    vLLM appends tokens one by one. After each token it hashes full blocks and checks whether the request ends. In the
    virtual engine a request ends only at its maximum length, so this function appends all tokens but the last at once.
    """
    most = min(request.max_tokens - request.num_output_tokens, scheduler.max_model_len - request.num_tokens)
    if 1 < len(new_token_ids) <= most:
        request.append_output_token_ids(new_token_ids[:-1])
        _, stopped = type(scheduler)._update_request_with_output(scheduler, request, new_token_ids[-1:], **stale)
        return new_token_ids, stopped
    return type(scheduler)._update_request_with_output(scheduler, request, new_token_ids, **stale)


@dataclass(slots=True)
class Lookup:
    """The blocks that the last lookup of a prompt found in the cache."""

    blocks: list[KVCacheBlock] = field(default_factory=list)
    doubles: int = 0
    """``ShortLoops.doubles`` at the time."""


class ShortLookup(UnitaryKVCacheCoordinator):
    """The lookup of a prompt's longest cached prefix, in whole blocks.

    Most prompts are looked up several times: a waiting request at each step, and a program's context in the next turn.
    A lookup therefore begins at the first block whose hash has changed since the last lookup of the prompt.
    """

    lookups: Lru[Any, Lookup]
    """By the prompt's first hash."""

    def find_longest_cache_hit(self, block_hashes: Any, max_cache_hit_length: int) -> tuple[Any, int, int]:
        pool: Any = self.block_pool
        cached, most = pool.cached_block_hash_to_block._cache, max_cache_hit_length // self.block_size
        if most == 0:
            return ([],), 0, 0
        before = self.lookups.of(block_hashes[0])
        hits = _unchanged(before.blocks, block_hashes)[:most] if before.doubles == pool.doubles else []
        new = list(takewhile(bool, map(cached.get, islice(block_hashes, len(hits), most))))
        if dict in map(type, new):  # several blocks have the same hash
            new = [next(iter(same.values())) if type(same) is dict else same for same in new]
        hits += new
        before.blocks, before.doubles = hits, pool.doubles
        return (list(hits),), len(hits) * self.block_size, 0


def _unchanged(blocks: list[KVCacheBlock], block_hashes: Any) -> list[KVCacheBlock]:
    """Return the leading blocks that still have the prompt's hashes."""
    now = [block._block_hash for block in blocks]
    if now == block_hashes[: len(now)]:
        return blocks
    return blocks[: [*map(eq, now, block_hashes), False].index(False)]


class ShortCount(FullAttentionManager):
    """How many blocks of a cached prefix are free: none of them is vLLM's null block."""

    @classmethod
    def _get_num_evictable_blocks(cls, blocks: Sequence[KVCacheBlock]) -> int:
        return [block.ref_cnt for block in blocks].count(0)


class ShortLoops(BlockPool):
    """A block pool with neither KV events nor metrics, and with only full blocks in the cache.

    vLLM's cache key is a block's hash and the index of its KV cache group. There is one group here, so the key is the
    hash alone.
    """

    doubles = 0
    """How often a block was cached whose hash another block had."""

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        if self._reuse_watchers or num_blocks > self.get_num_free_blocks():
            return super().get_new_blocks(num_blocks)
        cached: dict[Any, Any] = self.cached_block_hash_to_block._cache
        blocks: list[KVCacheBlock] = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            key = block._block_hash
            if key is not None:
                if cached[key] is block:
                    del cached[key]
                    block._block_hash = block._block_hash_num_tokens = None
                else:  # several blocks have this hash
                    self._maybe_evict_cached_block(block)
            block.ref_cnt = 1
        return blocks

    def cache_full_blocks(
        self,
        request: Request,
        blocks: list[KVCacheBlock],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
        block_mask: list[bool] | None = None,
    ) -> None:
        cached: dict[Any, Any] = self.cached_block_hash_to_block._cache
        tokens = num_cached_blocks * block_size
        new: Any = zip(
            blocks[num_cached_blocks:num_full_blocks], request.block_hashes[num_cached_blocks:], strict=False
        )
        for block, key in new:
            tokens += block_size
            if key in cached:  # another block has this hash
                self.doubles += 1
                self._insert_block_hash(key, block, num_tokens=tokens)
            else:
                cached[key] = block
                block._block_hash, block._block_hash_num_tokens = key, tokens

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        unhashed: list[KVCacheBlock] = []
        hashed: list[KVCacheBlock] = []
        for block in ordered_blocks:
            references = block.ref_cnt = block.ref_cnt - 1
            if not references:
                (unhashed if block._block_hash is None else hashed).append(block)
        self.free_block_queue.prepend_n(unhashed)
        self.free_block_queue.append_n(hashed)
