"""The gaps between output tokens that the virtual engine records."""

from __future__ import annotations

from dataclasses import replace

from continuum_traces.conversation import Job
from hypothesis import given, settings
from nano import play
from test_virtual import workloads


@given(jobs=workloads())
@settings(max_examples=12)
def test_gaps_are_those_between_the_engine_steps(jobs: list[Job]) -> None:
    """Programs preempt each other in this pool. A turn of n tokens has n - 1 gaps, which fill the time from its first
    token to its last; skipping steps changes none, and recording changes nothing else."""
    skipping, stepwise = (play(jobs, blocks=48, token_times=True, max_stretch=most).turns for most in (512, 1))
    assert skipping == stepwise
    assert [replace(turn, token_gaps_ms=None) for turn in skipping] == play(jobs, blocks=48).turns
    for turn in skipping:
        assert turn.token_gaps_ms is not None
        assert sum(turn.token_gaps_ms.values()) == turn.output_tokens - 1  # type: ignore[operator]
        total_s = sum(float(gap_ms) * number for gap_ms, number in turn.token_gaps_ms.items()) / 1e3
        span_s = turn.finish_s - turn.first_token_s  # type: ignore[operator]
        assert abs(total_s - span_s) <= 0.005 * span_s
