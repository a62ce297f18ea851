"""Every kind of model in vLLM's own scheduler and in the emulated engine's folder: its KV has the right bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from continuum_server.local_model import config_of
from continuum_server.step_times.catalog import find_model, kv_capacity
from continuum_server.step_times.specs import MODELS
from continuum_server.virtual.config import EngineConfig, shape_of
from continuum_server.virtual.vllm_setup import build_scheduler
from continuum_server.vllm_plugin.settings import Settings
from transformers import LlamaConfig
from vllm.v1.core.sched.scheduler import Scheduler


@pytest.mark.parametrize(
    ("model", "degree"),
    [("zai-org/GLM-4.5-Air-FP8", 4), ("deepseek-v3.1", 8), ("gpt-oss-20b+fp8-kv", 1), ("qwen3-30b-a3b", 8)],
)
def test_the_scheduler_keeps_the_blocks_that_fit(model: str, degree: int) -> None:
    shape = shape_of(EngineConfig(gpu="h200", model=model, tensor_parallel=degree))
    capacity = kv_capacity("h200", model, degree)
    scheduler = build_scheduler(shape, Settings(policy="vllm"), Scheduler)
    assert scheduler.kv_cache_manager.block_pool.num_gpu_blocks == capacity.num_blocks
    assert shape.kv_token_bytes == capacity.bytes_per_token
    (group,) = scheduler.kv_cache_config.kv_cache_groups
    assert len(group.layer_names) * group.kv_cache_spec.page_size_bytes == 16 * capacity.bytes_per_token


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_emulated_engines_folder_is_a_llama_that_transformers_accepts(model, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text(json.dumps(config_of(find_model(model.name))), encoding="utf-8")
    assert LlamaConfig.from_pretrained(tmp_path).num_hidden_layers == model.layers
