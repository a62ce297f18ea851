"""A turn that was sent several times is one turn; the server's and the client's records meet on the turn id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from continuum_analysis.metrics import analyze_run, measure
from continuum_analysis.records.facts import facts_of
from continuum_analysis.records.reading import add_client_records, client_events, order_events
from continuum_analysis.records.timeline import ProgramTimes
from continuum_traces.records import write_rows
from continuum_traces.records.replicas import merge
from continuum_traces.records.run_dir import EVENTS, TURNS
from continuum_traces.schema import SchedulerEvent, TurnRecord
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import served

E = SchedulerEvent


def sent(
    turn: int, arrive_s: float, prompt: int, status: str = "stop", hit: int = 0, wait_s: float = 1.0, **ids: Any
) -> list[SchedulerEvent]:
    ids = {"request_id": f"r{arrive_s}", **ids}
    return served("p", turn, arrive_s, prompt, hit, wait_s, status=status, tool="ls", **ids)


def one(events: list[SchedulerEvent], *records: TurnRecord) -> ProgramTimes:
    (program,) = add_client_records(order_events(events), records)
    return program


@pytest.mark.parametrize("named", [True, False])
def test_a_broken_stream_shifts_nothing(tmp_path: Path, named: bool) -> None:
    """Turn 0 broke and was sent again; by hand: waits 1 + 3, then 1; prompts 100 and 200."""
    ids = [{"turn_id": f"{n}-aa"} if named else {} for n in range(2)]
    events = [
        *sent(0, 0.0, 100, "abort", **ids[0]),
        *sent(0, 4.0, 100, hit=96, wait_s=3.0, **ids[0]),
        E(9.0, "pin", "p", 0, ttl_s=5.0, tokens=96),
        *sent(1, 11.0, 200, hit=96, **ids[1]),
        E(12.0, "unpin", "p", 0, reason="hit"),
    ]
    records = [
        TurnRecord("p", 0, 0.0, 0.0, 8.0, 9.0, 100, reusable_tokens=0, gap_s=2.0, failed_tries=("stream",), **ids[0]),
        TurnRecord("p", 1, 11.0, 11.0, 13.0, 14.0, 200, reusable_tokens=97, is_last=True, **ids[1]),
    ]
    write_rows(tmp_path / EVENTS, events)
    write_rows(tmp_path / TURNS, records)
    run = analyze_run(tmp_path)
    (program,) = run.facts.programs
    assert [(turn.index, len(turn.earlier), turn.prompt_tokens) for turn in program.turns] == [(0, 1, 100), (1, 0, 200)]
    assert all(turn.client is not None and turn.client.prompt_tokens == turn.prompt_tokens for turn in program.turns)
    hits = (96 + 96) / 300  # the second try found what the first had computed
    expected = {"jct_mean_s": 14.0, "bubble_mean_s": 1.0 + 3.0 + 1.0, "bubble_per_turn_s": 2.5, "turns_failed": 0}
    expected |= {"prefix_hit_ratio": hits, "ttft_mean_s": 5.0}
    assert {name: run.values[name] for name in expected} == expected
    (found,) = run.facts.returns
    assert (found.cause, found.tool_s, found.lost_tokens) == ("pinned", 2.0, 0)
    assert [turn.first_token_s for turn in program.turns] == [8.0, 13.0]


def test_numbers_that_differ_meet_by_id() -> None:
    """The SDK counts calls as they end, the server as they arrive; a number without an id on one side still counts."""
    events = [*sent(0, 0.0, 100, turn_id="a"), *sent(1, 0.5, 200, turn_id="b"), *sent(2, 5.0, 300)]
    records = [TurnRecord("p", n, 0.0, 0.0, turn_id=turn_id) for n, turn_id in ((0, "b"), (1, "a"), (2, "c"))]
    program = one(events, *records, TurnRecord("p", 1, 0.0, 0.0, turn_id="never sent"))
    assert [turn.client.turn_id if turn.client else None for turn in program.turns] == ["a", "b", "c"]


def test_the_answer_was_lost_after_the_server_had_given_it() -> None:
    program = one([*sent(0, 0.0, 100, turn_id="a"), *sent(0, 4.0, 100, hit=96, turn_id="a")])
    (turn,) = program.turns
    assert (len(turn.earlier), turn.hit_tokens, program.bubble_s, program.jct_s) == (1, 96, 2.0, 7.0)
    assert program.finished


def test_the_server_sees_a_try_end_after_the_next_has_come() -> None:
    """A client that was gone at 4 s is found out at 6 s: its end is not the turn's."""
    lost, again = sent(0, 0.0, 100, "abort", turn_id="a"), sent(0, 4.0, 100, turn_id="a")
    late = E(6.0, "finish", "p", 0, "r0.0", status="abort", turn_id="a")
    (turn,) = one([*lost[:2], *again[:2], late, again[2]]).turns
    assert (turn.finish_s, turn.status, turn.wait_s) == (7.0, "stop", 2.0)
    assert (turn.earlier[0].finish_s, turn.earlier[0].status) == (6.0, "abort")


