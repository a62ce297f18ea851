"""All uses of vLLM's private API.

vLLM's scheduler is not a public interface. Its internals are used only in this file, so that only this file must be
compared with a new version of vLLM. It was checked against 0.32. The plugin relies on behaviour that signatures do not
show:

- ``self.waiting`` may be replaced after ``__init__``, and the scheduler stops at the first request that does not fit.
- ``add_request``, ``schedule`` and ``_free_request`` are called once per event. In ``_free_request`` the request still
  has its blocks; ``block_pool.touch`` holds them.
- ``kv_cache_manager.allocate_slots`` returns None if the request does not fit, and may be called again.
- A method set on ``EngineCore`` answers ``engine_core.call_utility_async(name, ...)`` between two steps.
  ``engine_client.generate`` takes ``data_parallel_rank`` on every route.
- A request model with ``vllm_xargs``, ``sampling_params``, ``temperature`` or ``max_tokens`` can carry tags
  (``tests/continuum_server/test_routes.py`` fails on a new POST route).
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from continuum_server.vllm_plugin.versions import PluginError

Blocks = list[KVCacheBlock]
AllocateSlots = Callable[..., Any]


SET_ASIDE = ("kv_holding_waiting", "skipped_waiting")
"""The attribute with requests that vLLM keeps outside its waiting queue: its name since about 0.32, and before."""


def hold_blocks(scheduler: Scheduler, blocks: Blocks) -> None:
    """Add a reference to each block, so that the blocks are kept when their request is freed."""
    scheduler.kv_cache_manager.block_pool.touch(blocks)


def block_ids(blocks: Iterable[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def block_hashes(request: Request) -> Sequence[Any]:
    """Return a hash for every ``hash_block_size`` tokens of the request's context. vLLM extends this list."""
    return request.block_hashes


def hash_block_size(scheduler: Scheduler) -> int:
    """Return the number of tokens per hash: the largest that divides the block sizes of all KV cache groups.

    Older versions have no such attribute and hash blocks of ``block_size``.
    """
    return int(getattr(scheduler, "hash_block_size", scheduler.block_size))


def release_blocks(scheduler: Scheduler, blocks: Blocks) -> None:
    """Remove a reference from each block, from the last block on, so that vLLM evicts a prefix after the rest."""
    scheduler.kv_cache_manager.block_pool.free_blocks(reversed(blocks))


def exclusively_held(blocks: Iterable[KVCacheBlock]) -> int:
    """Return the number of blocks with a single reference, which become free when it is removed."""
    return [block.ref_cnt for block in blocks].count(1)


def holds_that_free(holds: Sequence[Blocks], missing: int) -> int:
    """Return how many of the first holds must be released to free ``missing`` blocks; 0: all of them free fewer.

    A block is free when its last reference is removed. Only blocks with several references are counted one by one.
    """
    if sum(map(len, holds)) < missing:
        return 0
    gain, holders = 0, Counter[int]()
    for number, blocks in enumerate(holds, 1):
        alone = exclusively_held(blocks)
        gain += alone
        for block in blocks if alone < len(blocks) else ():
            if block.ref_cnt > 1:
                holders[block.block_id] += 1
                gain += holders[block.block_id] == block.ref_cnt
        if gain >= missing:
            return number
    return 0


def free_block_count(scheduler: Scheduler) -> int:
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def wrap_allocate_slots(scheduler: Scheduler, wrap: Callable[[AllocateSlots], AllocateSlots]) -> None:
    """Replace this scheduler's ``kv_cache_manager.allocate_slots`` by ``wrap`` of it."""
    manager: Any = scheduler.kv_cache_manager
    manager.allocate_slots = wrap(manager.allocate_slots)


