"""The catalog's models: geometry against arithmetic by hand and published configs, names, what fits which GPU."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from itertools import product
from pathlib import Path

import msgspec.yaml
import pytest
from continuum_server.step_times.catalog import TENSOR_PARALLEL, find_gpu, find_model, kv_capacity, load_step_times
from continuum_server.step_times.hf_config import config_of
from continuum_server.step_times.model import DoesNotFit, PrefillChunk, UnknownPair
from continuum_server.step_times.roofline import RooflineStepTimes
from continuum_server.step_times.specs import EMBEDDING_BYTES, GPUS, MODELS, MXFP4_BYTES, DeltaNet, Gpu, Model

BY_HAND = msgspec.yaml.decode(
    Path(__file__).with_name("models_by_hand.yaml").read_bytes(), type=dict[str, tuple[float, int, int, int]]
)
SAME = {"qwen3-30b-a3b-2507", "qwen3-coder-30b-a3b", "qwen3-235b-a22b-2507", "glm-4.6"}
"""Later versions with the geometry of an earlier one."""
LATENT = {
    "kv_lora_rank": "kv_lora_rank",
    "q_lora_rank": "q_lora_rank",
    "qk_rope_head_dim": "rope_head_dim",
    "v_head_dim": "head_dim",
    "qk_nope_head_dim": "head_dim",
}
"""Of a model with MLA: keys of its config.json, and the fields of ``Model`` that say the same."""
LAYER_TYPES = {"full": "full_attention", "state": "linear_attention"}
NO_GEOMETRY = {"torch_dtype", "hidden_act", "rms_norm_eps"}


def test_parameters_and_kv_of_a_token_by_hand() -> None:
    for model in MODELS:
        original = model.name.removesuffix("-2507").replace("-coder", "").replace("4.6", "4.5")
        parameters, *kv = BY_HAND[original if model.name in SAME else model.name]
        kv_bytes = 2 * 2 * math.prod(kv)  # keys and values in bf16
        found = model.always_parameters + model.expert_parameters + model.embedding_parameters
        assert found == pytest.approx(parameters * 1e9, rel=0.003)
        keys = 132 * model.indexer.layers if model.indexer is not None else 0  # 128 numbers in fp8, and a scale
        assert model.kv_bytes_per_token - keys == kv_bytes
        assert (find_model(model.name + "+fp8-kv").kv_bytes_per_token - keys) * 2 == kv_bytes
        assert 2 * 2 * model.kv_heads * model.bf16_head_dim == model.kv_bytes_per_layer_token


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="no aiconfigurator-core")
def test_geometry_is_that_of_the_published_config() -> None:
    """Of every model in the catalog whose config the package has whole: NVIDIA's have the weights' type elsewhere."""
    folder, compared = Path(str(files("aiconfigurator_core"))) / "model_configs", set()
    for file in sorted(set(folder.glob("*_config.json")) - set(folder.glob("nvidia--*"))):
        with suppress(UnknownPair):
            model = find_model(file.name.removesuffix("_config.json").replace("--", "/"))
            published, written = json.loads(file.read_bytes()), config_of(model)
            if model.delta is not None:
                published = {**published["text_config"], "architectures": published["architectures"]}
                assert _delta_of(published) == model.delta
                assert published["layer_types"] == [LAYER_TYPES[kind] for kind in model.layer_kinds]
                assert published["model_type"].removesuffix("_text") == written.pop("model_type")
            if model.indexer is not None:
                indexer = [published[f"index_{key}"] for key in ("n_heads", "head_dim", "topk")]
                assert indexer == [model.indexer.heads, model.indexer.head_dim, model.indexer.top_k]
            if model.kv_lora_rank:
                assert {key: published[key] for key in LATENT} == {k: getattr(model, v) for k, v in LATENT.items()}
                del written["num_key_value_heads"]  # one latent vector stands for all heads
            keys = {key for key in written.keys() - NO_GEOMETRY if published.get(key) is not None}
            assert len(keys) >= 8
            assert {key: written[key] for key in keys} == {key: published[key] for key in keys}
            method = (published.get("quantization_config") or {}).get("quant_method")
            sizes = model.weight_bytes_each, model.expert_bytes_each
            assert sizes == {None: (2.0, None), "fp8": (1.0, None), "mxfp4": (2.0, MXFP4_BYTES)}[method]
            compared.add(model.name)
    assert len(compared) > 10


def _delta_of(published: dict[str, int | str]) -> DeltaNet:
    heads = [published[f"linear_num_{kind}_heads"] for kind in ("key", "value")]
    sizes = [published["linear_key_head_dim"], published["linear_conv_kernel_dim"]]
    return DeltaNet(*heads, *sizes, state_bytes_each={"float32": 4.0}[published["mamba_ssm_dtype"]])  # type: ignore[arg-type,index]


def test_fp8_weights_are_half_but_for_the_embeddings() -> None:
    bf16, fp8 = find_model("llama-3.1-70b"), find_model("llama-3.3-70b-fp8")
    embeddings = 2 * 2 * 128256 * 8192
    assert fp8.weight_bytes - embeddings == (bf16.weight_bytes - embeddings) / 2
    oss = find_model("gpt-oss-20b")
    assert oss.weight_bytes == pytest.approx(13.76e9, rel=0.01)  # the checkpoint's size on Hugging Face
    assert oss.expert_bytes == 24 * 32 * 3 * 2880 * 2880 * 17 / 32


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_pair_fits_or_is_refused_in_one_sentence(gpu: Gpu) -> None:
    """No roofline is faster than the data sheet: weights and KV are read, and multiplied at the peak."""
    for model, degree in product(MODELS, TENSOR_PARALLEL):
        try:
            kv_capacity(gpu.name, model.name, degree)
            times = load_step_times(gpu.name, model.name, degree, 0.0)
        except (DoesNotFit, UnknownPair) as error:
            refusal = str(error)
            assert model.name in refusal and "\n" not in refusal  # noqa: PT018
            continue
        assert 0 < times.prefill_s(512) < times.step_s((PrefillChunk(512, 4096),), 8, 8 * 4096) < 100
        if degree > 1 or times.provenance.kind != "roofline":
            continue
        share = model.experts_used / model.experts if model.experts else 0.0
        weights = model.layer_bytes + EMBEDDING_BYTES * model.head_parameters + share * model.expert_bytes
        for batch, context in product((1, 16, 128), (1, 512, 2000)):
            kv = model.full_layers * context
            kv += model.window_layers * min(context, model.window_tokens)
            states = 2 * model.state_layers * model.state_bytes_per_layer
            took_s = times.step_s((), batch, batch * context)
            read = weights + batch * (model.kv_bytes_per_layer_token * kv + states)
            assert took_s > read / (gpu.bandwidth_tb_s * 1e12)
        flops = 2 * (model.always_parameters + share * model.expert_parameters) * 2048
        assert times.prefill_s(2048) > flops / (max(gpu.bf16_tflops, gpu.fp8_tflops) * 1e12)


def test_gpus_that_share_a_head_keep_a_copy_of_it() -> None:
    eight = kv_capacity("h100", "qwen3-30b-a3b", 8)
    assert (eight.kv_copies, eight.bytes_per_token) == (2, 2 * find_model("qwen3-30b-a3b").kv_bytes_per_token)
    latent = kv_capacity("h200", "deepseek-v3.1", 8)
    assert (latent.kv_copies, latent.bytes_per_token) == (8, 8 * find_model("deepseek-v3.1").kv_bytes_per_token)
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


def test_fewer_bits_of_kv_make_decodes_faster_and_have_no_table_of_bf16() -> None:
    for name in ("qwen3-8b", "qwen3-coder-30b-a3b"):
        assert load_step_times("h100", name).provenance.kind == "measured-table"
        assert load_step_times("h100", f"{name}+fp8-kv").provenance.kind == "roofline"
    times = [RooflineStepTimes(find_gpu("h100"), find_model(name), 1, 0.0) for name in ("qwen3-8b", "qwen3-8b+fp8-kv")]
    reading = [each.step_s((), 64, 64 * 8192) - each.step_s((), 64, 64) for each in times]
    assert reading[0] == pytest.approx(2 * reading[1])


def test_the_page_lists_every_model_and_gpu() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    names = page.partition("Names, with ids")[2].partition("\n\n")[2].partition("\n\n")[0]
    assert sorted(re.findall("`(.+?)`", names)) == sorted(model.name for model in MODELS)
    for gpu in GPUS:
        assert f"| `{gpu.name}` | {gpu.memory_gib:g} |" in page


@pytest.mark.parametrize(
    ("find", "name", "found"),
    [
        (find_model, "qwen/QWEN3-32b", "qwen3-32b"),
        (find_model, "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", "qwen3-30b-a3b-2507-fp8"),
        (find_model, "Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder-30b-a3b"),
        (find_model, "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.1-70b-fp8"),
        (find_model, "google/gemma-3-12b-it", "gemma-3-12b"),
        (find_model, "Qwen/Qwen3-8B-FP8+fp8-kv", "qwen3-8b-fp8+fp8-kv"),
        (find_gpu, "NVIDIA A100-SXM4-80GB", "a100-80gb"),
        (find_gpu, "NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        *((find_model, alias, model.name) for model in MODELS for alias in (model.name, *model.aliases)),
        *((find_gpu, f"NVIDIA {alias}", gpu.name) for gpu in GPUS for alias in (gpu.name.upper(), *gpu.aliases)),
    ],
)
def test_names_and_aliases_are_found(find: Callable[[str], Model | Gpu], name: str, found: str) -> None:
    assert find(name).name == found


@pytest.mark.parametrize(
    ("find", "name", "said"),
    [
        (find_model, "Qwen/Qwen3-23B", r"unknown model 'Qwen/Qwen3-23B'; did you mean qwen3-32b.*there are: llama"),
        (find_model, "gpt-oss-120b-fp8", "did you mean gpt-oss-120b"),
        (find_model, "zzz", "unknown model 'zzz'; there are"),
        (find_gpu, "rtx-4080", "did you mean rtx-4090"),
    ],
)
def test_unknown_names_say_what_is_near(find: Callable[[str], Model | Gpu], name: str, said: str) -> None:
    with pytest.raises(UnknownPair, match=said):
        find(name)
