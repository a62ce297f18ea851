"""Pipeline stages: how layers are divided, how long a step takes, how much KV fits, and an engine with stages."""

from __future__ import annotations

from itertools import product

import pytest
from continuum_server.step_times.catalog import GIB, kv_capacity, load_step_times
from continuum_server.step_times.model import OutOfRange, PrefillChunk
from continuum_server.step_times.specs import MODELS
from continuum_server.step_times.stages import StagedStepTimes, layers_of_stages, staged
from continuum_server.virtual.config import EngineConfig, describe, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, Turn
from vllm.distributed.utils import get_pp_indices

TIMES = load_step_times("h100", "llama-3.1-70b", 4, 0.0)


def test_layers_are_divided_as_vllm_does() -> None:
    for layers, stages in product({model.layers for model in MODELS}, (1, 2, 3, 4, 5, 8)):
        bounds = [get_pp_indices(layers, rank, stages) for rank in range(stages)]
        assert layers_of_stages(layers, stages) == [end - start for start, end in bounds]
    for stages in (0, 81):
        with pytest.raises(OutOfRange, match=f"{stages} pipeline stages: the model's 80 layers make 1 to 80 stages"):
            staged(TIMES, 80, stages, 2048)


def test_requests_are_dealt_to_as_many_batches_as_stages() -> None:
    """One stage changes nothing, and a request alone passes all."""
    assert staged(TIMES, 80, 1, 2048) is TIMES
    two, chunk = staged(TIMES, 80, 2, 2048), [PrefillChunk(1024, 0)]
    for dealt, whole in (
        (((), 1, 1000), ((), 1, 1000)),
        (((), 64, 64_000), ((), 32, 32_000)),
        ((chunk, 3, 3000), (chunk, 1, 1000)),
    ):
        assert two.step_s(*dealt) == TIMES.step_s(*whole)
    uneven = StagedStepTimes(TIMES, 2, 0.75, 2048)  # the busier stage must pass all batches
    assert uneven.step_s((), 64, 64_000) == pytest.approx(1.5 * TIMES.step_s((), 32, 32_000))
    assert two.decode_stretch_s(7, 7000, 5) == [two.step_s((), 7, 7000 + 7 * n) for n in range(5)]


def test_a_chunk_for_several_batches_is_cut() -> None:
    """In one pass the stages compute two chunks of one prompt."""
    two = staged(TIMES, 80, 2, 2048)
    pieces = [TIMES.prefill_s(2048), TIMES.prefill_s(2048, 2048)]
    assert two.prefill_s(4096) == max(pieces)
    assert two.prefill_s(16 * 2048) > 7 * max(pieces)


def test_memory_is_that_of_the_stage_with_least_room() -> None:
    one = kv_capacity("h100", "llama-3.1-70b", 4)
    two = kv_capacity("h100", "llama-3.1-70b", 2, stages=2)
    assert two.num_blocks == pytest.approx(one.num_blocks, rel=0.01)
    uneven = kv_capacity("h100", "glm-4.5-air", 2, stages=4)  # 11, 12, 12, 11 layers
    room = (uneven.memory_bytes * 0.9 - uneven.reserved_bytes) * 2 - (uneven.weight_bytes - 2.5 * GIB) * 12 / 46
    assert uneven.num_blocks == pytest.approx(room / (uneven.bytes_per_token * 12 / 46 * 16), rel=0.01)
    tied = kv_capacity("h100", "gemma-3-12b", 1, stages=2)
    assert tied.num_blocks > 2 * kv_capacity("h100", "gemma-3-12b").num_blocks


def test_an_engine_with_stages_and_without_prefix_caching() -> None:
    """Stages raise throughput, not the speed of one request. Without prefix caching a second turn computes all."""
    jobs = [Job(Program(f"p{n}", (Turn(3000, 40), Turn(200, 40, carried_tokens=3040))), 0.0) for n in range(24)]

    def end_s(**changed: object) -> float:
        config = EngineConfig(gpu="h100", model="llama-3.1-70b", tp=4, **changed)  # type: ignore[arg-type]
        engine = build_engine(shape_of(config), times_of(config), settings_of(config, "vllm", {}), jobs)
        engine.play(jobs)
        assert engine.close() == 0
        return engine.loop.now_s

    one = end_s()
    assert 0.45 * one < end_s(pp=2) < 0.75 * one
    assert end_s(prefix_caching=False) > 1.5 * one


def test_what_is_said_of_stages() -> None:
    assert "3 pipeline stages, the busiest with 34% of a batch's time" in staged(TIMES, 80, 3, 512).provenance.notes
    found = describe(EngineConfig(gpu="h100", model="llama-3.1-70b", tp=2, pp=2))
    assert (found.hardware.pipeline_parallel, found.engine_options.prefix_caching) == (2, True)
