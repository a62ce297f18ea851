"""Read a model's description from a Hugging Face ``config.json``, and write one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from continuum_server.step_times.json_file import read_file
from continuum_server.step_times.model import StepTimesError
from continuum_server.step_times.specs import MXFP4_BYTES, Model

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
}
"""Architectures whose config.json this module reads, with their ``model_type``."""
UNKNOWN_LAYERS = ("linear_num_value_heads", "index_topk", "mamba_num_heads")
"""Keys of layers that ``Model`` does not describe (linear attention, sparse attention, state spaces)."""
EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")


class ConfigError(StepTimesError):
    """A config.json cannot be read, or its model is of an unsupported kind. The message names the file."""


def read_model(path: Path, name: str | None = None) -> Model:
    """Read a model from a config.json, or from a folder that contains one.

    Args:
        name: short name; None: the folder's name.

    Raises:
        ConfigError: the file does not exist, is not JSON, or its model is of an unsupported kind.
    """
    file = path / "config.json" if path.is_dir() else path
    config = read_file(file, dict[str, Any], ConfigError)
    chosen = name or (file.absolute().parent.name if file.name == "config.json" else file.stem)
    try:
        return model_from_config(config, re.sub(r"[^a-z0-9.-]+", "-", chosen.lower()).strip("-"))
    except KeyError as error:
        raise ConfigError(f"{file}: no {error.args[0]}") from error
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error


def model_from_config(config: Mapping[str, Any], name: str) -> Model:
    """Convert a parsed config.json to a model.

    Raises:
        ConfigError: ``Model`` cannot describe the architecture, a kind of layer or the quantisation.
        KeyError: a number is missing.
    """
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture not in MODEL_TYPES:
        raise ConfigError(f"architecture {architecture} is not known; there are: {', '.join(MODEL_TYPES)}")
    strange = [key for key in UNKNOWN_LAYERS if config.get(key)]
    if strange:
        raise ConfigError(f"{strange[0]} = {config[strange[0]]}: layers of that kind are not modelled")
    heads = int(config["num_attention_heads"])
    return Model(
        name=name,
        layers=int(config["num_hidden_layers"]),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        query_heads=heads,
        vocab=int(config["vocab_size"]),
        max_context_tokens=int(config["max_position_embeddings"]),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        architecture=architecture,
        **_attention(config, heads),
        **_windows(config, architecture),
        **_experts(config),
        **_bytes(config.get("quantization_config")),
    )


def _attention(config: Mapping[str, Any], heads: int) -> dict[str, Any]:
    if config.get("kv_lora_rank"):
        if config["qk_nope_head_dim"] != config["v_head_dim"]:
            raise ConfigError("qk_nope_head_dim and v_head_dim differ: not modelled")
        return {
            "kv_heads": 1,
            "head_dim": int(config["v_head_dim"]),
            "kv_lora_rank": int(config["kv_lora_rank"]),
            "q_lora_rank": int(config["q_lora_rank"]),
            "rope_head_dim": int(config["qk_rope_head_dim"]),
        }
    return {
        "kv_heads": int(config.get("num_key_value_heads") or heads),
        "head_dim": int(config.get("head_dim") or config["hidden_size"] // heads),
    }


def _windows(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    layers = int(config["num_hidden_layers"])
    kinds = config.get("layer_types")
    if kinds:
        windowed = list(kinds).count("sliding_attention")
    else:
        windowed = layers // 2 if architecture == "GptOssForCausalLM" else layers
    if windowed == layers:
        raise ConfigError("every layer attends to a window: not modelled")
    return {"window_layers": windowed, "window_tokens": int(window)}


def _experts(config: Mapping[str, Any]) -> dict[str, Any]:
    count = next((int(config[key]) for key in EXPERT_COUNTS if config.get(key)), 0)
    if not count:
        return {}
    return {
        "experts": count,
        "experts_used": int(config["num_experts_per_tok"]),
        "expert_width": int(config.get("moe_intermediate_size") or config["intermediate_size"]),
        "shared_experts": int(config.get("n_shared_experts") or 0),
        "dense_layers": int(config.get("first_k_dense_replace") or 0),
    }


def _bytes(quantisation: Mapping[str, Any] | None) -> dict[str, Any]:
    if not quantisation:
        return {}
    method = quantisation.get("quant_method")
    if method == "mxfp4":
        return {"expert_bytes_each": MXFP4_BYTES}
    groups = (quantisation.get("config_groups") or {}).values()
    bits = {(group.get("weights") or {}).get("num_bits") for group in groups}
    if method == "fp8" or (method == "compressed-tensors" and bits == {8}):
        return {"weight_bytes_each": 1.0}
    raise ConfigError(f"quantisation {method} is not known; there are: fp8, mxfp4, compressed-tensors of 8 bits")


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
