"""Write a model's description as a Hugging Face ``config.json``, for vLLM."""

from __future__ import annotations

from typing import Any

from continuum_server.step_times.specs import Model

MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Phi3ForCausalLM": "phi3",
    "MixtralForCausalLM": "mixtral",
    "PhiMoEForCausalLM": "phimoe",
    "GptOssForCausalLM": "gpt_oss",
    "Glm4MoeForCausalLM": "glm4_moe",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "Gemma3ForConditionalGeneration": "gemma3",
}
"""The ``model_type`` of each architecture of the catalog."""


def config_of(model: Model) -> dict[str, Any]:
    """Return a config.json with the model's geometry, without its quantisation."""
    config: dict[str, Any] = {
        "architectures": [model.architecture],
        "model_type": MODEL_TYPES[model.architecture],
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_attention_heads": model.query_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab,
        "max_position_embeddings": model.max_context_tokens,
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
    }
    if model.window_layers:
        full = model.layers - model.window_layers
        kinds = ["sliding_attention", "full_attention"] * full
        config |= {"sliding_window": model.window_tokens, "layer_types": kinds[: model.layers]}
    if model.experts:
        width, count = model.expert_width, model.experts
        config |= {"num_experts_per_tok": model.experts_used, "experts_per_token": model.experts_used}
        config |= {"num_experts": count, "num_local_experts": count, "n_routed_experts": count}
        config |= {"moe_intermediate_size": width, "n_shared_experts": model.shared_experts}
        config |= {"first_k_dense_replace": model.dense_layers}
    return config
