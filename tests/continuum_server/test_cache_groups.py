"""Models with several KV cache groups: our groups and pools are vLLM's own, and skipping steps changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from continuum_server.step_times.cache_groups import layout_of
from continuum_server.step_times.catalog import find_gpu, find_model, kv_capacity
from continuum_server.virtual.config import EngineConfig, EngineShape, shape_of
from continuum_server.virtual.offload import Offload
from continuum_server.virtual.vllm_setup import _vllm_config, build_scheduler, specs_of
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_traces.playing.conversation import Job
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import ANY_TIERS, BITING, GROUPED, PlainTimes, build, each_policy, play, program, workloads
from test_block_pool import blocks_of
from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

SERVED = [
    ("gpt-oss-20b", "h100", 1),
    ("gpt-oss-120b", "h100", 2),
    ("gemma-3-12b", "h100", 1),
    ("gemma-3-12b+fp8-kv", "a100", 1),
    ("qwen3.6-35b-a3b-fp8", "h100", 1),
    ("qwen3.6-35b-a3b", "h200", 4),
    ("qwen3-next-80b-a3b", "h200", 4),
    ("deepseek-v3.2", "h200", 8),
    ("llama-3.1-8b", "h100", 1),
]
KINDS = {"full": FullAttentionSpec, "window": SlidingWindowSpec, "state": MambaSpec}


@pytest.mark.parametrize(("model", "gpu", "degree"), SERVED)
def test_groups_and_pool_are_those_that_vllm_makes_of_the_layers(model: str, gpu: str, degree: int) -> None:
    """vLLM gets the layers and the bytes that are left for KV, and answers with groups and a number of blocks."""
    shape, capacity = shape_of(EngineConfig(gpu=gpu, model=model, tp=degree)), kv_capacity(gpu, model, degree)
    config = _vllm_config(shape)
    groups = get_kv_cache_groups(config, specs_of(shape))
    assert sorted(shape.layout.kinds) == sorted(
        next(kind for kind, spec in KINDS.items() if _is(group.kv_cache_spec, spec)) for group in groups
    )
    usable = find_gpu(gpu).memory_gib * 1024**3 * 0.9 - 2.5 * 1024**3
    room = int(usable * degree - find_model(model).weight_bytes)
    assert get_kv_cache_config_from_groups(config, groups, room).num_blocks == capacity.num_blocks
    scheduler = build_scheduler(shape, Settings(policy="vllm"), Scheduler)
    assert scheduler.kv_cache_manager.block_pool.num_gpu_blocks == capacity.num_blocks
    assert scheduler.block_size == scheduler.cache_config.block_size == shape.layout.block_size == capacity.block_size


def _is(spec: Any, kind: type) -> bool:
    return any(isinstance(one, kind) for one in getattr(spec, "kv_cache_specs", {"": spec}).values())


@pytest.mark.parametrize(
    ("model", "degree", "size"),
    [
        ("qwen3.6-35b-a3b", 1, 1056),
        ("qwen3.6-35b-a3b", 4, 528),
        ("qwen3-next-80b-a3b", 1, 544),
        ("qwen3.6-27b", 1, 784),
    ],
)
def test_a_block_of_attention_is_as_large_as_a_state(model: str, degree: int, size: int) -> None:
    """Qwen3.6-35B-A3B: 32 x 128 x 128 x 4 + 8,192 x 3 x 2 bytes of state, 2,048 bytes of KV a token: 1,048 tokens, up
    to the next 16. On four GPUs each has a quarter of the state, and a copy of one of the two KV heads."""
    assert layout_of(find_model(model), degree).block_size == size


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 39, 40, 41, 300])
def test_a_running_requests_blocks_are_counted(name: str, tokens: int) -> None:
    """A prompt in chunks, then an answer: never more blocks than the layout says, and at some step as many."""
    model, blocks = GROUPED[name]
    scheduler, loop = build([Job(program("a", 1, tokens, 80), 0.0)], "vllm", {}, model=model, blocks=blocks)
    layout, taken = EngineShape(model, 4096, blocks, 16, 8, 256).layout, []
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks
    at_first = free()
    for chunk in iter(loop.step, False):
        assert chunk
        taken.append(at_first - free())
    assert max(taken) <= layout.blocks(tokens + 80, 256)


def roomy(offload: Offload | None) -> Offload | None:
    """The same tiers, with four times the DRAM if there is an SSD. Before a request starts, vLLM copies what each group
    needs from the SSD to the DRAM. If that does not fit, the groups' copies evict each other, and the request waits
    without end under every policy: with room for 7 chunks, but not for 11."""
    if offload is None or offload.ssd is None:
        return offload
    return replace(offload, dram=replace(offload.dram, gb=4 * offload.dram.gb))


@pytest.mark.parametrize("name", GROUPED)
@each_policy()
@given(
    jobs=workloads(wishes=True),
    offload=ANY_TIERS.map(roomy),
    more=st.integers(0, 60),
    chunk_tokens=st.sampled_from([33, 64, 256]),
    seats=st.sampled_from([2, 3, 8]),
    biting=st.booleans(),
)
@settings(max_examples=settings.default.max_examples // 5)
def test_skipping_steps_changes_nothing(
    name: str, policy: str, jobs: list[Job], offload: Any, more: int, chunk_tokens: int, seats: int, biting: bool
) -> None:
    """Events, turns and times are equal, and so are the free blocks in the order of eviction with their hashes."""
    model, blocks = GROUPED[name]
    ends = []
    for most in (1, 512):
        turns: list[Any] = []
        events: list[Any] = []
        scheduler, loop = build(
            jobs,
            policy,
            BITING[policy] if biting else {},
            turns=turns,
            events=events,
            model=model,
            offload=offload,
            blocks=blocks + more,
            chunk_tokens=chunk_tokens,
            max_num_seqs=seats,
            max_stretch=most,
            token_times=True,
        )
        loop.run()
        pool = blocks_of(scheduler.kv_cache_manager.block_pool)
        ends.append((turns, events, loop.loop.counters.engine_steps, pool))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", GROUPED)
def test_steps_are_skipped(name: str) -> None:
    model, blocks = GROUPED[name]
    jobs = [Job(program(f"p{number}", 1, 50, 300), 0.0) for number in range(3)]
    played = play(jobs, model=model, blocks=2 * blocks, times=PlainTimes())
    assert played.loop.counters.engine_steps > 20 * played.loop.counters.scheduler_calls