def test_tries_that_never_ran_waited_until_they_ended_or_were_sent_again() -> None:
    def waiting(arrive_s: float, end_s: float) -> list[SchedulerEvent]:
        ids: dict[str, Any] = {"request_id": f"r{arrive_s}", "turn_id": "a"}
        return [E(arrive_s, "arrive", "p", 0, **ids), E(end_s, "finish", "p", 0, status="abort", **ids)]

    events = sorted([*waiting(0.0, 1.5), *waiting(2.0, 9.0), *sent(0, 4.0, 100, turn_id="a")], key=lambda e: e.t)
    program = one(events)
    assert program.bubble_s == 1.5 + 2.0 + 1.0
    assert program.turns[0].earlier_waits == [(0.0, 1.5), (2.0, 4.0)]


def test_preemptions_of_every_try_count() -> None:
    ids: dict[str, Any] = {"request_id": "r0.0", "turn_id": "a"}
    first = sent(0, 0.0, 100, "abort", turn_id="a")
    first.insert(2, E(2.0, "preempt", "p", 0, **ids))  # it ends at 3 s, before it runs again
    program = one([*first, *sent(0, 4.0, 100, turn_id="a")])
    assert (program.turns[0].preemptions, program.requeue_s, program.bubble_s) == (1, 1.0, 3.0)


def test_kv_that_an_earlier_try_had_taken_over_was_dropped() -> None:
    events = [
        *sent(0, 0.0, 100, turn_id="a"),
        E(3.0, "pin", "p", 0, ttl_s=9.0, tokens=100),
        *sent(1, 4.0, 200, "abort", hit=100, turn_id="b"),
        E(5.0, "unpin", "p", 0, reason="hit"),
        *sent(1, 8.0, 200, hit=0, turn_id="b"),
    ]
    (found,) = facts_of(order_events(events)).returns
    assert (found.cause, found.lost_tokens) == ("dropped", 96)


def test_a_program_of_the_same_name_is_another_program() -> None:
    """Its numbers begin again, and so its turns."""
    for first, second in (({"turn_id": "a"}, {"turn_id": "z"}), ({}, {})):
        programs = order_events([*sent(0, 0.0, 100, **first), *sent(1, 20.0, 200), *sent(0, 50.0, 100, **second)])
        assert [(each.program_id, len(each.turns)) for each in programs] == [("p", 2), ("p#2", 1)]
        assert [turn.earlier for each in programs for turn in each.turns] == [[], [], []]


def test_calls_side_by_side_are_one_program() -> None:
    """A client's record counts turns in the order in which they end, and is read in the order in which they began."""
    records = [TurnRecord("p", 0, 1.0, 1.0, finish_s=2.0), TurnRecord("p", 1, 0.0, 0.0, finish_s=3.0)]
    (program,) = order_events(client_events(records))
    assert [turn.index for turn in program.turns] == [1, 0]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(50, 500)), min_size=1, max_size=12), st.integers(1, 3))
def test_every_turn_meets_its_record(turns: list[tuple[int, int]], replicas: int) -> None:
    """However often each turn broke, and at whichever server; each server counts the turns that it saw."""
    events: list[list[SchedulerEvent]] = [[] for _ in range(replicas)]
    records, t, number = [], 0.0, 0
    seen: list[dict[str, int]] = [{} for _ in range(replicas)]
    for turn, (broken, prompt) in enumerate(turns):
        for again in range(broken + 1):
            at, turn_id = number % replicas, f"{turn}-aa"
            local = seen[at].setdefault(turn_id, len(seen[at]))
            status = "stop" if again == broken else "abort"
            events[at] += sent(local, t, prompt, status, turn_id=turn_id)
            t, number = t + 10.0, number + 1
        records.append(TurnRecord("p", turn, t, t, prompt_tokens=prompt, turn_id=f"{turn}-aa"))
    program = one(merge(events) if replicas > 1 else events[0], *records)
    assert [len(turn.earlier) for turn in program.turns] == [broken for broken, _ in turns]
    assert [turn.index for turn in program.turns] == list(range(len(turns)))
    assert [turn.client.turn if turn.client else None for turn in program.turns] == list(range(len(turns)))
    assert program.bubble_s == sum(broken + 1 for broken, _ in turns)
    assert measure(facts_of([program])).values["turns_failed"] == 0
