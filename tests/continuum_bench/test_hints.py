"""Hints of a workload: true, wrong or lies; the same for every policy, and sent on both engines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from continuum_bench.errors import BenchError
from continuum_bench.options.forms import HINTS
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.hints import KINDS, HintError, Lies, hint_kind, lies
from continuum_bench.workload.workload import JobSource, load_workload
from continuum_server.virtual.loop import play_of
from continuum_traces.playing.conversation import Job, Send, go_on
from continuum_traces.schema import Tags
from hypothesis import given
from hypothesis import strategies as st


def workload(hints: str, error: str = "0") -> JobSource:
    return load_workload("swebench", TraceOptions(num_programs=12), ArrivalOptions(0.1, hints=hints, hint_error=error))


def told(jobs: Sequence[Job], name: str) -> list[float]:
    return [getattr(tags, name) for job in jobs for tags in job.hints if getattr(tags, name) is not None]


def truths(jobs: Sequence[Job]) -> list[float]:
    return [turn.slowest_tool.end_s for job in jobs for turn in job.program.turns[:-1] if turn.slowest_tool]


def test_true_hints_say_what_the_trace_holds() -> None:
    assert ("none", *KINDS) == HINTS.names
    jobs = workload("tool_s").jobs(0)
    assert told(jobs, "pred_tool_s") == told(jobs, "last_tool_duration_s") == truths(jobs)
    slowest = [turn.slowest_tool for job in jobs for turn in job.program.turns[:-1]]
    assert told(jobs, "pred_tool") == [call.name for call in slowest if call]
    wishes = told(workload("kv_ttl").jobs(0), "kv_ttl_s")
    assert wishes == [pytest.approx(1.1 * t.gap_s) for job in jobs for t in job.program.turns[:-1]]


def test_a_retention_time_is_asked_for_with_every_turn() -> None:
    """Also with the last: agents do not know that it is."""
    jobs = workload("kv_ttl:300").jobs(0)
    assert told(jobs, "kv_ttl_s") == [300.0] * sum(len(job.program.turns) for job in jobs)


@pytest.mark.parametrize(("hints", "taken"), [("86400", True), ("86401", False), ("0", False), ("x", False)])
def test_a_retention_time_is_above_0_and_at_most_a_day(hints: str, taken: bool) -> None:
    if taken:
        assert hint_kind(f"kv_ttl:{hints}") is not None
    else:
        with pytest.raises(
            BenchError, match=rf"--hints kv_ttl:{hints}: expected kv_ttl\[:SECONDS\], above 0 and at most a day"
        ):
            hint_kind(f"kv_ttl:{hints}")


def test_errors_depend_on_the_seed_alone() -> None:
    noisy = workload("tool_s", "0.5")
    assert noisy.jobs(3) == noisy.jobs(3)
    assert told(noisy.jobs(3), "pred_tool_s") != told(noisy.jobs(4), "pred_tool_s")
    ratios = [said / true for said, true in zip(told(noisy.jobs(0), "pred_tool_s"), truths(noisy.jobs(0)), strict=True)]
    assert 0.5 < sum(0.61 < ratio < 1.65 for ratio in ratios) / len(ratios) < 0.85


def test_a_share_of_the_programs_lies() -> None:
    every, third = workload("tool_s", "adversarial").jobs(0), workload("tool_s", "adversarial:0.34").jobs(0)
    wrong = [job.hints == lie.hints for job, lie in zip(third, every, strict=True)]
    assert wrong == [lies(number, HintError(adversaries=0.34)) for number in range(12)]
    assert sum(wrong) == 4
    silent = workload("tool_s", "adversarial:0.34:silent").jobs(0)
    assert [not job.hints for job in silent] == [not lie for lie in wrong]


@given(st.floats(0.0, 1e5))
def test_lies_are_far_from_the_truth(truth_s: float) -> None:
    said = Lies().seconds(truth_s)
    assert truth_s == 0.0 or not truth_s / 10 < said < truth_s * 10 or said == 86_400.0
    assert said >= truth_s if truth_s < 5.0 else said < truth_s


def test_hints_are_sent_beside_the_tags_of_the_replay() -> None:
    """By the virtual engine; test_tags.py has the live one."""
    hinted, plain = workload("tool_s"), workload("none")
    for number, (job, bare) in enumerate(zip(hinted.jobs(0), plain.jobs(0), strict=True)):
        sent, without = (_tags(play_of(number, each, 16)) for each in (job, bare))
        assert sent.pred_tool_s is not None
        kept = {name: getattr(sent, name) for name in ("program_id", "is_last_step", "this_func_call", "turn_id")}
        assert Tags(**kept) == without


def _tags(play: object) -> Tags:
    for _ in range(2):
        action = go_on(play.conversation, None, lambda record: None)  # type: ignore[attr-defined]
    assert isinstance(action, Send)
    return action.tags


def test_part_of_the_identity_of_a_run() -> None:
    assert "hints" not in workload("none").facts.more
    facts = workload("tool_s", "0.5").facts.more
    assert (facts["hints"], facts["hint_error"]) == ("tool_s", "0.5")
