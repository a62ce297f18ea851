"""Attention by kernel: what was measured of mixed steps, and what must hold of any."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_server.step_times.attention import BANDS, KERNELS, MixedAttention, kernel_of
from continuum_server.step_times.catalog import available, find_gpu, find_model, load_step_times
from continuum_server.step_times.model import PrefillChunk, StepTimesError
from continuum_server.step_times.overhead import ASYNCHRONOUS, SYNCHRONOUS, is_asynchronous, overhead_of
from continuum_server.step_times.specs import GPUS
from continuum_server.step_times.table import slow_link
from hypothesis import given
from hypothesis import strategies as st

MEASUREMENTS = Path(__file__).parents[4] / "shared" / "validation" / "llmservingsim" / "profile"
ROUNDING = 1 + 1e-9


def attention(gpu: str, band: str = "mid", model: str = "llama-3.1-8b", tensor_parallel: int = 1) -> MixedAttention:
    tiles = KERNELS[gpu].tiles
    assert tiles is not None
    return MixedAttention(tiles[band], find_model(model), tensor_parallel)


@pytest.mark.parametrize(
    ("chunk", "decodes", "context", "measured_ms"),
    [((122, 13122), 0, 0, 9.4), ((16, 5832), 0, 0, 4.3), ((122, 0), 64, 8748, 99.3), ((2048, 8192), 0, 0, 36.9)],
)
def test_mixed_steps_of_the_rtx_pro_6000(
    chunk: tuple[int, int], decodes: int, context: int, measured_ms: float
) -> None:
    """Llama-3.1-8B, all layers, as LLMServingSim's profile has them."""
    found = attention("rtx-pro-6000").ms([PrefillChunk(*chunk)], decodes, decodes * context)
    assert found == pytest.approx(measured_ms, rel=0.13)


