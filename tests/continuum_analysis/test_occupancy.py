"""What fills the pool, and where programs spend their time: by hand."""

from __future__ import annotations

from pathlib import Path

from continuum_analysis.compare.runs import read_run_metrics
from continuum_analysis.records.misses import CAUSES
from continuum_analysis.records.occupancy import occupancy
from continuum_analysis.records.reading import add_client_records, order_events
from continuum_analysis.report.program_timeline import timeline_data
from continuum_traces.run_dir import EVENTS as EVENTS_FILE
from continuum_traces.run_dir import TURNS, write_rows
from continuum_traces.schema import SchedulerEvent, TurnRecord
from recorded_runs import served

E = SchedulerEvent
EVENTS = [
    *served("p", 0, 0.0, 100, 20, 1.0, 6.0, output_tokens=50, tool="ls"),
    E(4.0, "preempt", "p", 0),
    E(5.0, "resume", "p", 0, prompt_tokens=100, hit_tokens=0),
    E(7.0, "pin", "p", 0, ttl_s=2.0, tokens=144),
    *served("p", 1, 8.0, 200, 144, 1.0, 1.0, output_tokens=10),
    E(9.0, "unpin", "p", 0, reason="hit", tokens=144),
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


def test_the_timeline_covers_a_program_s_time(tmp_path: Path) -> None:
    """Milliseconds: arrival, queue, prefill, decode; 100, 20 and 50 tokens; pin; then the wait after the preemption."""
    write_rows(tmp_path / EVENTS_FILE, EVENTS)
    write_rows(tmp_path / TURNS, FIRST_TOKENS)
    (shown,) = timeline_data({"p": [read_run_metrics(tmp_path)]})["runs"]
    (_, _, arrive, jct, bubble, turns) = shown["programs"][0]
    assert (arrive, jct, bubble, shown["end"]) == (0, 10_000, 3_000, 10_000)
    first, second = turns
    assert first == [0, 1000, 1000, 5000, 100, 20, 50, 1, len(CAUSES), 2000, 2000, [4000, 5000]]
    assert second[:4] == [8000, 1000, -1, 1000]  # no first token recorded
