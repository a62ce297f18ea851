"""vLLM's description of a model's KV, which the virtual and the emulated engine have in common: no layer exists."""

from __future__ import annotations

from typing import Any, Literal

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec

from continuum_server.step_times.cache_groups import STATES_HELD, CacheLayout
from continuum_server.step_times.specs import DeltaNet, Model


def layer_specs(
    model: Model, layout: CacheLayout, kv_copies: int, longest: int, prefix_caching: bool = True
) -> dict[str, KVCacheSpec]:
    """Return vLLM's description of each layer's KV, on all GPUs together.

    Args:
        model: the modelled model.
        layout: its KV cache groups, from ``layout_of``.
        kv_copies: number of GPUs that store the same KV.
        longest: largest number of tokens of a request.
        prefix_caching: whether vLLM reuses KV.
    """
    attention: dict[str, Any] = {"block_size": layout.block_size, "dtype": torch.bfloat16}
    attention["num_kv_heads"], attention["head_size"] = model.kv_heads, model.bf16_head_dim * kv_copies
    full = FullAttentionSpec(**attention)
    kinds: dict[str, KVCacheSpec] = {"full": full}
    if model.window_layers:
        kinds["window"] = SlidingWindowSpec(**attention, sliding_window=model.window_tokens)
    if model.delta is not None:
        size = layout.block_size if prefix_caching else longest
        drafts = layout.states_held - STATES_HELD
        kinds["state"] = _state_spec(model.delta, size, full.page_size_bytes, drafts, state_mode(model, prefix_caching))
    specs = {f"layer.{number}": kinds[kind] for number, kind in enumerate(model.layer_kinds)}
    if model.indexer is not None:
        attention |= {"num_kv_heads": 1, "head_size": model.indexer.token_bytes * kv_copies // 4}
        specs |= {f"indexer.{number}": FullAttentionSpec(**attention) for number in range(model.indexer.layers)}
    return specs


def _state_spec(delta: DeltaNet, block_size: int, page_bytes: int, drafts: int, mode: Any) -> MambaSpec:
    """Return vLLM's description of a recurrent layer. vLLM pads its page to that of full attention."""
    return MambaSpec(
        block_size=block_size,
        shapes=(
            (delta.conv_width, delta.conv_kernel - 1 + drafts),
            (delta.value_heads, delta.head_dim, delta.head_dim),
        ),
        dtypes=(torch.bfloat16, torch.float32 if delta.state_bytes_each == 4.0 else torch.bfloat16),
        page_size_padded=page_bytes,
        mamba_cache_mode=mode,
        num_speculative_blocks=drafts,
    )


def state_mode(model: Model, prefix_caching: bool = True) -> Literal["align", "none"]:
    """Return vLLM's ``mamba_cache_mode``: with prefix caching, a state is kept where a block ends."""
    return "align" if model.state_layers and prefix_caching else "none"
