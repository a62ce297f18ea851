"""Every place where Continuum touches vLLM's private API, and the check that it is still there.

vLLM's scheduler is no public interface: what is used of it is used here only, so that a new version is read once.
Checked against 0.32; docs/decisions/vllm-touch-points.md says what each place relies on.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import KVCacheBlock
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request, RequestStatus

from continuum_server.vllm_plugin.versions import PluginError, UnsupportedVllm, check_version

Blocks = list[KVCacheBlock]
AllocateSlots = Callable[..., Any]


def check_supported() -> str:
    """The version, once everything relied on has been found.

    Raises:
        UnsupportedVllm: a version outside the tested range, or one that lost a name used here.
    """
    found = check_version()
    missing = [
        f"{kind.__name__}.{name}" for kind, names in _METHODS.items() for name in names if not hasattr(kind, name)
    ]
    if "full_sequence_must_fit" not in inspect.signature(KVCacheManager.allocate_slots).parameters:
        missing.append("KVCacheManager.allocate_slots(full_sequence_must_fit=)")
    if missing:
        raise UnsupportedVllm(f"vLLM {found} lacks {', '.join(missing)}, which Continuum relies on")
    return found


_METHODS: dict[type, tuple[str, ...]] = {
    Scheduler: (
        *("schedule", "update_from_output", "add_request", "finish_requests"),
        *("_free_request", "_preempt_request", "reset_prefix_cache"),
    ),
    KVCacheManager: ("allocate_slots", "get_blocks", "cache_blocks"),
    BlockPool: ("touch", "free_blocks", "get_num_free_blocks"),
}
_SET_ASIDE = ("kv_holding_waiting", "skipped_waiting")
"""Where waiting requests are that vLLM keeps outside its queue: since 0.32 or so; before."""


def full_blocks(scheduler: Scheduler, request: Request) -> Blocks:
    """The request's full, hashed blocks: what a hold keeps.

    The tail block that is not full stays out: it has no hash, so no later prompt could find it.
    """
    groups = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
    return [block for group in groups for block in group if block.block_hash is not None and not block.is_null]


def hold_blocks(scheduler: Scheduler, blocks: Blocks) -> None:
    """Take a reference on the blocks, so that freeing their request keeps them."""
    scheduler.kv_cache_manager.block_pool.touch(blocks)


def block_ids(blocks: Iterable[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def block_hashes(request: Request) -> Sequence[Any]:
    """A hash for each full block of the request's context so far; the list grows as the request does."""
    return request.block_hashes


def release_blocks(scheduler: Scheduler, blocks: Blocks) -> None:
    """Give the references back, tail first, so that a prefix outlives its continuation in the LRU order."""
    scheduler.kv_cache_manager.block_pool.free_blocks(reversed(blocks))


def exclusively_held(blocks: Iterable[KVCacheBlock]) -> int:
    """Blocks nobody but their one holder refers to: what releasing them would free."""
    return sum(block.ref_cnt == 1 for block in blocks)


def held_by_these_alone(holds: Sequence[Blocks]) -> int:
    """Blocks that only these holds refer to: what releasing all of them would free."""
    if len(holds) == 1:
        return exclusively_held(holds[0])
    holders = Counter(block.block_id for blocks in holds for block in blocks)
    by_id = {block.block_id: block for blocks in holds for block in blocks}
    return sum(block.ref_cnt == holders[block_id] for block_id, block in by_id.items())


