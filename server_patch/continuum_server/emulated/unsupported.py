"""What of vLLM the emulated engine does not do. A server that is asked for it does not start. Needs no vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from continuum_server.emulated.settings import SECTION

OPTIONS = {
    "kv-offloading": "its device moves no KV",
    "kv-transfer-config": "its device moves no KV",
    "ec-transfer-config": "its device moves nothing",
    "enable-lora": "its model has no adapters",
    "lora-modules": "its model has no adapters",
    "speculative-config": "it has no draft model; --speculative DRAFTS:LENGTH models one",
    "spec-": "it has no draft model; --speculative DRAFTS:LENGTH models one",
    "cpu-offload": "its model's weights are in the modelled GPU",
    "offload-": "its model's weights are in the modelled GPU",
    "quantization": "its step times are those of the model's own weights",
}
"""Beginnings of vLLM's options that ask for more than the engine does, and why it does not do it."""
OF_ITS_KV = ("auto", "bfloat16")


def lacking(config: Any) -> str | None:
    """Return what a ``VllmConfig`` asks for that the engine does not do, and why; None: nothing."""
    return next(_lacking(config), None)


def _lacking(config: Any) -> Iterator[str]:
    cache, parallel = config.cache_config, config.parallel_config
    if getattr(cache, "kv_offloading_size", None) is not None:
        yield f"kv_offloading_size: {OPTIONS['kv-offloading']}"
    for name in ("kv_transfer_config", "ec_transfer_config"):
        if getattr(config, name, None) is not None:
            yield f"{name}: {OPTIONS[name.replace('_', '-')]}"
    if getattr(config, "speculative_config", None) is not None and not _models_drafts(config):
        yield f"speculative_config: {OPTIONS['speculative-config']}"
    if config.lora_config is not None:
        yield f"lora_config: {OPTIONS['enable-lora']}"
    if config.model_config.quantization is not None:
        yield f"quantization: {OPTIONS['quantization']}"
    if config.model_config.runner_type != "generate":
        yield f"runner {config.model_config.runner_type}: it only generates text"
    if cache.cache_dtype not in OF_ITS_KV:
        yield f"kv_cache_dtype {cache.cache_dtype}: its KV is {OF_ITS_KV[-1]}"
    if parallel.world_size > 1:
        yield f"a world of {parallel.world_size} devices: it has one, and --tp models several GPUs"


def _models_drafts(config: Any) -> bool:
    settings = getattr(config, "additional_config", None)
    return isinstance(settings, dict) and settings.get(SECTION, {}).get("speculative") is not None
