"""Folders of tiny models with random weights, of the kinds whose KV lies in several cache groups. vLLM computes them on
a CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from continuum_server.local_model import TINY, VOCABULARY, write_model

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
KINDS: dict[str, dict[str, Any]] = {
    "gemma-3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "sliding_window": 64,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
        "query_pre_attn_scalar": 32,
    },
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "num_hidden_layers": 4,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen3-next": {
        **EXPERTS,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "layer_types": [*["linear_attention"] * 3, "full_attention"],
        "full_attention_interval": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,  # vLLM's kernel for CPUs takes no smaller one
        "linear_value_head_dim": 128,
        "head_dim": 128,  # so that a state has the bytes of few tokens
        "num_key_value_heads": 4,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
"""What config.json of each kind has besides ``SIZES``."""


def write_tiny(kind: str, folder: Path) -> Path:
    """Write a model of this kind: the tokenizer of ``local_model``, and no weights, which vLLM makes up."""
    write_model(TINY, folder)
    (folder / "config.json").write_text(json.dumps({**SIZES, **KINDS[kind]}), encoding="utf-8")
    return folder
