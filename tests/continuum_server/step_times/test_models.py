"""The catalog's models: geometry against arithmetic by hand and published configs, names, what fits which GPU."""

from __future__ import annotations

import importlib.util
import json
from importlib.resources import files
from pathlib import Path

import pytest
from continuum_server.step_times import build
from continuum_server.step_times.catalog import TENSOR_PARALLEL, find_gpu, find_model, kv_capacity, load_step_times
from continuum_server.step_times.hf_config import ConfigError, config_of, model_from_config, read_model
from continuum_server.step_times.model import DoesNotFit, PrefillChunk, UnknownPair
from continuum_server.step_times.roofline import RooflineStepTimes
from continuum_server.step_times.specs import GPUS, MODELS

KV_BYTES_PER_TOKEN = {
    "llama-3.1-8b": 2 * 2 * 8 * 128 * 32,  # keys and values x bf16 x KV heads x head size x layers
    "llama-3.1-70b": 2 * 2 * 8 * 128 * 80,
    "qwen3-8b": 2 * 2 * 8 * 128 * 36,
    "qwen3-14b": 2 * 2 * 8 * 128 * 40,
    "qwen3-32b": 2 * 2 * 8 * 128 * 64,
    "gemma-3-12b": 2 * 2 * 8 * 256 * 8,  # 8 of 48 layers grow
    "llama-3.2-3b": 2 * 2 * 8 * 128 * 28,
    "qwen3-4b": 2 * 2 * 8 * 128 * 36,
    "mistral-7b": 2 * 2 * 8 * 128 * 32,
    "qwen2.5-7b": 2 * 2 * 4 * 128 * 28,
    "qwen2.5-14b": 2 * 2 * 8 * 128 * 48,
    "qwen2.5-32b": 2 * 2 * 8 * 128 * 64,
    "phi-4": 2 * 2 * 10 * 128 * 40,
    "mixtral-8x7b": 2 * 2 * 8 * 128 * 32,
    "phi-mini-moe": 2 * 2 * 8 * 128 * 32,
    "qwen3-30b-a3b": 2 * 2 * 4 * 128 * 48,
    "qwen3-30b-a3b-2507": 2 * 2 * 4 * 128 * 48,
    "qwen3-coder-30b-a3b": 2 * 2 * 4 * 128 * 48,
    "qwen3-235b-a22b": 2 * 2 * 4 * 128 * 94,
    "qwen3-235b-a22b-2507": 2 * 2 * 4 * 128 * 94,
    "gpt-oss-20b": 2 * 2 * 8 * 64 * 12,  # every second layer grows
    "gpt-oss-120b": 2 * 2 * 8 * 64 * 18,
    "glm-4.5-air": 2 * 2 * 8 * 128 * 46,
    "glm-4.5": 2 * 2 * 8 * 128 * 92,
    "glm-4.6": 2 * 2 * 8 * 128 * 92,
    "deepseek-v3.1": 2 * (512 + 64) * 61,  # one compressed vector and one rotated key a layer
}
BUNDLED = {
    "llama-3.1-8b": "meta-llama--Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama--Meta-Llama-3.1-70B",
    "qwen3-8b": "Qwen--Qwen3-8B",
    "qwen3-32b": "Qwen--Qwen3-32B",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen--Qwen3-235B-A22B",
    "mixtral-8x7b": "mistralai--Mixtral-8x7B-v0.1",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "gpt-oss-120b": "openai--gpt-oss-120b",
    "deepseek-v3.1": "deepseek-ai--DeepSeek-V3",
}
GEOMETRY = [
    "layers",
    "hidden",
    "intermediate",
    "query_heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "max_context_tokens",
    "weight_bytes_each",
    "expert_bytes_each",
    "kv_lora_rank",
    "q_lora_rank",
    "rope_head_dim",
    "tied_embeddings",
    "window_layers",
    "window_tokens",
    "experts",
    "experts_used",
    "expert_width",
    "shared_experts",
    "dense_layers",
    "architecture",
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_kv_of_a_token_by_hand(model) -> None:  # type: ignore[no-untyped-def]
    assert model.kv_bytes_per_token == KV_BYTES_PER_TOKEN[model.name]
    half = find_model(model.name + "+fp8-kv")
    assert half.kv_bytes_per_token * 2 == model.kv_bytes_per_token
    assert 2 * 2 * model.kv_heads * model.bf16_head_dim == model.kv_bytes_per_layer_token


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="no aiconfigurator-core")
@pytest.mark.parametrize("name", BUNDLED)
def test_geometry_is_that_of_the_published_config(name: str) -> None:
    file = Path(str(files("aiconfigurator_core"))) / "model_configs" / f"{BUNDLED[name]}_config.json"
    published, ours = read_model(file), find_model(name)
    assert {key: getattr(published, key) for key in GEOMETRY} == {key: getattr(ours, key) for key in GEOMETRY}


