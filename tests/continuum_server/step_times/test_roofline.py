"""What must hold for every roofline, and the cards that were measured beside their kernels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from continuum_server.step_times.catalog import kv_capacity, load_step_times
from continuum_server.step_times.model import DoesNotFit, PrefillChunk, StepTimes, UnknownPair
from continuum_server.step_times.roofline import MEASURED_SHARES, SIMILAR
from continuum_server.step_times.specs import EMBEDDING_BYTES, GPUS, MODELS, Gpu, Model

DATA = Path(__file__).parents[4] / "shared"
BATCHES, CONTEXTS, CHUNKS = (1, 2, 8, 16, 48, 96, 256), (1, 512, 2048, 4000), (16, 64, 256, 700, 2048)


def rooflines() -> list[tuple[Gpu, Model, StepTimes]]:
    found = []
    for gpu in GPUS:
        for model in MODELS:
            try:
                kv_capacity(gpu.name, model.name)
                times = load_step_times(gpu.name, model.name, 1, 0.0)
            except (DoesNotFit, UnknownPair):
                continue
            if times.provenance.kind == "roofline":
                found.append((gpu, model, times))
    return found


@pytest.mark.parametrize(("gpu", "model", "times"), rooflines(), ids=lambda each: getattr(each, "name", ""))
def test_more_work_takes_longer_and_nothing_is_faster_than_the_data_sheet(
    gpu: Gpu, model: Model, times: StepTimes
) -> None:
    share = model.experts_used / model.experts if model.experts else 0.0
    weights = model.layer_bytes + EMBEDDING_BYTES * model.head_parameters + share * model.expert_bytes
    growing = model.layers - model.window_layers
    for context in CONTEXTS:
        for batch in BATCHES:
            kv = batch * model.kv_bytes_per_layer_token
            kv *= growing * context + model.window_layers * min(context, model.window_tokens)
            assert times.step_s((), batch, batch * context) > (weights + kv) / (gpu.bandwidth_tb_s * 1e12)
        assert_grows([times.step_s((), batch, batch * context) for batch in BATCHES])
    for batch in BATCHES:
        assert_grows([times.step_s((), batch, batch * context) for context in CONTEXTS])
    for prefix in (0, 1000):
        assert_grows([times.prefill_s(tokens, prefix) for tokens in CHUNKS])
    flops = 2 * (model.always_parameters + share * model.expert_parameters) * 2048
    assert times.prefill_s(2048) > flops / (max(gpu.bf16_tflops, gpu.fp8_tflops) * 1e12)


def assert_grows(values: list[float]) -> None:
    assert all(after >= 0.999 * before for before, after in pairwise(values))


def test_a_step_between_reading_and_arithmetic_takes_longer_than_either() -> None:
    times = load_step_times("rtx-4090", "llama-3.1-8b", 1, 0.0)
    reading, arithmetic = times.step_s((), 1, 1), times.prefill_s(2048) / 2048
    knee = round(reading / arithmetic)
    assert times.step_s([PrefillChunk(knee, 0)], 0, 0) > 1.25 * reading


def test_cards_that_nobody_measured_say_whose_shares_they_have() -> None:
    assert set(SIMILAR.values()) <= set(MEASURED_SHARES)
    assert "fitted to l40s in the committed tables" in load_step_times("a5000", "qwen3-8b").provenance.notes
    assert "fitted to rtx-4090 in kernel times" in load_step_times("rtx-3090", "qwen3-8b").provenance.notes
    assert "fitted" not in load_step_times("a100-40gb", "qwen3-8b").provenance.notes


def test_measured_cards_are_near_their_kernels() -> None:
    if not (DATA / "validation").exists():
        pytest.skip("the kernel times are not in the repository")
    from validation import dense_lines  # noqa: PLC0415

    rows = [line.split(" | ") for line in dense_lines(DATA) if "the card's" in line]
    assert len(rows) == 3
    for row in rows:
        assert float(row[4].removesuffix("%")) < 4.0
