"""Step times: measured tables against their source, sanity of both kinds, refusals, capacity."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import asdict
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path

import pytest
from continuum_server.step_times import build
from continuum_server.step_times.catalog import (
    TENSOR_PARALLEL,
    available,
    find_gpu,
    find_model,
    kv_capacity,
    load_step_times,
)
from continuum_server.step_times.model import (
    DoesNotFit,
    OutOfRange,
    PrefillChunk,
    StepTimes,
    StepTimesError,
    UnknownPair,
)
from continuum_server.step_times.overhead import ASYNCHRONOUS
from continuum_server.step_times.roofline import MEASURED_SHARES, SIMILAR, RooflineStepTimes, window_pairs
from continuum_server.step_times.specs import GPUS, MODELS
from continuum_server.step_times.table import table_from_json
from hypothesis import given
from hypothesis import strategies as st

PAIRS = [
    ("a100", "llama-3.1-8b", 1),
    ("h100", "llama-3.1-70b", 4),
    ("b200", "llama-3.1-8b", 8),
    ("h100", "gemma-3-12b", 1),
    ("h200", "glm-4.5", 8),
]
TABLES = Path(str(files("continuum_server.step_times"))) / "tables"
SHARED = Path(__file__).parents[4] / "shared"
needs_source = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="aiconfigurator-core is not installed"
)


@pytest.fixture(scope="module", params=PAIRS, ids=lambda pair: "-".join(map(str, pair)))
def times(request: pytest.FixtureRequest) -> StepTimes:
    return load_step_times(*request.param)


# --------------------------------------------------------------------------------------- the tables and their source


def test_spot_values_of_the_source() -> None:
    """As aiconfigurator-core 0.12.0 printed them when asked by hand (ms, without overhead)."""
    a100 = load_step_times("a100", "llama-3.1-8b", step_overhead_ms=0)
    assert a100.prefill_s(2048) * 1e3 == pytest.approx(125, rel=0.01)
    assert a100.prefill_s(32768) * 1e3 == pytest.approx(3430, rel=0.005)
    assert a100.prefill_s(131072) * 1e3 == pytest.approx(32946, rel=0.005)
    assert a100.step_s((), 16, 16 * 8192) * 1e3 == pytest.approx(22.3, rel=0.005)
    b200 = load_step_times("b200", "llama-3.1-8b", step_overhead_ms=0)
    assert b200.prefill_s(4096) * 1e3 == pytest.approx(46.0, rel=0.005)
    assert b200.step_s((), 64, 64 * 1024) * 1e3 == pytest.approx(4.9, rel=0.015)


@needs_source
@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [("llama-3.1-8b", "a100-80gb", 1), ("llama-3.1-8b", "h100-80gb", 1), ("llama-3.1-70b", "b200-180gb", 4)],
)
def test_interpolation_stays_close_to_the_source(model: str, gpu: str, tp: int) -> None:
    """Random batches off the grid: means under half a per cent, single points under 8%."""
    from step_times_check import interpolation_errors  # noqa: PLC0415

    for kind, errors in interpolation_errors(model, gpu, tp, points=200, seed=7).items():
        absolute = [abs(error) for error in errors]
        assert sum(absolute) / len(absolute) < 0.005, kind
        assert max(absolute) < 0.08, kind


@needs_source
def test_committed_table_is_what_the_builder_makes() -> None:
    committed = (TABLES / "h100-80gb_llama-3.1-8b_tp2.json").read_text(encoding="utf-8")
    assert build.to_text(build.build_table(find_model("llama-3.1-8b"), "h100-80gb", 2)) == committed


MEASURED_HEADS = [("llama-3.1-8b", degree) for degree in TENSOR_PARALLEL]
MEASURED_HEADS += [("qwen3-14b", 1), ("qwen3-32b", 2), ("qwen3-30b-a3b", 2), ("qwen3-235b-a22b", 4)]


@needs_source
@pytest.mark.parametrize("gpu", build.SYSTEMS)
def test_measured_ranges_are_those_of_the_packages_files(gpu: str) -> None:
    """``measured_up_to`` is what keeps the package's extrapolation from going unsaid."""
    pandas = pytest.importorskip("pandas")
    measured = build.MEASURED[gpu]
    data = Path(str(files("aiconfigurator_core"))) / "systems" / "data" / build.SYSTEMS[gpu]

    def read(operation: str, name: str):  # type: ignore[no-untyped-def]
        return pandas.read_parquet(data / operation / "vllm" / measured.vllm / f"{name}_perf.parquet")

    gemm = read("gemm", "gemm")
    assert gemm[gemm.gemm_dtype == "bfloat16"].m.max() == measured.gemm_tokens
    prompts = read("attention", "context_attention")
    assert prompts[prompts.head_dim == 128].isl.max() == measured.prefill_tokens
    decode = read("attention", "generation_attention")
    for name, tensor_parallel in MEASURED_HEADS:
        model = find_model(name)
        heads, kv_heads = model.query_heads // tensor_parallel, model.kv_heads // tensor_parallel
        mine = decode[(decode.num_heads == heads) & (decode.num_key_value_heads == kv_heads) & (decode.head_dim == 128)]
        mine = mine[mine.kv_cache_dtype == "bfloat16"]
        stated = build.measured_up_to(model, gpu, tensor_parallel)
        assert (mine.batch_size * mine.step).max() == pytest.approx(stated["decode_kv_tokens"], rel=1e-4)
        assert mine.step.max() == pytest.approx(stated["decode_context_tokens"], rel=1e-4)