def free_block_count(scheduler: Scheduler) -> int:
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def blocks_wanted(scheduler: Scheduler, request: Request, arguments: dict[str, Any]) -> int:
    """Free blocks a waiting request needs to be admitted whole, given ``allocate_slots``'s arguments."""
    computed = arguments.get("new_computed_blocks")
    adopted = [block for group in computed.blocks for block in group] if computed is not None else []
    whole = -(-request.num_tokens // scheduler.block_size) + int(arguments.get("reserved_blocks") or 0)
    return int(whole - len(adopted) + sum(block.ref_cnt == 0 for block in adopted))


def hash_computed_blocks(scheduler: Scheduler) -> None:
    """Give the running requests' full blocks their hashes now, not when their next step is allocated."""
    for request in scheduler.running:
        scheduler.kv_cache_manager.cache_blocks(request, request.num_computed_tokens)


@contextmanager
def several_steps(scheduler: Scheduler, steps: int) -> Iterator[None]:
    """One call of ``schedule`` in here does the work of so many: decoding requests get that many tokens, and a prompt
    gets what is left of as many steps' tokens. Fewer than two: nothing is changed.
    """
    if steps < 2:
        yield
        return
    for request in scheduler.running:
        if not request.is_prefill_chunk:
            request.spec_token_ids = [0] * (steps - 1)
    config = scheduler.scheduler_config
    before = scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens
    scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens = (steps * limit for limit in before)
    try:
        yield
    finally:
        scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens = before


def wrap_allocate_slots(scheduler: Scheduler, wrap: Callable[[AllocateSlots], AllocateSlots]) -> None:
    """Put ``wrap`` around this scheduler's ``kv_cache_manager.allocate_slots``."""
    manager: Any = scheduler.kv_cache_manager
    manager.allocate_slots = wrap(manager.allocate_slots)


def first_scheduled(output: SchedulerOutput) -> list[tuple[str, int]]:
    """(request id, tokens found in cache) of requests that entered the batch, new or after a preemption."""
    entered = [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    if cached.resumed_req_ids:
        pairs = zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        entered += [(req_id, hit) for req_id, hit in pairs if req_id in cached.resumed_req_ids]
    return entered


def preempted_ids(output: SchedulerOutput) -> Iterable[str]:
    return output.preempted_req_ids or ()


def preempt(scheduler: Scheduler, request: Request, now_s: float) -> None:
    """Take a running request out of the batch; it waits again and its KV is free to go. Between steps only."""
    scheduler.running.remove(request)
    scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
    scheduler._preempt_request(request, now_s)


def blocks_of(scheduler: Scheduler, request: Request) -> Blocks:
    groups = scheduler.kv_cache_manager.get_blocks(request.request_id).blocks
    return [block for group in groups for block in group]


def batch_is_full(scheduler: Scheduler) -> bool:
    return len(scheduler.running) >= scheduler.max_num_running_reqs


def batch_tokens(scheduler: Scheduler) -> int:
    """Context of all running requests together."""
    return sum(request.num_computed_tokens for request in scheduler.running)


def is_preempted(request: Request) -> bool:
    return bool(request.status == RequestStatus.PREEMPTED)


def is_running(request: Request) -> bool:
    return bool(request.status == RequestStatus.RUNNING)


def ended_well(request: Request) -> bool:
    """Stopped by itself or at its length limit: its KV is whole and a next turn may follow."""
    return request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


def is_aborted(request: Request) -> bool:
    """vLLM aborts a request in the engine core when its client left, and also when it reached a stop string."""
    return bool(request.status == RequestStatus.FINISHED_ABORTED)


def stop_strings(request: Request) -> list[str]:
    """The client's stop strings."""
    stop = request.sampling_params.stop if request.sampling_params is not None else None
    return [stop] if isinstance(stop, str) else list(stop or ())


def min_tokens(request: Request) -> int:
    """Tokens of the output in which vLLM looks for no stop string."""
    return request.sampling_params.min_tokens if request.sampling_params is not None else 0


def skips_special_tokens(request: Request) -> bool:
    return request.sampling_params is None or request.sampling_params.skip_special_tokens


def status_word(request: Request) -> str:
    words = {
        RequestStatus.FINISHED_STOPPED: "stop",
        RequestStatus.FINISHED_LENGTH_CAPPED: "length",
        RequestStatus.FINISHED_ABORTED: "abort",
    }
    return words.get(request.status, "error")


def extra_args(request: Request) -> dict[str, Any]:
    """The client's ``vllm_xargs``."""
    sampling = request.sampling_params
    return (sampling.extra_args or {}) if sampling is not None else {}


def prompt_mark(request: Request) -> tuple[int, bytes | None]:
    """Equal for equal prompts: the number of tokens and the hash of the last full block, which covers all before it.

    Prompts that differ only in the tokens after that block, and are as long, are told apart by nothing.
    """
    hashes = block_hashes(request)
    return request.num_prompt_tokens, hashes[-1] if hashes else None


def session_id(request: Request) -> str | None:
    """vLLM's own session id; versions before 0.27 or so have none."""
    return getattr(request, "session_id", None)


def kv_hints(request: Request) -> dict[str, Any] | None:
    """Upstream's hints envelope as a client would send it in JSON; versions before 0.32 or so have none."""
    envelope = getattr(request, "kv_hints", None)
    if envelope is None:
        return None
    return {"actions": [{"action_type": each.action_type, "payload": each.payload} for each in envelope.actions]}


def refuse_what_cannot_work(scheduler: Scheduler) -> None:
    """Fail at start where the configuration leaves nothing to hold."""
    if not scheduler.cache_config.enable_prefix_caching:
        raise PluginError("prefix caching is off: held KV could never be found again; drop --no-enable-prefix-caching")
    if scheduler.scheduler_config.policy == "priority":
        raise PluginError("--scheduling-policy priority: the policy orders the queue; drop one of the two")
    if scheduler.vllm_config.model_config.is_encoder_decoder:
        raise PluginError("encoder-decoder models have no prefix cache to hold")


def add_utility(name: str, function: Callable[[str, str], str]) -> None:
    """Make ``function`` callable from the API server: ``engine_core.call_utility_async(name, a, b)``.

    The engine core looks utilities up on itself by name and runs them between two steps.
    """
    from vllm.v1.engine.core import EngineCore  # noqa: PLC0415 - seconds of imports that a virtual engine spares

    setattr(EngineCore, name, staticmethod(function))


def data_parallel_rank(scheduler: Scheduler) -> int:
    """Which of several engines this is; ``data_parallel_rank`` itself is 0 in each engine of a dense model."""
    parallel = scheduler.vllm_config.parallel_config
    index = getattr(parallel, "data_parallel_index", None)
    return int((parallel.data_parallel_rank if index is None else index) or 0)


def tokenizer_of(vllm_config: Any) -> Any:
    """The model's tokenizer inside the engine core; None where the server runs without one."""
    if vllm_config.model_config.skip_tokenizer_init:
        return None
    from vllm.tokenizers import cached_tokenizer_from_config  # noqa: PLC0415

    return cached_tokenizer_from_config(vllm_config.model_config)


def tool_parser_of(name: str, tokenizer: Any) -> Any:
    """vLLM's tool-call parser of that name."""
    from vllm.tool_parsers import ToolParserManager  # noqa: PLC0415

    return ToolParserManager.get_tool_parser(name)(tokenizer)


def parse_tool_calls(parser: Any, text: str) -> list[Any]:
    """Tool calls that vLLM's parser finds in a whole output."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415

    request = ChatCompletionRequest.model_validate({"model": "", "messages": []})
    return list(parser.extract_tool_calls(text, request).tool_calls)


def loads_in_flight(scheduler: Scheduler) -> bool:
    """Whether a waiting request's KV is on its way from a lower tier: the engine stands still for a while only."""
    waiting: Iterable[Request] = chain(*(getattr(scheduler, name, ()) for name in _SET_ASIDE))
    received = scheduler.finished_recving_kv_req_ids
    return any(
        request.status == RequestStatus.WAITING_FOR_REMOTE_KVS and request.request_id not in received
        for request in waiting
    )


def loads_begun(output: SchedulerOutput) -> list[tuple[str, int]]:
    """(request id, blocks) of loads from lower tiers that this step asks vLLM's offloading connector for."""
    jobs: dict[int, Any] = getattr(output.kv_connector_metadata, "load_jobs", None) or {}
    return [(job.req_id, len(job.dst_spec.block_ids)) for job in jobs.values()]


def block_bytes(scheduler: Scheduler) -> int:
    """Bytes of one KV block, all workers together."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    size = sum(group.kv_cache_spec.page_size_bytes * len(group.layer_names) for group in groups)
    return int(size * scheduler.vllm_config.parallel_config.world_size)


def stored_chunks(scheduler: Scheduler, request: Request) -> tuple[int, int, int] | None:
    """What vLLM's offloading connector holds of the request's leading full chunks, being written or whole.

    Chunks in any tier, chunks in DRAM, tokens of a chunk; None without that connector. Tiers drop tails first, so both
    are searched for their end instead of counted. No lookup of the tiers' manager itself: that would begin promotions.
    """
    side = getattr(scheduler.connector, "connector_scheduler", None)
    manager = getattr(side, "manager", None)
    if side is None or manager is None:
        return None
    from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key  # noqa: PLC0415 - as above

    config = side.config.kv_group_configs[0]
    hashes = request.block_hashes[config.hashes_per_chunk - 1 :: config.hashes_per_chunk]
    keys = [make_offload_key(block_hash, config.group_idx) for block_hash in hashes]
    dram, below = getattr(manager, "primary_tier", manager), getattr(manager, "secondary_tiers", ())
    context = ReqContext("")

    def missing(tiers: Sequence[Any]) -> Callable[[Any], bool]:
        return lambda key: all(tier.lookup(key, context) is LookupResult.MISS for tier in tiers)

    in_dram = bisect_left(keys, True, key=missing([dram]))
    in_any = bisect_left(keys, True, key=missing([dram, *below])) if below else in_dram
    return max(in_any, in_dram), in_dram, config.tokens_per_chunk


def has_set_aside(scheduler: Scheduler) -> bool:
    """Whether vLLM keeps requests outside its waiting queue (for KV on its way, a grammar, a LoRA)."""
    return any(bool(getattr(scheduler, name, None)) for name in _SET_ASIDE)
