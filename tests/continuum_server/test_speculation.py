"""Speculative decoding in the virtual engine: the tokens of each step, its time, and the blocks that drafts take."""

from __future__ import annotations

from itertools import accumulate

import pytest
from continuum_server.step_times.cache_groups import layout_of
from continuum_server.step_times.catalog import find_model, load_step_times
from continuum_server.step_times.model import PrefillChunk, StepTimesError
from continuum_server.step_times.speculation import (
    Speculation,
    SpeculativeStepTimes,
    draft_share,
    read_speculation,
)
from continuum_server.virtual.config import EngineConfig, EngineError, describe, times_of
from continuum_traces.playing.conversation import Job
from nano import GROUPED, NANO, PlainTimes, play, program

NANOS = {"one group": (NANO, 64), **GROUPED}


@pytest.mark.parametrize(("length", "tokens"), [(1.0, [1, 1, 1, 1]), (2.5, [2, 3, 2, 3]), (2.78, [2, 3, 3, 3])])
def test_a_steps_tokens_add_up_to_the_acceptance_length(length: float, tokens: list[int]) -> None:
    """The first n steps yield the whole tokens of n times the length; ``steps`` is the inverse."""
    speculation = Speculation(3, length)
    assert [speculation.tokens(step) for step in range(4)] == tokens
    for steps, done in enumerate(accumulate(map(speculation.tokens, range(100))), 1):
        assert done == int(round(steps * length * 100) // 100)
        assert speculation.steps(done) == steps


@pytest.mark.parametrize("text", ["3:1", "3:4", "1:2", "99:2.123456"])
def test_bounds_are_allowed(text: str) -> None:
    assert str(read_speculation(text).drafts) == text.split(":")[0]


@pytest.mark.parametrize("text", ["3:0.999", "3:4.001", "0:1", "3", "a:2", "3:", "3:2.1234567", "100:2", "-3:2"])
def test_others_get_one_line(text: str) -> None:
    with pytest.raises(StepTimesError, match=r"^--speculative .*") as error:
        read_speculation(text)
    assert "\n" not in str(error.value)


def test_a_step_verifies_all_drafts_and_pays_for_making_them() -> None:
    """Of a memory-bound decode step, verification costs little; drafts cost their share each; chunks cost no more."""
    alone, model = load_step_times("h100", "llama-3.1-8b"), find_model("llama-3.1-8b")
    share = draft_share(model)
    layer = 2 * 4096 * (32 + 8) * 128 + 3 * 4096 * 14336
    assert share == pytest.approx((1 + 128256 * 4096 / layer) / (32 + 128256 * 4096 / layer))
    with_drafts = SpeculativeStepTimes(alone, Speculation(3, 2.8), share)
    plain_s, made_s = alone.step_s((), 8, 8 * 8000), with_drafts.step_s((), 8, 8 * 8000)
    assert 1 + 3 * share < made_s / plain_s < 1.2 + 3 * share
    chunk = PrefillChunk(512, 1000)
    assert with_drafts.step_s((chunk,), 0, 0) == alone.step_s((chunk,), 0, 0)
    assert with_drafts.answer_s(8000, 28) == pytest.approx(10 * with_drafts.step_s((), 1, 8000), rel=0.01)


@pytest.mark.parametrize("name", NANOS)
def test_an_answer_takes_the_steps_of_the_acceptance_length(name: str) -> None:
    """29 tokens after the first at 2.5 a step take 12 steps, the last of which yields only what is left."""
    model, blocks = NANOS[name]
    jobs = [Job(program("a", 3, 40, 30), 0.0)]
    plain = play(jobs, model=model, blocks=blocks, times=PlainTimes(), token_times=True)
    fast = play(jobs, model=model, blocks=blocks, times=PlainTimes(), speculation=Speculation(3, 2.5), token_times=True)
    assert plain.loop.counters.engine_steps - fast.loop.counters.engine_steps == 3 * (29 - 12)
    assert fast.loop.counters.decode_tokens >= plain.loop.counters.decode_tokens == 3 * 29
    for turn in fast.turns:
        assert sum((turn.token_gaps_ms or {}).values()) == 29  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NANOS)
def test_many_requests_under_pressure_leave_nothing_behind(name: str) -> None:
    model, blocks = NANOS[name]
    jobs = [Job(program(f"p{number}", 4, 60, 37), 0.1 * number) for number in range(6)]
    for policy in ("vllm", "continuum", "working-set"):
        play(jobs, policy, model=model, blocks=blocks, speculation=Speculation(3, 2.78))


def test_a_draft_has_a_state_of_its_own() -> None:
    """A request of Qwen3.6-35B-A3B keeps three more states in each of three groups, and blocks grow by the inputs of
    the convolution: (2,146,304 + 3 x 16,384) / 2,048 tokens, up to the next 16."""
    model = find_model("qwen3.6-35b-a3b")
    plain, drafting = layout_of(model), layout_of(model, drafts=3)
    assert drafting.blocks(100) - plain.blocks(100) == 3 * 3
    assert (plain.block_size, drafting.block_size) == (1056, 1072)


def test_it_is_said_in_the_manifest_and_refused_with_a_profile() -> None:
    config = EngineConfig(speculation=Speculation(3, 2.8))
    description = describe(config)
    assert any("speculative decoding" in line for line in description.modelled)
    assert "3 drafts" in times_of(config).provenance.notes
    with pytest.raises(EngineError, match="--speculative and --profile"):
        times_of(EngineConfig(speculation=Speculation(3, 2.8), profile="p.json"))