def test_every_table_says_where_it_comes_from() -> None:
    found = sorted(TABLES.glob("*.json"))
    assert sum(file.stat().st_size for file in found) < 2_000_000
    for file in found:
        data = json.loads(file.read_text(encoding="utf-8"))
        assert file.name == f"{data['gpu']}_{data['model']}_tp{data['tensor_parallel']}.json"
        assert data["source"].startswith("NVIDIA aiconfigurator-core")
        assert data["version"] == build.PACKAGE_VERSION
        assert "Apache-2.0" in data["licence"]
        assert file.stat().st_size < 24_000
    assert "NVIDIA" in (TABLES / "NOTICE").read_text(encoding="utf-8")
    with pytest.raises(StepTimesError, match="continuum-step-times/1"):
        table_from_json({"format": "continuum-step-times/1"})


def test_building_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PACKAGE", "aiconfigurator-core-that-nobody-has")
    with pytest.raises(StepTimesError, match="pip install"):
        build.open_source("any", "h100_sxm", 1)


@given(
    values=st.lists(st.floats(1.0, 1e3), min_size=2, max_size=60),
    first=st.integers(1, 5),
)
def test_kept_grid_points_reproduce_the_rest(values: list[float], first: int) -> None:
    candidates = range(first, first + len(values))
    kept = build.knots(candidates, lambda x: (values[x - first],))
    assert (kept[0], kept[-1]) == (candidates[0], candidates[-1])
    for low, high in pairwise(kept):
        for x in range(low, high):
            line = values[low - first] + (values[high - first] - values[low - first]) * (x - low) / (high - low)
            assert line == pytest.approx(values[x - first], rel=build.TOLERANCE * 1.001)


# ------------------------------------------------------------------------------------------------------------- sanity


@given(batch=st.integers(1, 256), context=st.integers(1, 100_000), steps=st.integers(0, 60))
def test_stretches_are_bit_identical_to_steps(times: StepTimes, batch: int, context: int, steps: int) -> None:
    total = batch * context + context % batch
    stretch = times.decode_stretch_s(batch, total, steps)
    assert stretch == [times.step_s((), batch, total + i * batch) for i in range(steps)]


