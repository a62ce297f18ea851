"""What vLLM keeps of a context in each KV cache group of the model, and what a later prompt can hit of it.

A model with windows, states or several kinds of attention has several groups. vLLM's prefix look-up needs all of them
at one position. While a request goes on, vLLM frees the windows and states that the request itself needs no longer, and
with them the position from which the next turn could go on. This module uses vLLM's private API, as ``touch_points``
does, and was compared with vLLM 0.26, 0.32 and 0.33. It relies on behaviour that signatures do not show:

- ``coordinator.find_longest_cache_hit`` changes nothing. The blocks that it returns are vLLM's own null block where the
  look-up needs none.
- A group of an EAGLE or MTP model matches one block behind the hit, and drops it from its answer.
- Windows and states are freed in ``allocate_slots``, at the earliest one step after the step that needed them last.
- With ``prefix_match_unit`` a state within a block gets its own block one step after it is computed, and is free to be
  evicted at once. A prompt's last state is computed with the prompt, or one step before.
"""

from __future__ import annotations

from collections import Counter
from inspect import signature
from itertools import chain
from typing import Any, NamedTuple

from vllm.v1.core.kv_cache_utils import (
    KVCacheBlock,
    get_max_concurrency_for_kv_cache_config,
    resolve_block_hashes,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager, SingleTypeKVCacheManager
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.request import Request

from continuum_server.policy.facts import Footprint

Blocks = list[KVCacheBlock]


class Kept(NamedTuple):
    """What a hold keeps of a request's context."""

    blocks: Blocks
    tokens: int
    """Length of the prefix that a later prompt hits, if it begins with the whole context."""


def keeps_all(manager: SingleTypeKVCacheManager) -> bool:
    """Whether requests keep all of their blocks of this group until they end: full attention, of any kind."""
    kind = type(manager)
    removes = kind.remove_skipped_blocks is not SingleTypeKVCacheManager.remove_skipped_blocks
    return isinstance(manager, FullAttentionManager) and not removes


def is_plain(scheduler: Scheduler) -> bool:
    """Whether the model has a single KV cache group, and requests keep all of its blocks until they end."""
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    return len(managers) == 1 and keeps_all(managers[0])


def kept(scheduler: Scheduler, request: Request) -> Kept:
    """Return the blocks that a hold of the request's context must keep.

    If all of the request's blocks are still its own, these are its full blocks: a partly filled last block has no hash,
    so no later prompt could hit it. Otherwise they are the blocks in which vLLM finds the whole context, and those in
    which it finds the prompt: there a next prompt goes on that leaves out the answer's reasoning.
    """
    if is_plain(scheduler):
        (own,) = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
        full = [block for block in own if block._block_hash is not None]
        return Kept(full, len(full) * scheduler.block_size)
    whole, tokens = found(scheduler, request.block_hashes, request.num_tokens)
    prompt, _ = found(scheduler, *_prompt(scheduler, request))
    return Kept(list({block.block_id: block for block in chain(*whole, *prompt)}.values()), tokens)


def _prompt(scheduler: Scheduler, request: Request) -> tuple[Any, int]:
    """Return the hashes and the length of the request's prompt. The block that continues with the answer is left out:
    another answer, or the answer without its reasoning, makes another block of it."""
    tokens = request.num_prompt_tokens
    return request.block_hashes[: tokens // scheduler.kv_cache_manager.block_pool.hash_block_size], tokens


def found(scheduler: Scheduler, block_hashes: Any, most_tokens: int) -> tuple[list[Blocks], int]:
    """Return what vLLM's look-up reads to find the longest cached prefix of at most ``most_tokens`` tokens.

    The result is the blocks by group, and the length of the prefix in tokens.
    """
    coordinator: Any = scheduler.kv_cache_manager.coordinator
    groups, tokens, *_ = coordinator.find_longest_cache_hit(block_hashes, most_tokens)
    blocks = [[block for block in group if not block.is_null] for group in groups]
    for group in coordinator.eagle_group_ids if tokens else ():
        blocks[group] += _behind(coordinator, group, block_hashes, tokens)
    return blocks, tokens


def _behind(coordinator: Any, group: int, block_hashes: Any, tokens: int) -> Blocks:
    """Return the cached block behind the first ``tokens`` tokens, which an EAGLE group must match.

    If a hit may end within a block, the look-up may match a part of a block, which has a hash of its own.
    """
    manager, pool = coordinator.single_type_managers[group], coordinator.block_pool
    if isinstance(manager.kv_cache_spec, MambaSpec):  # draft models have no states
        return []
    matched: Blocks = []
    for size in {manager.block_size, pool.hash_block_size}:
        hashes, index = resolve_block_hashes(block_hashes, pool.hash_block_size, size), tokens // size
        if index < len(hashes):
            matched += pool.get_cached_block(hashes[index], [group]) or ()
    return matched


def described(scheduler: Scheduler) -> list[str]:
    """Say which KV cache groups the model has, and what a hold keeps of them."""
    coordinator: Any = scheduler.kv_cache_manager.coordinator
    managers = coordinator.single_type_managers
    kinds = Counter((_kind(manager), manager.block_size) for manager in managers)
    groups = [f"{count} x {kind} (blocks of {size} tokens)" for (kind, size), count in kinds.items()]
    if is_plain(scheduler):
        return [*groups, "a hold keeps all full blocks of a finished turn"]
    interval = coordinator.retention_interval
    places = {None: "each block", 0: "its prompt"}.get(interval, f"each {interval} tokens")
    return [
        *groups,
        f"a hold keeps what a next turn can find: the whole context of full attention, of windows and states the end; "
        f"vLLM keeps them at the end of {places}, and finds multiples of {scheduler.block_size} tokens",
    ]


def _kind(manager: SingleTypeKVCacheManager) -> str:
    spec: Any = manager.kv_cache_spec
    if isinstance(spec, MambaSpec):
        return "states"
    window, chunk = getattr(spec, "sliding_window", None), getattr(spec, "attention_chunk_size", None)
    if keeps_all(manager):
        return "full attention"
    return f"windows of {window} tokens" if window else f"chunks of {chunk} tokens"


def kv_tokens(scheduler: Scheduler) -> int:
    """Return the number of tokens that the KV pool holds.

    If the model has several KV cache groups, a context takes blocks of the pool in each of them. Then this is vLLM's
    own number, for contexts of the longest length; ``footprint`` says what shorter contexts take.
    """
    config, blocks = scheduler.kv_cache_config, pool_blocks(scheduler)
    if is_plain(scheduler):
        return scheduler.block_size * blocks
    return int(get_max_concurrency_for_kv_cache_config(scheduler.vllm_config, config) * scheduler.max_model_len)


def block_tokens(scheduler: Scheduler) -> float:
    """Return the tokens of ``kv_tokens`` per block of the pool."""
    return scheduler.block_size if is_plain(scheduler) else kv_tokens(scheduler) / pool_blocks(scheduler)


def footprint(scheduler: Scheduler) -> Footprint | None:
    """Return how many blocks a context takes while its request runs; None: in proportion to its length."""
    if is_plain(scheduler):
        return None
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    groups = tuple((manager.block_size, _most_blocks(scheduler, manager)) for manager in managers)
    return Footprint(groups, block_tokens(scheduler))


def _most_blocks(scheduler: Scheduler, manager: SingleTypeKVCacheManager) -> int | None:
    """Return the most blocks of this group that a decoding request keeps; None: it keeps all.

    While a prompt is computed, a window has the blocks of the chunk in addition.
    """
    spec: Any = manager.kv_cache_spec
    if keeps_all(manager):
        return None
    if isinstance(spec, MambaSpec):
        return int(-(-spec.max_memory_usage_bytes(scheduler.vllm_config) // spec.page_size_bytes))
    window: Any = getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None)
    return -(-int(window or scheduler.max_model_len) // manager.block_size) + 1


def blocks_wanted(scheduler: Scheduler, request: Request, arguments: dict[str, Any]) -> int:
    """Return the free blocks that a waiting request's whole context needs, given ``allocate_slots``'s arguments."""
    computed = arguments.get("new_computed_blocks")
    groups = computed.blocks if computed is not None else ()
    reserved = int(arguments.get("reserved_blocks") or 0)
    if is_plain(scheduler):
        adopted = [block for group in groups for block in group if not block.is_null]
        whole = -(-request.num_tokens // scheduler.block_size)
        return whole + reserved - len(adopted) + [block.ref_cnt for block in adopted].count(0)
    coordinator: Any = scheduler.kv_cache_manager.coordinator
    local = request.num_computed_tokens + int(arguments.get("num_new_computed_tokens") or 0)
    tokens = min(request.num_tokens, scheduler.max_model_len)
    given = {
        "request_id": request.request_id,
        "num_tokens": tokens,
        "new_computed_blocks": groups or tuple([] for _ in coordinator.single_type_managers),
        "num_encoder_tokens": 0,
        "total_computed_tokens": local + int(arguments.get("num_external_computed_tokens") or 0),
        "num_local_computed_tokens": local,
        "num_tokens_main_model": tokens,
        "apply_admission_cap": True,
    }
    takes = signature(coordinator.get_num_blocks_to_allocate).parameters  # vLLM adds some from version to version
    wanted = coordinator.get_num_blocks_to_allocate(**{name: given[name] for name in takes if name in given})
    return int(wanted) + reserved


def token_bytes(scheduler: Scheduler) -> float:
    """Return how many bytes one token's KV takes on one worker. All groups share the pool, so a block of it has the
    bytes of the group with the largest."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    block = max(group.kv_cache_spec.page_size_bytes * len(group.layer_names) for group in groups)
    return float(block / block_tokens(scheduler))


def pool_blocks(scheduler: Scheduler) -> int:
    return int(scheduler.cache_config.num_gpu_blocks or 1)


class CheckpointGuard:
    """Keeps the windows and states at the end of a prompt while its answer is generated.

    vLLM frees them when the request needs them no longer, soon after its prompt was computed, and may evict them while
    it generates the answer. The next turn then finds nothing, though the request's full attention is still there. The
    guard holds a reference until the request ends or is preempted. It gives the blocks up before a running request is
    preempted. It knows vLLM's scheduler only, and neither policies nor programs.

    Call ``after_step`` after each ``schedule``, ``release`` when a request ends, and ``give_up`` when there is no room.

    Args:
        active: False: nothing is guarded.
    """

    def __init__(self, scheduler: Scheduler, active: bool = True) -> None:
        self._scheduler = scheduler
        coordinator: Any = scheduler.kv_cache_manager.coordinator
        managers = coordinator.single_type_managers if active else ()
        self._groups = [number for number, manager in enumerate(managers) if not keeps_all(manager)]
        self._late = int(getattr(coordinator, "enable_partial_hash_hits", False))
        """Tokens behind the prompt whose KV is computed when its state has a block of its own."""
        self._blocks: dict[str, Blocks] = {}
        """By request id, in the order in which the prompts were computed."""
        self._early: set[str] = set()
        """Requests whose last state may get a block of its own in the next step."""

    @property
    def block_count(self) -> int:
        """Number of references to blocks."""
        return sum(map(len, self._blocks.values()))

    def blocks_of(self, request_id: str) -> int:
        return len(self._blocks.get(request_id, ()))

    def after_step(self, output: SchedulerOutput) -> None:
        """Begin to guard each request whose prompt is computed in this step."""
        for request_id in output.preempted_req_ids or () if self._groups else ():
            self.release(request_id)
        for request_id in output.num_scheduled_tokens if self._groups else ():
            request = self._scheduler.requests.get(request_id)
            if request is None or (request_id in self._blocks and request_id not in self._early):
                continue
            behind = request.num_computed_tokens - request.num_prompt_tokens
            if behind >= 0:
                groups, _ = found(self._scheduler, *_prompt(self._scheduler, request))
                blocks = [block for group in self._groups for block in groups[group]]
                self._scheduler.kv_cache_manager.block_pool.touch(blocks)
                self.release(request_id)
                self._blocks[request_id] = blocks
                if behind < self._late:
                    self._early.add(request_id)

    def release(self, request_id: str) -> bool:
        """Release the request's guarded blocks. Return whether there were any."""
        self._early.discard(request_id)
        blocks = self._blocks.pop(request_id, [])
        self._scheduler.kv_cache_manager.block_pool.free_blocks(reversed(blocks))
        return bool(blocks)

    def release_all(self) -> None:
        for request_id in [*self._blocks]:
            self.release(request_id)

    def give_up(self) -> bool:
        """Release the guarded blocks of the request whose prompt was computed last, if that frees any.

        Returns:
            Whether blocks became free. Blocks that the request itself still needs do not.
        """
        for request_id, blocks in reversed(self._blocks.items()):
            if any(block.ref_cnt == 1 for block in blocks):
                self._blocks[request_id] = []
                self._early.discard(request_id)
                self._scheduler.kv_cache_manager.block_pool.free_blocks(reversed(blocks))
                return True
        return False
