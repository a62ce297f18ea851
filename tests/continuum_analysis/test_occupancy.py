"""What fills the pool, and where programs spend their time: by hand."""

from __future__ import annotations

import pytest
from continuum_analysis.records.occupancy import occupancy
from continuum_analysis.records.reading import add_client_records, order_events
from continuum_analysis.report.program_timeline import segments
from continuum_traces.schema import SchedulerEvent, TurnRecord

E = SchedulerEvent
EVENTS = [
    E(0.0, "arrive", "p", 0, prompt_tokens=100),
    E(1.0, "start", "p", 0, prompt_tokens=100, hit_tokens=20),
    E(4.0, "preempt", "p", 0),
    E(5.0, "resume", "p", 0, prompt_tokens=100, hit_tokens=0),
    E(7.0, "finish", "p", 0, output_tokens=50, tool="ls", status="stop"),
    E(7.0, "pin", "p", 0, ttl_s=2.0, tokens=144),
    E(8.0, "arrive", "p", 1, prompt_tokens=200),
    E(9.0, "start", "p", 1, prompt_tokens=200, hit_tokens=144),
    E(9.0, "unpin", "p", 0, reason="hit", tokens=144),
    E(10.0, "finish", "p", 1, output_tokens=10, status="stop"),
]
FIRST_TOKENS = [TurnRecord("p", 0, 100.0, 100.0, first_token_s=102.0, finish_s=107.0, gap_s=1.0)]


def test_occupancy_by_hand() -> None:
    programs = add_client_records(order_events(EVENTS), FIRST_TOKENS)
    found = occupancy(programs, instants=21)  # every half second
    at = dict(zip(found.times_s.tolist(), zip(found.running.tolist(), found.pinned.tolist(), strict=True), strict=True))
    assert at[0.5] == (0.0, 0.0)  # in the queue
    assert at[1.5] == (60.0, 0.0)  # half-way from 20 cached to the prompt of 100 at the first token
    assert at[3.0] == (100 + 50 / 5, 0.0)  # a fifth of the output
    assert at[4.5] == (0.0, 0.0)  # preempted
    assert at[8.0] == (0.0, 144.0)  # held while the tool runs, and while its program waits
    assert at[8.5] == (0.0, 144.0)
    assert at[9.5] == (144 + (210 - 144) / 2, 0.0)  # no first token recorded: evenly to the end


def test_no_programs_fill_nothing() -> None:
    assert occupancy([]).times_s.size == 0


def test_segments_cover_a_programs_time() -> None:
    (program,) = add_client_records(order_events(EVENTS), FIRST_TOKENS)
    found = [(kind, since, until) for kind, since, until in segments(program) if until > since]
    assert found == [
        ("queue", 0.0, 1.0),
        ("prefill", 1.0, 2.0),
        ("decode", 2.0, 7.0),
        ("queue", 4.0, 5.0),
        ("tool", 7.0, 8.0),
        ("queue", 8.0, 9.0),
        ("decode", 9.0, 10.0),
        ("pin", 7.0, 9.0),
    ]
    covered = sum(until - since for kind, since, until in found if kind != "pin" and since != 4.0)
    assert covered == pytest.approx(program.jct_s)
