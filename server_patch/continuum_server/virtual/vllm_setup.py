"""Build vLLM's scheduler without a model, a GPU or a worker."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

from continuum_server.local_model import config_of
from continuum_server.virtual.block_pool import shorten_loops
from continuum_server.virtual.config import EngineShape
from continuum_server.vllm_plugin.plugin_settings import Settings


def build_scheduler(shape: EngineShape, settings: Settings, scheduler_type: type[Scheduler]) -> Scheduler:
    """Build a scheduler as vLLM's engine core does, for synchronous scheduling."""
    model = shape.model
    vllm_config = copy.deepcopy(_vllm_config(shape))  # vLLM changes it
    vllm_config.additional_config = settings.to_config()
    spec = FullAttentionSpec(
        block_size=shape.block_size,
        num_kv_heads=model.kv_heads,
        head_size=model.bf16_head_dim * shape.kv_copies,
        dtype=torch.bfloat16,
    )
    kv_config = KVCacheConfig(
        num_blocks=shape.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec([f"layer.{n}" for n in range(model.layers - model.window_layers)], spec)],
    )
    scheduler = scheduler_type(
        vllm_config=vllm_config,
        kv_cache_config=kv_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=shape.block_size,
        log_stats=False,
    )
    shorten_loops(scheduler)
    return scheduler


@lru_cache(maxsize=64)
def _vllm_config(shape: EngineShape) -> VllmConfig:
    """Create vLLM's configuration. It is cached, because creating it takes forty times as long as copying it."""
    with tempfile.TemporaryDirectory(prefix="continuum-model-") as folder:
        config = config_of(replace(shape.model, max_context_tokens=shape.max_model_len))
        config["tie_word_embeddings"] = False  # or vLLM looks for the output layer in the weights
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=shape.max_model_len)
    cache = CacheConfig(block_size=shape.block_size, enable_prefix_caching=shape.prefix_caching)
    cache.num_gpu_blocks = shape.num_blocks
    scheduler = SchedulerConfig(
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_model_len=shape.max_model_len,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    transfers = None
    if shape.offload is not None:
        from continuum_server.virtual.vllm_offload import transfer_config  # noqa: PLC0415 - older vLLM lacks parts of it

        transfers = transfer_config(shape.offload, shape.gpus)
    return VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=scheduler,
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=transfers,
    )
