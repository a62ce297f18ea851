"""What a turn takes on an empty engine, which virtual runs record: computed, and equal to a run that is empty."""

from __future__ import annotations

import pytest
from continuum_server.virtual.alone import alone_turns_s
from continuum_traces.conversation import Job
from continuum_traces.schema import TurnRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import PlainTimes, play, program, workloads


def took_s(records: list[TurnRecord]) -> list[float]:
    return [record.finish_s - record.sent_s for record in records if record.finish_s is not None]


@given(jobs=workloads(), chunk_tokens=st.sampled_from([9, 16, 256]))
@settings(max_examples=25)
def test_it_is_what_an_empty_engine_takes(jobs: list[Job], chunk_tokens: int) -> None:
    """Also where the end of an answer, but not all of it, is repeated, and where a prompt takes several chunks."""
    job = jobs[0]
    records = play([job], chunk_tokens=chunk_tokens, max_num_seqs=2).turns
    assert [record.alone_s for record in records] == pytest.approx(took_s(records))
    computed = alone_turns_s(job.program, PlainTimes(), chunk_tokens, 16)
    assert [record.alone_s for record in records] == pytest.approx(computed)


def test_company_does_not_change_it() -> None:
    jobs = [Job(program(f"p{number}"), 0.1 * number) for number in range(8)]
    records = play(jobs, blocks=24).turns
    alone = [record.alone_s for record in play(jobs[:1]).turns]
    for number in range(8):
        assert [record.alone_s for record in records if record.program_id == f"p{number}"] == alone
    assert any(took > record.alone_s for took, record in zip(took_s(records), records, strict=True) if record.alone_s)