@pytest.mark.parametrize(
    ("gpu", "measured", "model", "degree"),
    [
        ("rtx-pro-6000", "RTXPRO6000/meta-llama/Llama-3.1-8B", "llama-3.1-8b", 1),
        ("rtx-pro-6000", "RTXPRO6000/Qwen/Qwen3-32B", "qwen3-32b", 2),
        ("rtx-pro-6000", "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b", 1),
        ("rtx-4090", "RTX4090/meta-llama/Llama-3.1-8B", "llama-3.1-8b", 1),
    ],
)
def test_the_tile_model_is_as_near_as_the_catalog_says(gpu: str, measured: str, model: str, degree: int) -> None:
    file = MEASUREMENTS / measured / "bf16" / f"tp{degree}" / "attention.csv.gz"
    if not file.exists():
        pytest.skip("the measurements are not in the repository")
    pandas = pytest.importorskip("pandas")
    rows = pandas.read_csv(file)
    rows = rows[(rows.prefill_chunk > 0) & (rows.n_decode * rows.kv_decode < 600_000)].sample(2000, random_state=1)
    mixed, layers, errors = attention(gpu, model=model, tensor_parallel=degree), find_model(model).layers, []
    for row in rows.itertuples():
        chunk = PrefillChunk(row.prefill_chunk, row.kv_prefill)
        errors.append(mixed.ms([chunk], row.n_decode, row.n_decode * row.kv_decode) / (row.time_us * layers / 1e3) - 1)
    assert sum(map(abs, errors)) / len(errors) < 0.085
    assert abs(sorted(errors)[len(errors) // 2]) < 0.05


@pytest.mark.parametrize("gpu", [name for name, kernel in KERNELS.items() if kernel.tiles])
@given(
    tokens=st.integers(1, 2048),
    prefix=st.integers(0, 60_000),
    decodes=st.integers(0, 200),
    context=st.integers(1, 20_000),
)
def test_more_attention_takes_no_less_time(gpu: str, tokens: int, prefix: int, decodes: int, context: int) -> None:
    mixed, chunk, all_decodes = attention(gpu), PrefillChunk(tokens, prefix), (decodes, decodes * context)
    found = mixed.ms([chunk], *all_decodes)
    more = [mixed.ms([chunk], decodes + 1, (decodes + 1) * context)]
    more += [mixed.ms([PrefillChunk(tokens, prefix + 500)], *all_decodes)]
    more += [mixed.ms([chunk, PrefillChunk(100, 0)], *all_decodes)]
    assert 0 < found <= min(more) * ROUNDING
    low, mid, high = (attention(gpu, band).ms([chunk], *all_decodes) for band in BANDS)
    assert low <= mid <= high


@pytest.mark.parametrize(("gpu", "wide"), [("a100", True), ("l40s", True), ("h100", False), ("rtx-pro-6000", False)])
def test_the_band_is_wide_where_nothing_was_measured(gpu: str, wide: bool) -> None:
    times = [load_step_times(gpu, "llama-3.1-8b", band=band) for band in BANDS]
    low, _, high = (one.step_s([PrefillChunk(100, 30_000)], 20, 400_000) for one in times)
    assert (high > low * 1.1, high == low) == (wide, not wide)
    assert [one.provenance.band for one in times] == list(BANDS)
    assert ("no mixed step was measured" in times[1].provenance.attention) == wide
    with pytest.raises(StepTimesError, match="there are: low, mid, high"):
        load_step_times(gpu, "llama-3.1-8b", band="middle")


@pytest.mark.parametrize(
    ("gpu", "model", "kernel"),
    [
        ("a100", "llama-3.1-8b", "FlashAttention-2"),
        ("a100", "gpt-oss-20b", "Triton"),
        ("rtx-4090", "gpt-oss-20b", "Triton"),
        ("a100", "llama-3.1-8b+fp8-kv", "other"),
        ("h100", "gpt-oss-20b", "FlashAttention-3"),
        ("b200", "gpt-oss-20b", "FlashInfer/TRT-LLM"),
        ("h100", "deepseek-v3.1", "MLA"),
        ("a100", "deepseek-v3.1", "MLA"),
    ],
)
def test_the_kernel_is_the_one_that_vllm_chooses(gpu: str, model: str, kernel: str) -> None:
    assert {each.name for each in GPUS} == set(KERNELS)
    found = kernel_of(find_gpu(gpu), find_model(model))
    assert found.name == kernel
    assert (found.tiles is not None) == (kernel == "FlashAttention-2")


def test_overhead_by_version() -> None:
    assert overhead_of("0.19.1") is overhead_of("0.9") is SYNCHRONOUS
    assert overhead_of("0.20.0") is overhead_of(None) is overhead_of("dev") is overhead_of("1.0") is ASYNCHRONOUS
    assert not is_asynchronous("0.19.0")
    before, now = (load_step_times("h100", "llama-3.1-8b", vllm=version) for version in ("0.19.0", "0.23.0"))
    grown = SYNCHRONOUS.step_ms - ASYNCHRONOUS.step_ms  # a request's is equal
    assert before.step_s((), 64, 64_000) - now.step_s((), 64, 64_000) == pytest.approx(grown / 1e3)


def test_no_measured_step_is_shorter_than_the_hosts_work() -> None:
    """So asynchronous scheduling hides it, and no step waits for the scheduler."""
    for pair in available():
        if pair.kind == "measured-table":
            times = load_step_times(pair.gpu, pair.model, pair.tensor_parallel)
            for requests in (1, 16, 256):
                assert (
                    times.step_s((), requests, requests * 500) * 1e3
                    > SYNCHRONOUS.step_ms + SYNCHRONOUS.request_ms * requests
                )


def test_chunks_and_decodes_in_one_launch_pay_for_it_once() -> None:
    """Steps of H100 servers with 100 decodes and a chunk of a few tokens take hardly longer than without the chunk."""
    none, one, two = ([PrefillChunk(1, 500)] * number for number in (0, 1, 2))
    for gpu, costs_ms, costs_two_ms in (("h100", (0.0, 0.3), (0.0, 0.6)), ("b200", (0.5, 9.0), (0.5, 9.0))):
        times = load_step_times(gpu, "llama-3.1-70b", 4, 0.0)
        alone, with_one, with_two = (times.step_s(chunks, 100, 60_000) * 1e3 for chunks in (none, one, two))
        assert costs_ms[0] < with_one - alone < costs_ms[1]
        assert costs_two_ms[0] < with_two - alone < costs_two_ms[1]
        assert with_two - with_one < 0.3


def test_all_reduces_over_pcie_take_longer() -> None:
    link = slow_link(find_gpu("rtx-pro-6000"), find_model("qwen3-32b"), 2)
    assert link is not None
    assert link.step_ms == pytest.approx(128 * 0.016)
    assert slow_link(find_gpu("rtx-pro-6000"), find_model("qwen3-32b"), 1) is None
    assert slow_link(find_gpu("h100"), find_model("qwen3-32b"), 2) is None
    assert "host's memory" in load_step_times("rtx-pro-6000", "qwen3-32b", 2).provenance.notes