def first_scheduled(output: SchedulerOutput) -> list[tuple[str, int]]:
    """Return (request id, tokens hit in the cache) of requests that entered the batch, new or after a preemption."""
    entered = [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    if cached.resumed_req_ids:
        pairs = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        entered += [(req_id, hit) for req_id, hit in pairs if req_id in cached.resumed_req_ids]
    return entered


def preempted_ids(output: SchedulerOutput) -> Iterable[str]:
    return output.preempted_req_ids or ()


def preempt(scheduler: Scheduler, request: Request, now_s: float) -> None:
    """Preempt a running request. It waits again, and its KV may be evicted. Call this only between two steps."""
    # only vLLM's first model runner has it: the runner must get a request anew that runs again in the next step
    getattr(scheduler, "prev_step_scheduled_req_ids", set()).discard(request.request_id)
    options: dict[str, Any] = {}
    if "drop_stale_output" in inspect.signature(scheduler._preempt_request).parameters:
        options["drop_stale_output"] = getattr(scheduler, "requires_kv_delivery", False)  # as vLLM's own preemptions
    scheduler.running.remove(request)
    scheduler._preempt_request(request, now_s, **options)


def blocks_of(scheduler: Scheduler, request: Request) -> Blocks:
    groups = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
    return [block for group in groups for block in group]


def batch_is_full(scheduler: Scheduler) -> bool:
    """Whether vLLM admits no further request: paused streaming sessions count as running."""
    most = getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs)  # since about 0.32
    return len(scheduler.running) + getattr(scheduler, "num_waiting_for_streaming_input", 0) >= most


def batch_tokens(scheduler: Scheduler) -> int:
    """Return the sum of the contexts of all running requests, in tokens."""
    return sum(request.num_computed_tokens for request in scheduler.running)


def decodes(request: Request) -> bool:
    """Whether the KV of all of a running request's tokens but the newest is computed, so that its next step decodes."""
    return bool(request.num_computed_tokens >= request.num_tokens - 1)


def decode_tokens(scheduler: Scheduler) -> int:
    """Return the most tokens that the running requests decode in a step."""
    return sum(map(decodes, scheduler.running)) * (1 + int(scheduler.num_spec_tokens))


def cuts_prompts(scheduler: Scheduler) -> bool:
    """Whether a prompt may be computed in parts of any size."""
    config = scheduler.scheduler_config
    whole_images = getattr(config, "disable_chunked_mm_input", False)
    aligned = getattr(scheduler, "need_mamba_block_aligned_split", False)
    return bool(config.enable_chunked_prefill and not (whole_images or aligned))


@contextmanager
def tokens_of_step(scheduler: Scheduler, tokens: int) -> Iterator[None]:
    """Let ``schedule`` schedule at most so many tokens."""
    usual, scheduler.max_num_scheduled_tokens = scheduler.max_num_scheduled_tokens, tokens
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens = usual


def is_running(request: Request) -> bool:
    return bool(request.status == RequestStatus.RUNNING)


def ended_well(request: Request) -> bool:
    """Whether the request stopped by itself or at its length limit. Its KV is then complete, and a turn may follow."""
    return request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


def is_aborted(request: Request) -> bool:
    """Whether vLLM aborted the request, because its client disconnected or its output reached a stop string."""
    return bool(request.status == RequestStatus.FINISHED_ABORTED)


def sampling(request: Request) -> SamplingParams:
    """Return the request's sampling parameters, which are vLLM's defaults for requests that do not sample."""
    return request.sampling_params or SamplingParams()


def pools(request: Request) -> bool:
    """Whether the request asks for embeddings, scores or classes of its prompt, and not for an answer."""
    return request.pooling_params is not None


_STATUS_WORDS = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
}


def status_word(request: Request) -> str:
    return _STATUS_WORDS.get(request.status, "error")


def prompt_mark(request: Request) -> tuple[int, bytes | None]:
    """Return the number of prompt tokens, and the last full block's hash, which covers all earlier blocks.

    The result is equal for equal prompts, and for prompts of equal length that differ only after that block.
    """
    hashes = block_hashes(request)
    return request.num_prompt_tokens, hashes[-1] if hashes else None


def session_id(request: Request) -> str | None:
    """Return vLLM's own session id of the request. vLLM has session ids since about 0.27."""
    return getattr(request, "session_id", None)


def refuse_what_cannot_work(scheduler: Scheduler, policy: str) -> None:
    """Refuse a configuration with which KV cannot be held. Policy ``vllm`` holds no KV.

    Raises:
        PluginError: prefix caching is off, KV lies in two pools, or the model is an encoder-decoder model.
    """
    if not scheduler.cache_config.enable_prefix_caching and policy != "vllm":
        raise PluginError(f"prefix caching is off{_why_off(scheduler)}: held KV could never be found again")
    pool, managers = scheduler.kv_cache_manager.block_pool, scheduler.kv_cache_manager.coordinator.single_type_managers
    if any(manager.block_pool is not pool for manager in managers):
        raise PluginError("a part of this model's KV is in a second pool (HiSparse), where it cannot be held")
    if scheduler.vllm_config.model_config.is_encoder_decoder:
        raise PluginError("encoder-decoder models have no prefix cache to hold")