@pytest.mark.parametrize("name", ["qwen3-14b", "qwen3-30b-a3b", "gpt-oss-20b", "glm-4.5-air"])
def test_a_config_written_and_read_is_the_same_model(name: str) -> None:
    ours = find_model(name)
    again = model_from_config(config_of(ours), name)
    same = [key for key in GEOMETRY if key != "expert_bytes_each"]
    assert {key: getattr(again, key) for key in same} == {key: getattr(ours, key) for key in same}


def test_a_config_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_model(tmp_path)
    file = tmp_path / "config.json"
    for text, reason in (
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "architecture none is not known; there are: LlamaForCausalLM"),
        ('{"architectures": ["LlamaForCausalLM"]}', "no num_attention_heads"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=reason):
            read_model(tmp_path)
    config = config_of(find_model("qwen3-8b"))
    for change, reason in (
        ({"linear_num_value_heads": 32}, "not modelled"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantisation awq is not known"),
        ({"sliding_window": 4096}, "every layer attends to a window"),
    ):
        file.write_text(json.dumps(config | change), encoding="utf-8")
        with pytest.raises(ConfigError, match=reason):
            read_model(tmp_path)


def test_fp8_checkpoints_are_read() -> None:
    config = config_of(find_model("qwen3-32b")) | {"quantization_config": {"quant_method": "fp8"}}
    assert model_from_config(config, "x").weight_bytes == find_model("Qwen/Qwen3-32B-FP8").weight_bytes
    group = {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}
    config["quantization_config"] = {"quant_method": "compressed-tensors", "config_groups": group}
    assert model_from_config(config, "x").weight_bytes_each == 1.0


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("qwen/QWEN3-32b", "qwen3-32b"),
        ("Qwen/Qwen3-32B-FP8", "qwen3-32b-fp8"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", "qwen3-30b-a3b-2507-fp8"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder-30b-a3b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", "qwen3-coder-30b-a3b-fp8"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b-2507-fp8"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.1-70b-fp8"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Qwen/Qwen2.5-14B-Instruct", "qwen2.5-14b"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "qwen2.5-32b"),
        ("microsoft/phi-4", "phi-4"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("microsoft/Phi-mini-MoE-instruct", "phi-mini-moe"),
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        ("zai-org/GLM-4.5-Air-FP8", "glm-4.5-air-fp8"),
        ("zai-org/GLM-4.6-FP8", "glm-4.6"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3.1"),
        ("qwen3-8b+fp8-kv", "qwen3-8b+fp8-kv"),
        ("Qwen/Qwen3-8B-FP8+fp8-kv", "qwen3-8b-fp8+fp8-kv"),
    ],
)
def test_hugging_face_ids(name: str, found: str) -> None:
    assert find_model(name).name == found


def test_unknown_names_say_what_is_near() -> None:
    with pytest.raises(UnknownPair, match=r"unknown model 'Qwen/Qwen3-23B'; did you mean qwen3-32b.*there are: llama"):
        find_model("Qwen/Qwen3-23B")
    with pytest.raises(UnknownPair, match="did you mean gpt-oss-120b"):
        find_model("gpt-oss-120b-fp8")
    with pytest.raises(UnknownPair, match="did you mean rtx-4090"):
        find_gpu("rtx-4080")
    with pytest.raises(UnknownPair, match=r"unknown model 'zzz'; there are"):
        find_model("zzz")


def test_fp8_weights_are_half_but_for_the_embeddings() -> None:
    bf16, fp8 = find_model("llama-3.1-70b"), find_model("llama-3.3-70b-fp8")
    embeddings = 2 * 2 * 128256 * 8192
    assert fp8.weight_bytes - embeddings == (bf16.weight_bytes - embeddings) / 2
    oss = find_model("gpt-oss-20b")
    assert oss.weight_bytes == pytest.approx(13.76e9, rel=0.01)  # the checkpoint's size on Hugging Face
    assert oss.expert_bytes == 24 * 32 * 3 * 2880 * 2880 * 17 / 32


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_pair_fits_or_is_refused_in_one_sentence(gpu) -> None:  # type: ignore[no-untyped-def]
    refused: list[tuple[str, str]] = []
    for model in MODELS:
        for degree in TENSOR_PARALLEL:
            try:
                kv_capacity(gpu.name, model.name, degree)
                times = load_step_times(gpu.name, model.name, degree)
            except (DoesNotFit, UnknownPair) as error:
                refused.append((model.name, str(error)))
                continue
            alone, beside = times.prefill_s(512), times.step_s((PrefillChunk(512, 4096),), 8, 8 * 4096)
            assert 0 < alone < beside < 100
            assert times.step_s((), 8, 8 * 4096) > times.step_s((), 1, 4096)
    assert all(name in sentence and "\n" not in sentence for name, sentence in refused)


def test_gpus_that_share_a_head_keep_a_copy_of_it() -> None:
    eight = kv_capacity("h100", "qwen3-30b-a3b", 8)
    assert (eight.kv_copies, eight.bytes_per_token) == (2, 2 * KV_BYTES_PER_TOKEN["qwen3-30b-a3b"])
    latent = kv_capacity("h200", "deepseek-v3.1", 8)
    assert (latent.kv_copies, latent.bytes_per_token) == (8, 8 * KV_BYTES_PER_TOKEN["deepseek-v3.1"])
    assert kv_capacity("h100", "llama-3.1-8b", 8).kv_copies == 1
    with pytest.raises(DoesNotFit, match="does not fit 8 x h100-80gb"):
        kv_capacity("h100", "deepseek-v3.1", 8)


def test_mla_expands_the_prefix_of_a_chunk() -> None:
    """For each token of the prefix one layer multiplies 512 numbers by 128 heads x 256."""
    model = find_model("deepseek-v3.1")
    assert model.attention_parameters == (
        7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    )
    times = RooflineStepTimes(find_gpu("h200"), model, 8, 0.0)
    behind = times.prefill_s(16, 32768) - times.prefill_s(16)
    flops = 61 * 2 * 512 * 128 * 256 * 32768
    assert behind > flops / (8 * 1979e12 * 0.72)


@pytest.mark.parametrize("name", ["qwen3-8b", "qwen3-coder-30b-a3b"])
def test_a_table_of_bf16_kv_is_not_taken_for_fp8_kv(name: str) -> None:
    assert load_step_times("h100", name).provenance.kind == "measured-table"
    assert load_step_times("h100", f"{name}+fp8-kv").provenance.kind == "roofline"


def test_fewer_bits_of_kv_make_decodes_faster() -> None:
    times = [RooflineStepTimes(find_gpu("h100"), find_model(name), 1, 0.0) for name in ("qwen3-8b", "qwen3-8b+fp8-kv")]
    reading = [each.step_s((), 64, 64 * 8192) - each.step_s((), 64, 64) for each in times]
    assert reading[0] == pytest.approx(2 * reading[1])


def test_the_page_lists_every_model_and_gpu_with_its_numbers() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    with_tables = {name for name, _, _ in build.pairs()}
    for model in MODELS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{model.name}` |")]
        assert f"{model.kv_bytes_per_token:,}" in row
        assert f"{model.weight_bytes / 1e9:.1f} GB" in row
        basis = "tables" if (model.tables_of or model.name) in with_tables else "roofline"
        assert basis in row.split("|")[5]
    for gpu in GPUS:
        assert f"| `{gpu.name}` | {gpu.memory_gib:g} GiB |" in page