@given(batch=st.integers(1, 256), steps=st.integers(1, 200))
def test_a_stretch_that_ends_out_of_range_is_refused_like_its_last_step(
    times: StepTimes, batch: int, steps: int
) -> None:
    last = batch * 131072
    assert len(times.decode_stretch_s(batch, last - (steps - 1) * batch, steps)) == steps
    with pytest.raises(OutOfRange, match="mean decode context"):
        times.decode_stretch_s(batch, last - (steps - 1) * batch + 1, steps)
    with pytest.raises(OutOfRange, match="mean decode context"):
        times.step_s((), batch, last + 1)


@given(
    tokens=st.integers(1, 4000),
    prefix=st.integers(0, 60_000),
    batch=st.integers(1, 200),
    context=st.integers(2, 60_000),
)
def test_more_work_takes_no_less_time(times: StepTimes, tokens: int, prefix: int, batch: int, context: int) -> None:
    """Doubling any of them, or putting both in one step.

    The source dips where a measured kernel is faster at a larger size: a few per cent, more over eight GPUs, whose
    all-reduces change algorithm (docs/results/step-times.md).
    """
    dip = _dip(times)
    alone = times.prefill_s(tokens, prefix)
    assert alone <= times.prefill_s(2 * tokens, prefix) * dip
    assert alone <= times.prefill_s(tokens, 2 * prefix + 64) * dip
    decode = times.step_s((), batch, batch * context)
    assert decode <= times.step_s((), 2 * batch, 2 * batch * context) * dip
    assert decode <= times.step_s((), batch, 2 * batch * context) * dip
    together = times.step_s((PrefillChunk(tokens, prefix),), batch, batch * context)
    assert max(alone, decode) <= together * dip
    assert times.step_s((), 1, prefix + 1) <= times.prefill_s(tokens, prefix) * dip


@given(tokens=st.integers(512, 65_536), pieces=st.integers(2, 32))
def test_a_prompt_in_chunks_takes_as_long_as_whole_or_longer(times: StepTimes, tokens: int, pieces: int) -> None:
    size = -(-tokens // pieces)
    chunks = [PrefillChunk(min(size, tokens - start), start) for start in range(0, tokens, size)]
    assert sum(times.step_s((chunk,), 0, 0) for chunk in chunks) >= times.prefill_s(tokens) * 0.94


@given(data=st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 50_000)), min_size=1, max_size=4))
def test_chunks_add_their_attention(times: StepTimes, data: list[tuple[int, int]]) -> None:
    """step = shared(all tokens) + the chunks' attention, whatever their order."""
    chunks = [PrefillChunk(*pair) for pair in data]
    assert times.step_s(chunks, 0, 0) == pytest.approx(times.step_s(chunks[::-1], 0, 0))
    assert times.step_s(chunks, 0, 0) * _dip(times) >= max(times.prefill_s(*pair) for pair in data)


def _dip(times: StepTimes) -> float:
    """How much shorter the source may be at a larger size."""
    return 1.08 if times.provenance.tensor_parallel < 8 else 1.15


def test_what_the_engine_may_ask_is_covered(times: StepTimes) -> None:
    """256 requests in a step, 128K contexts, prompts of 128K, behind prefixes of 128K."""
    assert times.step_s((), 256, 256 * 131072) > times.step_s((), 256, 256) > 0
    assert times.prefill_s(131072) > times.prefill_s(8192, 131072 - 8192) > times.prefill_s(1, 131072 - 1) > 0
    assert times.step_s([PrefillChunk(1, 0)] * 200 + [PrefillChunk(7936, 100_000)], 256, 256 * 4096) > 0


