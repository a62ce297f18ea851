"""Synthetic programs have the published statistics; fits carry statistics and nothing else."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from continuum_traces.programs.jsonl import TraceError
from continuum_traces.programs.stats import TABLE_2, slowest_tenth_share, trace_stats
from continuum_traces.programs.synth import (
    BUNDLED,
    PROFILES,
    Reading,
    WorkloadProfile,
    bundled,
    compact,
    fit,
    load_profile,
    scale_turns,
    synthesize,
)
from continuum_traces.schema import Program, Turn
from continuum_traces.typed import from_json


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 7))])
@pytest.mark.parametrize("reading", ["context", "cumulative"])
@pytest.mark.parametrize("name", ["swebench", "bfcl"])
def test_table_2_within_five_percent(name: str, reading: Reading, seed: int) -> None:
    profile, published = load_profile(name), TABLE_2[name]
    programs = synthesize(profile, 1000, seed, reading)
    found = trace_stats(programs)
    tokens = found.tokens_context if reading == "context" else found.tokens_cumulative
    for own, theirs in ((found.turns, published.turns), (found.gap_ms, published.gap_ms), (tokens, published.tokens)):
        assert own.mean == pytest.approx(theirs.mean, rel=0.05)
        assert own.std == pytest.approx(theirs.std, rel=0.05)
    times = [
        c.duration_s or 0.0 for p in programs for t in p.turns for c in t.tool_calls if c.name == published.slowest_tool
    ]
    assert slowest_tenth_share(times) == pytest.approx(published.slowest_tenth_share, rel=0.05)
    assert found.synthetic


@pytest.mark.parametrize(("name", "scale"), [("swebench", 1.0), ("bfcl", 0.4)])
def test_bundled_sets_are_what_the_command_makes(name: str, scale: float) -> None:
    programs = list(bundled(name))
    assert programs == synthesize(load_profile(name), 100, 2026, "context", scale)
    assert programs != synthesize(load_profile(name), 100, 2027, "context", scale)
    assert max(p.final_context_tokens for p in programs) <= 131072
    assert all(p.synthetic for p in programs)
    assert set(BUNDLED) <= set(PROFILES)


def test_a_fit_gives_back_what_it_was_fitted_to() -> None:
    programs = synthesize(load_profile("swebench"), 400, 3)
    profile = from_json(WorkloadProfile, json.loads(json.dumps(dataclasses.asdict(fit(programs, "again")))))
    again = trace_stats(synthesize(profile, 400, 4))
    first = trace_stats(programs)
    for name in ("turns", "gap_ms", "tokens_context"):
        assert getattr(again, name).mean == pytest.approx(getattr(first, name).mean, rel=0.08), name
    text = json.dumps(dataclasses.asdict(profile))
    assert all(p.program_id not in text for p in programs)


def test_turn_scaling_keeps_the_context() -> None:
    program = synthesize(load_profile("swebench"), 1, 0)[0]
    for k in (2, 3, 5):
        scaled = scale_turns(program, k)
        assert len(scaled.turns) == k * len(program.turns)
        assert (scaled.shared_prefix_id, scaled.shared_prefix_tokens) == (program.shared_prefix_id, 1200 // k)
        assert scaled.final_context_tokens == pytest.approx(program.final_context_tokens, rel=0.03)
    rewritten = Program("p", (Turn(100, 10), Turn(20, 10, kept_tokens=50)))
    assert [turn.kept_tokens for turn in scale_turns(rewritten, 2).turns] == [None] * 4  # no repetition cuts the others


def test_a_prefix_is_shared_by_two_programs_or_more() -> None:
    turns = (Turn(500, 10),)
    named = [Program(n, turns, shared_prefix_id=n[0], shared_prefix_tokens=100 * int(n[1])) for n in ("a1", "a3", "b2")]
    found = trace_stats([*named, Program("none", turns)])
    assert (found.sharing_a_prefix, found.shared_prefix_tokens) == (2, 200.0)


def test_mistakes() -> None:
    with pytest.raises(TraceError, match="bfcl"):
        next(bundled("moon"))
    with pytest.raises(TraceError, match="no programs"):
        trace_stats([])


def test_claude_code_shapes() -> None:
    """What is known of the recorded ones; all programs begin with the same system prompt."""
    programs = synthesize(load_profile("claude-code"), 100, 2026)
    found = trace_stats(programs)
    gaps_s = [turn.gap_s for program in programs for turn in program.turns[:-1]]
    assert (found.turns.mean, found.tokens_context.mean) == pytest.approx((51, 56_000), rel=0.02)
    assert (np.mean(gaps_s), np.percentile(gaps_s, 99)) == pytest.approx((3.4, 20.0), rel=0.05)
    assert {(program.shared_prefix_id, program.shared_prefix_tokens) for program in programs} == {
        ("claude-code-system", 16_000)
    }
    assert found.synthetic


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile(name: str) -> None:
    programs = synthesize(load_profile(name), 100, 2026)
    assert programs == synthesize(load_profile(name), 100, 2026)
    assert all(isinstance(program.final_context_tokens, int) and program.synthetic for program in programs)
    if name == "long-prompts":
        prompts = [tokens for program in programs for tokens in program.prompt_tokens()]
        assert 77_000 < min(prompts) <= max(prompts) < 84_000


def test_a_compacted_program_begins_again_with_its_first_prompt_and_a_summary() -> None:
    program = Program("a", (Turn(1000, 10), Turn(500, 10), Turn(700, 10), Turn(20, 10)))
    for most_tokens in (1520, 2229):  # after the second turn, and one less than after the third
        compacted = compact(program, most_tokens)
        assert [turn.kept_tokens for turn in compacted.turns] == [None, None, None, 1000]
        assert compacted.turns[-1].new_input_tokens == 2000 + 20
        assert compacted.final_context_tokens == 1000 + 2000 + 20 + 10
    assert compact(program, 1519).turns[2].kept_tokens == 1000
    assert compact(program, 10_000).turns == program.turns
