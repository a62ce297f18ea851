"""Step times: measured tables against their source, sanity of both kinds, refusals."""

from __future__ import annotations

import importlib.util
import json
from importlib.resources import files

import numpy as np
import pytest
from continuum_server.step_times.catalog import available, find_gpu, find_model, kv_capacity, load_step_times
from continuum_server.step_times.model import OutOfRange, PrefillChunk, StepTimes, UnknownPair
from hypothesis import given
from hypothesis import strategies as st

PAIRS = [("a100", "llama-3.1-8b", 1), ("h100", "llama-3.1-70b", 4), ("h100", "gemma-3-12b", 1), ("h200", "glm-4.5", 8)]
needs_source = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed"
)


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: "-".join(map(str, pair)))
def times(request: pytest.FixtureRequest) -> StepTimes:
    return load_step_times(*request.param)


def test_measured_values_of_the_source(times: StepTimes) -> None:
    """Spot values printed by aiconfigurator-core 0.12.0, ms, plus the 1 ms overhead."""
    a100 = load_step_times("a100", "llama-3.1-8b")
    assert a100.prefill_s(2048) * 1e3 == pytest.approx(125.2 + 1, rel=0.01)
    assert a100.prefill_s(32768) * 1e3 == pytest.approx(3430 + 1, rel=0.02)
    assert a100.step_s((), 16, 16 * 8192) * 1e3 == pytest.approx(22.3 + 1, rel=0.02)
    assert times.provenance.kind in ("measured-table", "roofline")


@needs_source
@pytest.mark.parametrize(("model", "gpu", "tp"), [("llama-3.1-8b", "h100-80gb", 1), ("llama-3.1-70b", "b200-180gb", 4)])
def test_interpolation_stays_close_to_the_source(model: str, gpu: str, tp: int) -> None:
    from continuum_server.step_times.check import interpolation_errors  # noqa: PLC0415

    errors = interpolation_errors(model, gpu, tp, points=200, seed=7)
    for kind in ("prefill", "decode"):
        assert np.abs(errors[kind]).mean() < 0.015, kind
        assert np.abs(errors[kind]).max() < 0.12, kind


@needs_source
def test_committed_table_is_what_the_builder_makes() -> None:
    from continuum_server.step_times.build import build_table  # noqa: PLC0415

    name = "a100-80gb_llama-3.1-8b_tp1.json"
    committed = json.loads((files("continuum_server.step_times") / "tables" / name).read_text())
    assert json.loads(json.dumps(build_table("llama-3.1-8b", "a100-80gb", 1))) == committed


@given(batch=st.integers(1, 256), context=st.integers(16, 60_000), steps=st.integers(1, 40))
def test_stretches_are_bit_identical_to_steps(times: StepTimes, batch: int, context: int, steps: int) -> None:
    total = batch * context
    assert times.decode_stretch_s(batch, total, steps) == [
        times.step_s((), batch, total + i * batch) for i in range(steps)
    ]


@given(
    tokens=st.integers(1, 4000),
    prefix=st.integers(0, 60_000),
    batch=st.integers(1, 200),
    context=st.integers(20, 30_000),
)
def test_more_work_takes_no_less_time(times: StepTimes, tokens: int, prefix: int, batch: int, context: int) -> None:
    """Doubling any of them; the measured tables may wobble by a few per cent."""
    wobble = 1.08
    alone = times.prefill_s(tokens, prefix)
    assert alone <= times.prefill_s(2 * tokens, prefix) * wobble
    assert alone <= times.prefill_s(tokens, 2 * prefix + 64) * wobble
    decode = times.step_s((), batch, batch * context)
    assert decode <= times.step_s((), 2 * batch, 2 * batch * context) * wobble
    assert decode <= times.step_s((), batch, 2 * batch * context) * wobble
    together = times.step_s((PrefillChunk(tokens, prefix),), batch, batch * context)
    assert max(alone, decode) <= together * wobble


@pytest.mark.parametrize(("gpu", "model", "tp"), PAIRS)
def test_nothing_is_extrapolated(gpu: str, model: str, tp: int) -> None:
    times = load_step_times(gpu, model, tp)
    with pytest.raises(OutOfRange, match="decoding requests = 5000"):
        times.step_s((), 5000, 5_000_000)
    with pytest.raises(OutOfRange, match="context"):
        times.step_s((), 1, 900_000)
    with pytest.raises(OutOfRange):
        times.prefill_s(2_000_000)
    with pytest.raises(OutOfRange):
        times.prefill_s(16, 2_000_000)


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(UnknownPair, match=r"h100-80gb"):
        load_step_times("tpu", "llama-3.1-8b")
    with pytest.raises(UnknownPair, match=r"glm-4\.5"):
        load_step_times("h100", "gpt-2")
    with pytest.raises(UnknownPair, match="1, 2, 4, 8"):
        load_step_times("h100", "llama-3.1-8b", 3)


def test_aliases() -> None:
    assert find_gpu("A100").name == "a100-80gb"
    assert find_model("meta-llama/Llama-3.1-8B-Instruct").name == "llama-3.1-8b"
    assert find_model("meta-llama/Meta-Llama-3.1-70B").name == "llama-3.1-70b"


def test_overhead_is_added_once_a_step() -> None:
    without, with_it = load_step_times("h100", "llama-3.1-8b", 1, 0.0), load_step_times("h100", "llama-3.1-8b", 1, 2.5)
    assert with_it.step_s((), 4, 4000) - without.step_s((), 4, 4000) == pytest.approx(2.5e-3)
    assert with_it.provenance.step_overhead_ms == 2.5


def test_capacity_is_its_arithmetic() -> None:
    capacity = kv_capacity("a100", "llama-3.1-8b", utilization=0.9)
    room = capacity.memory_bytes * 0.9 - capacity.weight_bytes - capacity.reserved_bytes
    assert capacity.bytes_per_token == 2 * 2 * 32 * 8 * 128
    assert capacity.num_blocks == int(room // (16 * 131072))
    assert 420_000 < capacity.tokens < 450_000  # aisimulate: 427K; vLLM prints about as much
    with pytest.raises(UnknownPair, match="does not fit"):
        kv_capacity("a100", "llama-3.1-70b")
    assert kv_capacity("a100", "llama-3.1-70b", 4).tokens > 100_000


def test_available_says_which_are_measured() -> None:
    kinds = {(p.gpu, p.model): p.kind for p in available()}
    assert kinds["h100-80gb", "llama-3.1-8b"] == "measured-table"
    assert kinds["h100-80gb", "gemma-3-12b"] == "roofline"
    assert sum(p.kind == "measured-table" for p in available()) == 32
