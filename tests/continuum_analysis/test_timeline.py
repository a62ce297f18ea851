"""What becomes of programs that fail, stop half-way or were seen by their client alone; orders and clocks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from continuum_analysis.metrics import analyze_run, measure
from continuum_analysis.records.facts import facts_of
from continuum_analysis.records.reading import add_client_records, order_events
from continuum_traces.records import write_rows
from continuum_traces.records.run_dir import TURNS
from continuum_traces.schema import SchedulerEvent, TurnRecord
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import served

E = SchedulerEvent


def turn(program: str, index: int, arrive_s: float, status: str = "stop") -> list[SchedulerEvent]:
    """Waits 1 s, runs 2 s."""
    return served(program, index, arrive_s, 10, status=status)


@pytest.mark.parametrize("status", ["abort", "error"])
def test_a_failed_program_does_not_look_fast(status: str) -> None:
    events = [*turn("good", 0, 0.0), *turn("good", 1, 10.0), *turn("bad", 0, 0.0, status)]
    run = measure(facts_of(order_events(events)))
    assert run.facts.failed == ("bad",)
    expected = {"programs_finished": 1, "turns_failed": 1, "jct_mean_s": 13.0}  # good's alone; bad's 3 s would halve it
    assert {name: run.values[name] for name in expected} == expected


def test_an_aborted_turn_that_was_sent_again_fails_no_program() -> None:
    values = measure(facts_of(order_events([*turn("p", 0, 0.0, "abort"), *turn("p", 1, 5.0)]))).values
    assert (values["programs_finished"], values["turns_failed"], values["jct_mean_s"]) == (1, 1, 8.0)


def test_what_the_client_says_of_a_last_turn_decides() -> None:
    def state(**said: Any) -> str:
        record = TurnRecord("p", 0, 0.0, 0.0, finish_s=3.0, **said)
        return add_client_records(order_events(turn("p", 0, 0.0)), [record])[0].state

    assert state(gap_s=60.0) == "unfinished"  # the run was killed during a tool call
    assert state(is_last=True) == state() == "finished"  # real agents do not know their last turn
    assert state(is_last=True, error="connection reset") == "failed"


def test_a_client_alone_gives_completion_times_and_no_queue(tmp_path: Path) -> None:
    """Servers that are not ours leave turns.jsonl only."""
    first = TurnRecord("p", 0, 50.0, 50.1, 51.0, 53.0, 40, 11, gap_s=1.0)
    second = TurnRecord("p", 1, 54.0, 54.0, None, 57.0, 60, 4, cached_tokens=45, is_last=True)
    failed = TurnRecord("q", 0, 52.0, 52.0, error="HTTP 500", finish_s=52.5)
    write_rows(tmp_path / TURNS, [second, failed, first])  # in the order they ended, say
    run = analyze_run(tmp_path)
    assert run.facts.failed == ("q",)
    expected = {"jct_mean_s": 7.0, "ttft_mean_s": 1.0, "tpot_mean_s": pytest.approx(2.0 / 10)}
    expected["prefix_hit_ratio"] = 45 / 60  # the turn that says nothing of its cache stays out
    expected |= dict.fromkeys(("bubble_mean_s", "bubble_per_turn_s", "queue_wait_p95_s", "pin_hit_ratio"))
    assert {name: run.values[name] for name in expected} == expected


def test_the_previews_pins_without_reasons(tmp_path: Path) -> None:
    events = [
        {"Request_arrival_time": 0.0},
        {"waiting_to_running": 0.0, "prompt_length": 10, "hit_length": 0},
        {"Request_departure_time": 1.0},
        {"pinned_time": 1.0},
        {"unpinned_time": 3.0},  # in vain: the next turn comes at 5
        {"Request_arrival_time": 5.0},
        {"waiting_to_running": 5.0, "prompt_length": 20, "hit_length": 8},
        {"Request_departure_time": 6.0},
        {"pinned_time": 6.0},
        {"Request_arrival_time": 7.0},
        {"unpinned_time": 7.5},  # handed over
        {"waiting_to_running": 7.5, "prompt_length": 30, "hit_length": 24},
        {"Request_departure_time": 9.0},
    ]
    (tmp_path / "scheduler_timestamps").write_text(json.dumps({"job": events}))
    run = analyze_run(tmp_path)
    assert run.pins_by_ending == {"hit": 1, "not recorded": 1}
    expected = {"pin_hit_ratio": 0.5, "pin_duration_mean_s": (2.0 + 1.5) / 2, "bubble_mean_s": 0.5}
    expected["prefix_hit_ratio"] = 32 / 60
    assert {name: run.values[name] for name in expected} == expected


def test_the_slowest_tenth_of_the_gaps() -> None:
    """Ten gaps: nine of 1 s, one of 11 s; the slowest tenth holds 11 of 20 seconds."""
    arrivals = [0.0]
    for gap_s in [1.0] * 5 + [11.0] + [1.0] * 4:
        arrivals.append(arrivals[-1] + 3.0 + gap_s)
    events = [event for index, arrive_s in enumerate(arrivals) for event in turn("p", index, arrive_s)]
    assert measure(facts_of(order_events(events))).values["tool_time_slowest_tenth_share"] == pytest.approx(11 / 20)
    nine = [event for event in events if event.turn < 10]
    assert measure(facts_of(order_events(nine))).values["tool_time_slowest_tenth_share"] is None


@st.composite
def streams(draw: st.DrawFn) -> list[list[SchedulerEvent]]:
    """Programs of one to four turns, some preempted, each with its events in order."""
    quarters = st.integers(0, 20).map(lambda number: number / 4)
    found = []
    for number in range(draw(st.integers(1, 4))):
        t, events, name = draw(quarters), [], f"p{number}"
        for index in range(draw(st.integers(1, 4))):
            gap, wait, run, requeue = (draw(quarters) for _ in range(4))
            events += [E(t, "arrive", name, index), E(t + wait, "start", name, index, prompt_tokens=9, hit_tokens=4)]
            if requeue:
                events += [E(t + wait, "preempt", name, index), E(t + wait + requeue, "resume", name, index)]
            t += wait + requeue + run
            events.append(E(t, "finish", name, index, output_tokens=3, status="stop"))
            t += gap
        found.append(events)
    return found


@given(streams(), st.data())
def test_any_interleaving_gives_the_same_metrics(programs: list[list[SchedulerEvent]], data: st.DataObject) -> None:
    left = [list(events) for events in programs]
    mixed = []
    while any(left):
        mixed.append(data.draw(st.sampled_from([events for events in left if events])).pop(0))
    straight = measure(facts_of(order_events(event for events in programs for event in events)))
    assert measure(facts_of(order_events(mixed))).values == straight.values


@given(streams(), st.integers(-1000, 1000))
def test_laws_of_time(programs: list[list[SchedulerEvent]], shift_s: int) -> None:
    events = [event for program in programs for event in program]
    timed = order_events(events)
    for program in timed:
        assert program.bubble_s is not None
        assert program.jct_s >= program.bubble_s >= program.requeue_s >= 0
    values = measure(facts_of(timed)).values
    jcts = [values[f"jct_{name}_s"] for name in ("min", "p50", "p90", "p99", "max")]
    assert jcts == sorted(jcts)  # type: ignore[type-var]
    assert values["prefix_hit_ratio"] == pytest.approx(4 / 9)
    later = measure(facts_of(order_events(replace(event, t=event.t + shift_s) for event in events))).values
    for name, value in values.items():
        assert later[name] == (None if value is None else pytest.approx(value, abs=1e-9)), name