def test_overhead_is_added_once_a_step(times: StepTimes) -> None:
    origin = times.provenance
    pair = origin.gpu, origin.model, origin.tensor_parallel
    times, slower = (load_step_times(*pair, step_overhead_ms=overhead_ms) for overhead_ms in (1.0, 3.5))
    for batch in ((), 4, 4000), ((PrefillChunk(100, 7), PrefillChunk(9, 0)), 3, 300):
        assert slower.step_s(*batch) - times.step_s(*batch) == pytest.approx(2.5e-3)
    assert slower.provenance.step_overhead_ms == 3.5


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("chunk", "decodes", "context", "message"),
    [
        ((), 513, 513_000, "decoding requests = 513: outside 1 to 512"),
        ((), 2, 1, "mean decode context = 0.5"),
        ((131_073, 0), 0, 0, "chunk tokens = 131073"),
        ((0, 0), 0, 0, "chunk tokens = 0"),
        ((16, 131_073), 0, 0, "prefix tokens = 131073"),
        ((100_000, 100_000), 0, 0, r"prefix \+ chunk tokens = 200000"),
        ((16, -1), 0, 0, "prefix tokens = -1"),
        ((), 0, 0, "tokens in a step"),
    ],
)
def test_nothing_is_extrapolated(
    times: StepTimes, chunk: tuple[int, int] | tuple[()], decodes: int, context: int, message: str
) -> None:
    with pytest.raises(OutOfRange, match=message):
        times.step_s([PrefillChunk(*chunk)] if chunk else [], decodes, context)


@pytest.mark.parametrize(
    ("gpu", "model", "degree", "message"),
    [
        ("tpu", "llama-3.1-8b", 1, r"'tpu'.*h100-80gb"),
        ("h100", "gpt-2", 1, r"'gpt-2'.*glm-4\.5"),
        ("h100", "llama-3.1-8b", 3, "1, 2, 4, 8"),
        ("l40s", "gemma-3-12b", 4, "over PCIe"),
    ],
)
def test_unknown_names_list_what_exists(gpu: str, model: str, degree: int, message: str) -> None:
    with pytest.raises(UnknownPair, match=message):
        load_step_times(gpu, model, degree)
    with pytest.raises(OutOfRange, match="step_overhead_ms"):
        load_step_times("h100", "llama-3.1-8b", step_overhead_ms=-1)


# ----------------------------------------------------------------------------------------------- roofline and capacity


def test_the_roofline_is_near_the_measured_tables() -> None:
    """It was fitted to those of dense models; 30% is what docs/results/step-times.md says of single points.

    GLM and DeepSeek have no table; what they may be off by is what the mixtures with one are off by.
    """
    pytest.importorskip("scipy")
    from continuum_server.step_times.roofline import Shares  # noqa: PLC0415
    from step_times_check import roofline_errors  # noqa: PLC0415

    for gpu, degree in product(("a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb"), TENSOR_PARALLEL):
        for model in build.MODELS:
            found = roofline_errors(gpu, model, degree, Shares())
            errors = [abs(error) for kind in found.values() for error in kind]
            assert sum(errors) / len(errors) < 0.16
            assert max(errors) < 0.35
    for model in ("qwen3-30b-a3b", "qwen3-235b-a22b", "gpt-oss-20b", "gpt-oss-120b"):
        cases = [(gpu, degree) for name, gpu, degree in build.pairs() if name == model]
        assert cases
        each = [roofline_errors(gpu, model, degree, None) for gpu, degree in cases]
        errors = [error for found in each for kind in found.values() for error in kind]
        assert sum(map(abs, errors)) / len(errors) < 0.17
        assert abs(sum(errors) / len(errors)) < 0.1


@given(tokens=st.integers(1, 60), prefix=st.integers(0, 60), window=st.integers(1, 40))
def test_window_pairs_count_what_queries_see(tokens: int, prefix: int, window: int) -> None:
    counted = sum(min(prefix + i + 0.5, window) for i in range(tokens))
    assert window_pairs(tokens, prefix, window) == pytest.approx(counted, abs=tokens * 0.5)