def least_priority(scheduler: Scheduler) -> int:
    """Return the most urgent ``priority`` that requests may have: 0, unless vLLM is told to order by priority."""
    return -(2**63) if scheduler.policy is SchedulingPolicy.PRIORITY else 0


def preempt_the_last(scheduler: Scheduler) -> None:
    """Let vLLM preempt the last of its running requests, and not that with the largest ``priority``."""
    scheduler.policy = SchedulingPolicy.FCFS


def _why_off(scheduler: Scheduler) -> str:
    """Say who switched prefix caching off."""
    if getattr(scheduler.vllm_config.model_config, "use_mla", False) and current_platform.is_cpu():
        return " (vLLM does that for models with MLA on most CPUs; --policy vllm serves them)"
    if getattr(scheduler, "has_mamba_layers", False):
        return " (vLLM's default for some models with Mamba layers; --enable-prefix-caching asks for it)"
    return " (drop --no-enable-prefix-caching)"


def add_utility(name: str, function: Callable[[str, str], str]) -> None:
    """Let the API server call ``function``: ``engine_core.call_utility_async(name, a, b)``.

    The engine core finds utilities among its own methods by name, and runs them between two steps.
    """
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 - takes seconds; the virtual engine needs none of it

    setattr(EngineCore, name, staticmethod(function))


def data_parallel_rank(scheduler: Scheduler) -> int:
    """Return this engine's number. With dense models ``data_parallel_rank`` is always 0, so the index is used."""
    parallel = scheduler.vllm_config.parallel_config
    index = getattr(parallel, "data_parallel_index", None)
    return int((parallel.data_parallel_rank if index is None else index) or 0)


def tokenizer_of(vllm_config: Any) -> Any:
    """Return the model's tokenizer; None: the server runs without a tokenizer."""
    if vllm_config.model_config.skip_tokenizer_init:
        return None
    from vllm.tokenizers import cached_tokenizer_from_config  # noqa: PLC0415

    return cached_tokenizer_from_config(vllm_config.model_config)


def tool_parser_of(name: str, tokenizer: Any) -> Any:
    """Return vLLM's tool-call parser of that name."""
    from vllm.tool_parsers import ToolParserManager  # noqa: PLC0415

    return ToolParserManager.get_tool_parser(name)(tokenizer)


def parse_tool_calls(parser: Any, text: str) -> list[Any]:
    """Return the tool calls in a complete output, according to vLLM's parser."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415

    request = ChatCompletionRequest.model_validate({"model": "", "messages": []})
    log = logging.getLogger(type(parser).__module__)
    before, log.disabled = log.disabled, True  # parsers log a traceback for each call that was cut off
    try:
        return list(parser.extract_tool_calls(text, request).tool_calls)
    finally:
        log.disabled = before


def loads_in_flight(scheduler: Scheduler) -> bool:
    """Whether the KV of a waiting request is being loaded from a tier. An idle engine then continues by itself."""
    waiting: Iterable[Request] = chain(*(getattr(scheduler, name, ()) for name in SET_ASIDE))
    received = scheduler.finished_recving_kv_req_ids
    return any(
        request.status == RequestStatus.WAITING_FOR_REMOTE_KVS and request.request_id not in received
        for request in waiting
    )


def watch_connector(
    scheduler: Scheduler,
    allocated: Callable[[str, int], None],
    reported: Callable[[KVConnectorOutput], None],
) -> None:
    """Follow the loads of vLLM's connector, of any kind, through two methods of its public interface.

    Args:
        allocated: called with a request's id and the number of tokens that will be loaded for it, while vLLM schedules.
        reported: called with the workers' report of each step.
    """
    connector: Any = scheduler.connector
    if connector is None:
        return
    update_state, update_output = connector.update_state_after_alloc, connector.update_connector_output

    def update_state_after_alloc(request: Request, blocks: Any, num_external_tokens: int) -> None:
        update_state(request, blocks, num_external_tokens)
        if num_external_tokens > 0:
            allocated(request.request_id, num_external_tokens)

    def update_connector_output(connector_output: KVConnectorOutput) -> None:
        reported(connector_output)
        update_output(connector_output)

    connector.update_state_after_alloc = update_state_after_alloc
    connector.update_connector_output = update_connector_output


def loaded(output: KVConnectorOutput) -> tuple[int, float]:
    """Return the bytes that vLLM's offloading connector has loaded, and the seconds of their copies, added up over all
    workers; 0, 0: none, or an older vLLM's connector does not say it."""
    stats = getattr(getattr(output, "kv_connector_worker_meta", None), "transfer_stats", None)
    return (0, 0.0) if stats is None else (stats.load.bytes, stats.load.time)


