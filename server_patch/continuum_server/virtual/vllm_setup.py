"""Build vLLM's scheduler without a model, a GPU or a worker."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.structured_output import StructuredOutputManager

from continuum_server.kv_specs import layer_specs, state_mode
from continuum_server.local_model import config_of
from continuum_server.virtual.block_pool import shorten_loops
from continuum_server.virtual.config import EngineShape
from continuum_server.vllm_plugin.plugin_settings import Settings

try:
    from vllm.v1.core.kv_cache_planning import get_kv_cache_groups  # type: ignore[import-not-found]  # since 0.33
except ImportError:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups


def build_scheduler(shape: EngineShape, settings: Settings, scheduler_type: type[Scheduler]) -> Scheduler:
    """Build a scheduler as vLLM's engine core does, for synchronous scheduling."""
    vllm_config = copy.deepcopy(_vllm_config(shape))  # vLLM changes it
    vllm_config.additional_config = settings.to_config()
    groups = get_kv_cache_groups(vllm_config, specs_of(shape))
    of_worker = KVCacheConfig(num_blocks=shape.num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    kv_config = generate_scheduler_kv_cache_config([of_worker])
    retention = getattr(vllm_config.cache_config, "prefix_cache_retention_interval", None)
    if retention is not None:  # since about 0.30 vLLM keeps only the states and windows at a prompt's end
        kv_config.prefix_cache_retention_interval = retention
    sizes: dict[str, Any] = {"block_size": shape.layout.block_size}
    if len(groups) > 1:
        sizes["block_size"], sizes["hash_block_size"] = resolve_kv_cache_block_sizes(kv_config, vllm_config)
    scheduler = scheduler_type(
        vllm_config=vllm_config,
        kv_cache_config=kv_config,
        structured_output_manager=StructuredOutputManager(vllm_config),
        log_stats=False,
        **sizes,
    )
    shorten_loops(scheduler)
    return scheduler


def specs_of(shape: EngineShape) -> dict[str, KVCacheSpec]:
    """Return vLLM's description of each layer's KV, on all GPUs together."""
    return layer_specs(shape.model, shape.layout, shape.kv_copies, shape.max_model_len, shape.prefix_caching)


@lru_cache(maxsize=64)
def _vllm_config(shape: EngineShape) -> VllmConfig:
    """Create vLLM's configuration. It is cached, because creating it takes forty times as long as copying it."""
    with tempfile.TemporaryDirectory(prefix="continuum-model-") as folder:
        config = config_of(replace(shape.model, max_context_tokens=shape.max_model_len))
        config["tie_word_embeddings"] = False  # or vLLM looks for the output layer in the weights
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        model = ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=shape.max_model_len)
    cache = CacheConfig(block_size=shape.layout.block_size, enable_prefix_caching=shape.prefix_caching)
    cache.mamba_cache_mode = state_mode(shape.model, shape.prefix_caching)
    cache.num_gpu_blocks = shape.num_blocks
    if hasattr(cache, "get_resolved_kv_cache_layout"):  # since about 0.31; the groups are the same in every layout
        cache.kv_cache_layout = "LBNHC"
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