def test_window_layers_make_long_contexts_cheaper() -> None:
    gemma, llama = find_model("gemma-3-12b"), find_model("llama-3.1-8b")
    assert gemma.kv_bytes_per_token == 8 * 2 * 2 * 8 * 256
    assert llama.window_bytes_per_request == 0
    times = RooflineStepTimes(find_gpu("h100"), gemma, 1, 0.0)
    near, far = (times.step_s((), 8, 8 * n) - times.step_s((), 8, 8 * n // 2) for n in (1024, 65536))
    assert far / 64 < near * 0.4


def test_capacity_is_its_arithmetic() -> None:
    capacity = kv_capacity("a100", "llama-3.1-8b", utilization=0.9)
    room = capacity.memory_bytes * 0.9 - capacity.weight_bytes - capacity.reserved_bytes
    assert capacity.bytes_per_token == 2 * 2 * 32 * 8 * 128
    assert capacity.num_blocks == int(room // (16 * 131072))
    assert capacity.tokens == 16 * capacity.num_blocks
    assert 427_000 < capacity.tokens < 452_000  # aisimulate's figure; the largest in public vLLM logs of 80 GB cards
    assert kv_capacity("a100", "llama-3.1-8b", 2).tokens > 2 * capacity.tokens
    assert kv_capacity("a100", "gemma-3-12b").window_bytes == 16 * 40 * 1024 * 2 * 2 * 8 * 256  # room set aside
    assert json.loads(json.dumps(asdict(capacity)))["utilization"] == 0.9
    with pytest.raises(DoesNotFit, match=re.escape("llama-3.1-70b does not fit 1 x a100-80gb")):
        kv_capacity("a100", "llama-3.1-70b")
    with pytest.raises(OutOfRange, match=r"utilisation = 1\.2"):
        kv_capacity("a100", "llama-3.1-8b", utilization=1.2)
    with pytest.raises(OutOfRange, match="block size = 0"):
        kv_capacity("a100", "llama-3.1-8b", block_size=0)


def test_available_says_which_are_measured() -> None:
    found = available()
    kinds = {(p.gpu, p.model, p.tensor_parallel): p.kind for p in found}
    assert kinds["h100-80gb", "llama-3.1-8b", 8] == "measured-table"
    assert kinds["h100-80gb", "gemma-3-12b", 1] == "roofline"
    assert kinds["a100-40gb", "llama-3.1-8b", 1] == "roofline"
    assert ("l40s", "glm-4.5", 8) not in kinds
    assert kinds["h100-80gb", "qwen3-coder-30b-a3b", 1] == "measured-table"
    pcie = [gpu.name for gpu in GPUS if gpu.link_gb_s < 100]
    over_pcie = [(p.gpu, p.kind) for p in found if p.gpu in pcie]
    models = {p.model for p in found}
    assert models >= {model.name for model in MODELS}
    assert over_pcie.count(("rtx-4090", "roofline")) == len(models) * 2
    assert len(found) - len(over_pcie) == (len(GPUS) - len(pcie)) * len(models) * len(TENSOR_PARALLEL)


def test_provenance_is_plain_and_labelled(times: StepTimes) -> None:
    origin = times.provenance
    plain = json.loads(json.dumps(asdict(load_step_times(origin.gpu, origin.model, origin.tensor_parallel).provenance)))
    assert plain["step_overhead_ms"] == ASYNCHRONOUS.step_ms
    assert plain["attention"].split(":")[0] in ("FlashAttention-2", "FlashAttention-3", "FlashInfer/TRT-LLM")
    assert ("no measurement" in plain["source"]) == (plain["kind"] == "roofline")
    assert plain["kind"] == "roofline" or "prompts to 16384 tokens" in plain["notes"]


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
    if not (SHARED / "validation").exists():
        pytest.skip("the kernel times are not in the repository")
    from validation import dense_lines  # noqa: PLC0415

    rows = [line.split(" | ") for line in dense_lines(SHARED) if "the card's" in line]
    assert len(rows) == 3
    for row in rows:
        assert float(row[4].removesuffix("%")) < 4.0