def workers(scheduler: Scheduler) -> int:
    return int(scheduler.vllm_config.parallel_config.world_size)


def offloads(scheduler: Scheduler) -> bool:
    """Whether the connector is vLLM's offloading connector, and can be asked."""
    return _offloading(scheduler) is not None


def _offloading(scheduler: Scheduler) -> Any:
    """Return the scheduler's side of vLLM's offloading connector; None: there is none, or an older vLLM's."""
    side = getattr(scheduler.connector, "connector_scheduler", None)
    has_tiers = importlib.util.find_spec("vllm.v1.kv_offload.base") is not None and hasattr(side, "config")
    return side if has_tiers and getattr(side, "manager", None) is not None else None


def stored_tokens(scheduler: Scheduler, request: Request) -> tuple[int, int] | None:
    """Return how many of the request's first tokens could be loaded by vLLM's offloading connector now.

    The result is (tokens in any tier, tokens in DRAM), with chunks that are being written; None without that connector.
    The tiers are asked and not their manager, because the manager's lookup would start to move chunks to DRAM.
    """
    side = _offloading(scheduler)
    if side is None:
        return None
    from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key  # noqa: PLC0415 - as above

    dram = getattr(side.manager, "primary_tier", side.manager)
    below = getattr(side.manager, "secondary_tiers", ())
    context = ReqContext("")

    def end(tiers: Sequence[Any]) -> int:
        def missing(key: Any) -> bool:
            return all(tier.lookup(key, context) is LookupResult.MISS for tier in tiers)

        return loadable(groups, missing)

    groups = []
    for config in side.config.kv_group_configs:
        hashes = request.block_hashes[config.hashes_per_chunk - 1 :: config.hashes_per_chunk]
        keys = [make_offload_key(block_hash, config.group_idx) for block_hash in hashes]
        groups.append(Chunks(keys, config.tokens_per_chunk, getattr(config, "sliding_window_size_in_chunks", None)))
    in_dram = end([dram])
    return max(end([dram, *below]) if below else in_dram, in_dram), in_dram


class Chunks(NamedTuple):
    """A context's chunks in one KV cache group."""

    keys: Sequence[Any]
    tokens: int
    """Tokens of a chunk."""
    window: int | None
    """How many chunks before the position at which a request goes on it needs; None: all."""


def loadable(groups: Sequence[Chunks], missing: Callable[[Any], bool]) -> int:
    """Return the length of the longest prefix, in tokens, of which each group has the chunks that it needs.

    Tiers evict the last chunks first, so bisection finds the end of those that a group of full attention has.
    """
    whole = [group for group in groups if group.window is None]
    ends = [bisect_left(group.keys, True, key=missing) * group.tokens for group in whole]
    end = min(ends or [max(len(group.keys) * group.tokens for group in groups)])
    before = -1
    while end != before:
        before = end
        for group in groups:
            if group.window is not None:
                end = min(end, _end_of_window(group, end, missing))
    return end


def _end_of_window(group: Chunks, most_tokens: int, missing: Callable[[Any], bool]) -> int:
    """Return the last position, in tokens, before which all chunks of a window are there."""
    run = 0
    for index in reversed(range(min(most_tokens // group.tokens, len(group.keys)))):
        run = 0 if missing(group.keys[index]) else run + 1
        if run == group.window:
            return (index + run) * group.tokens
    return run * group.tokens  # no whole window is there, only the first ``run`` chunks of the context
