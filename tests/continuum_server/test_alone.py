"""What a turn takes on an empty engine, which virtual runs record: computed, and equal to a run that is empty."""

from __future__ import annotations

import pytest
from continuum_server.virtual.alone import alone_turns_s
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import TurnRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import PlainTimes, play, program, workloads


def took_s(records: list[TurnRecord]) -> list[float]:
    return [record.finish_s - record.sent_s for record in records if record.finish_s is not None]


@given(jobs=workloads(), chunk_tokens=st.sampled_from([9, 16, 256]), request_s=st.sampled_from([0.0, 0.05]))
@settings(max_examples=25)
def test_it_is_what_an_empty_engine_takes(jobs: list[Job], chunk_tokens: int, request_s: float) -> None:
    """Also where the end of an answer, but not all of it, is repeated, and where a prompt takes several chunks."""
    job, times = jobs[0], PlainTimes(request_s)
    records = play([job], chunk_tokens=chunk_tokens, max_num_seqs=2, times=times).turns
    assert [record.alone_s for record in records] == pytest.approx(took_s(records))
    computed = alone_turns_s(job.program, times, chunk_tokens, 16)
    assert [record.alone_s for record in records] == pytest.approx(computed)


def test_what_a_request_costs_besides_its_steps_passes_before_its_first_token() -> None:
    job = Job(program("p"), 1.0)
    plain, costly = (play([job], times=PlainTimes(request_s)).turns for request_s in (0.0, 0.05))
    for before, after in zip(plain, costly, strict=True):
        assert before.prompt_tokens == after.prompt_tokens
        assert before.prompt_tokens is not None
        extra_s = 0.05 + 1e-5 * before.prompt_tokens
        assert (after.sent_s, after.due_s) == pytest.approx((after.due_s, after.due_s))  # the client is not late
        for name in ("first_token_s", "finish_s"):
            took, longer = (getattr(record, name) - record.due_s for record in (before, after))
            assert longer == pytest.approx(took + extra_s)


def test_company_does_not_change_it() -> None:
    jobs = [Job(program(f"p{number}"), 0.1 * number) for number in range(8)]
    records = play(jobs, blocks=24).turns
    alone = [record.alone_s for record in play(jobs[:1]).turns]
    for number in range(8):
        assert [record.alone_s for record in records if record.program_id == f"p{number}"] == alone
    assert any(took > record.alone_s for took, record in zip(took_s(records), records, strict=True) if record.alone_s)
