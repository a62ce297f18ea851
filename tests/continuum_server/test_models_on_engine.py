"""Every kind of model in vLLM's own scheduler and in the emulated engine's folder: its KV has the right bytes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from continuum_server.local_model import config_of
from continuum_server.step_times.catalog import find_model, kv_capacity
from continuum_server.step_times.specs import MODELS
from continuum_server.virtual.config import EngineConfig, shape_of
from continuum_server.virtual.vllm_setup import _vllm_config, build_scheduler
from continuum_server.vllm_plugin.kv_groups import blocks_wanted
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from transformers import LlamaConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager


@pytest.mark.parametrize(
    ("model", "degree"),
    [("zai-org/GLM-4.5-Air-FP8", 4), ("deepseek-v3.1", 8), ("gpt-oss-20b+fp8-kv", 1), ("qwen3-30b-a3b", 8)],
)
def test_the_scheduler_keeps_the_blocks_that_fit(model: str, degree: int) -> None:
    shape = shape_of(EngineConfig(gpu="h200", model=model, tp=degree))
    capacity = kv_capacity("h200", model, degree)
    scheduler = build_scheduler(shape, Settings(policy="vllm"), Scheduler)
    assert scheduler.kv_cache_manager.block_pool.num_gpu_blocks == capacity.num_blocks
    assert shape.kv_token_bytes == capacity.bytes_per_token
    for group in scheduler.kv_cache_config.kv_cache_groups:
        assert len(group.layer_names) * group.kv_cache_spec.page_size_bytes == capacity.bytes_per_block


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_emulated_engines_folder_is_a_llama_that_transformers_accepts(model, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text(json.dumps(config_of(find_model(model.name))), encoding="utf-8")
    assert LlamaConfig.from_pretrained(tmp_path).num_hidden_layers == model.layers


def test_hashes_and_pool_of_a_model_with_two_kv_cache_groups() -> None:
    """Full attention in blocks of 16 tokens, and windows in blocks of 32: vLLM hashes every 16 tokens."""
    shape = shape_of(EngineConfig(kv_blocks=10_000, max_model_len=32_000))
    config = copy.deepcopy(_vllm_config(shape))
    config.additional_config = Settings(policy="working-set").to_config()
    heads: Any = {"num_kv_heads": 8, "dtype": torch.bfloat16}
    full = FullAttentionSpec(block_size=16, head_size=512, **heads)
    window = SlidingWindowSpec(block_size=32, head_size=256, sliding_window=1024, **heads)
    groups = [KVCacheGroupSpec(["full"], full), KVCacheGroupSpec(["window"], window)]
    kv = KVCacheConfig(num_blocks=10_000, kv_cache_tensors=[], kv_cache_groups=groups)
    size, hash_size = resolve_kv_cache_block_sizes(kv, config)
    scheduler: Any = ProgramScheduler(config, kv, StructuredOutputManager(config), size, hash_size)
    assert (scheduler.block_size, scheduler.table.policy.machine.block_size) == (32, 16)
    tokens = scheduler.table.policy.machine.kv_tokens
    assert 145_000 < tokens < 160_000, "a context takes a block for each 16 tokens, and some for its window"
    assert scheduler.table.block_tokens == tokens / 10_000
    assert scheduler.table.policy.machine.room(16_000) / scheduler.table.block_tokens == 1_000 + 33
    request = Request("r", [1] * 16_000, SamplingParams(max_tokens=1), None)
    assert 1_000 < blocks_wanted(scheduler, request, {}) < 1_100
