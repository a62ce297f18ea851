"""The virtual engine on vLLM's real scheduler: what must hold for every policy and workload."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import pytest
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.registry import POLICIES
from continuum_server.virtual.config import EngineError
from continuum_server.virtual.scheduler_time import SchedulerStopwatch, facts_of
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, SchedulerEvent, ToolCall, Turn, TurnRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import Played, build, play, program
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

DEPLOYABLE = sorted(POLICIES)
HOLDING = [("static-ttl", {"ttl_s": 2.0}), ("continuum", {"cold_samples": 0})]

gaps = st.sampled_from([0.0, 0.01, 0.3, 1.0, 5.0, 1e6])


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    """Up to eight programs that fit a pool of 64 blocks of 16 tokens."""
    jobs = []
    for number in range(draw(st.integers(1, 8))):
        turns = []
        for _ in range(draw(st.integers(1, 5))):
            output = draw(st.integers(1, 40))
            turns.append(
                Turn(
                    draw(st.integers(1, 90)),
                    output,
                    carried_tokens=draw(st.sampled_from([output, output // 2])),
                    tool_calls=(ToolCall(draw(st.sampled_from(["ls", "make"])), draw(gaps)),),
                )
            )
        jobs.append(Job(Program(f"p{number}", tuple(turns)), draw(st.floats(0, 3))))
    return jobs


def check_every_program(played: Played, jobs: list[Job]) -> None:
    """Every turn once, in order, after its gap; every pin ends, and in time."""
    for job in jobs:
        own = [turn for turn in played.turns if turn.program_id == job.program.program_id]
        assert [turn.turn for turn in own] == list(range(len(job.program.turns)))
        assert [turn.output_tokens for turn in own] == [turn.output_tokens for turn in job.program.turns]
        assert [turn.prompt_tokens for turn in own] == job.program.prompt_tokens()
        for before, after in pairwise(own):
            assert after.due_s == before.finish_s + before.gap_s  # type: ignore[operator]
            assert after.sent_s >= after.due_s
    assert len(played.of("pin")) == len(played.of("unpin"))


@pytest.mark.parametrize("policy", DEPLOYABLE)
@given(jobs=workloads())
@settings(max_examples=25)
def test_every_program_finishes_and_no_block_leaks(policy: str, jobs: list[Job]) -> None:
    check_every_program(play(jobs, policy), jobs)


@pytest.mark.parametrize("yielding", ["never", "waiting", "later", "anyone"])
@pytest.mark.parametrize(("policy", "options"), HOLDING)
@given(jobs=workloads())
@settings(max_examples=10)
def test_under_pressure_too(policy: str, options: dict[str, Any], yielding: Any, jobs: list[Job]) -> None:
    guards = Guards(pins_yield_to=yielding, max_pinned_share=1.0)
    check_every_program(play(jobs, policy, options, blocks=48, guards=guards), jobs)


def test_event_skipping_changes_nothing_for_a_request_that_is_preempted() -> None:
    """Blocks that it filled within a stretch are found again when it resumes."""
    jobs = [Job(program(f"p{i}", turns=3, new=75 + 7 * i, output=40, tool_s=0.1 * i), 0.05 * i) for i in range(8)]
    stepwise, skipping = (play(jobs, "static-ttl", blocks=40, max_stretch=stretch) for stretch in (1, 512))
    assert stepwise.of("preempt")
    assert skipping.events == stepwise.events


@pytest.mark.parametrize("turn", [{"output": 200}, {"new": 900}])
def test_event_skipping_skips(turn: dict[str, int]) -> None:
    jobs = [Job(program("a", turns=1, **turn), 0.0)]
    stepwise, skipping = (play(jobs, max_stretch=stretch, chunk_tokens=16) for stretch in (1, 512))
    assert skipping.loop.counters.scheduler_calls < stepwise.loop.counters.scheduler_calls / 10


class Stock(Scheduler):
    """vLLM's scheduler alone, dressed in what the loop asks of one."""

    class _NoPrograms:
        pins: dict[str, Any] = {}  # noqa: RUF012
        pinned_tokens = 0

        def next_deadline_s(self) -> None:
            return None

    table: Any = _NoPrograms()

    def attach(self, clock: Any, sink: Any) -> None:
        return

    def release_all(self, reason: str) -> None:
        return


@given(jobs=workloads())
@settings(max_examples=25)
def test_policy_vllm_is_the_stock_scheduler_step_for_step(jobs: list[Job]) -> None:
    stock = play(jobs, scheduler_type=Stock, max_stretch=1)
    ours = play(jobs, "vllm", max_stretch=1)
    assert ours.turns == stock.turns
    assert ours.loop.counters == stock.loop.counters
    assert ours.of("pin") == []


@pytest.mark.parametrize(("policy", "options"), HOLDING)
@given(jobs=workloads())
@settings(max_examples=15)
def test_pins_do_not_outlive_their_deadline(policy: str, options: dict[str, Any], jobs: list[Job]) -> None:
    played = play(jobs, policy, options)
    pins = {(e.program_id, e.turn): e for e in played.of("pin")}
    arrivals = {(e.program_id, e.turn): e.t for e in played.of("arrive")}
    for end in played.of("unpin"):
        pin = pins[end.program_id, end.turn]
        assert pin.ttl_s is not None
        deadline = pin.t + pin.ttl_s
        if end.reason == "expired":
            assert end.t > deadline
            back = arrivals.get((end.program_id, end.turn + 1))
            assert back is None or back > end.t or back == pytest.approx(end.t)
        if end.reason == "hit":
            assert arrivals[end.program_id, end.turn + 1] <= end.t


def test_a_hit_keeps_the_whole_prefix() -> None:
    """The returning turn finds every full block of its program, though others filled the pool meanwhile."""
    rivals = [Job(program(f"r{i}", turns=1, new=300, output=20), 0.35 + 0.01 * i) for i in range(12)]
    jobs = [Job(program("a", turns=2, new=200, output=9, tool_s=1.0), 0.0), *rivals]
    held = play(jobs, "static-ttl", {"ttl_s": 5.0})
    dropped = play(jobs, "vllm")

    def second_hit(played: Played) -> int:
        return next(e.hit_tokens or 0 for e in played.of("start") if e.program_id == "a" and e.turn == 1)

    assert second_hit(held) == 208  # 200 + 8 computed outputs: 13 full blocks
    assert second_hit(dropped) < 208
    assert [e.reason for e in held.of("unpin")] == ["hit"]


def test_pins_that_fill_memory_give_way_when_nothing_runs() -> None:
    """Three programs hold the pool for a million seconds; a fourth arrives: the latest pin goes first."""
    jobs = [Job(program(f"p{i}", turns=2, new=300, tool_s=50.0), float(i)) for i in range(3)]
    jobs.append(Job(program("late", turns=1, new=300), 10.0))
    played = play(jobs, "static-ttl", {"ttl_s": 1e6}, guards=Guards(max_pinned_share=1.0, max_ttl_s=1e6))
    pressure = [(e.program_id, e.t) for e in played.of("unpin") if e.reason == "pressure"]
    assert [name for name, _ in pressure] == ["p2"]
    start = next(e.t for e in played.of("start") if e.program_id == "late")
    assert pressure[0][1] == start  # in the same step


def test_last_steps_hold_nothing() -> None:
    played = play([Job(program("a", turns=1), 0.0)], "static-ttl", {"ttl_s": 5.0})
    assert played.of("pin") == []


def test_abort_releases_what_the_program_held() -> None:
    """A client that goes away while its turn waits leaves no pin behind."""
    scheduler, loop = build([Job(program("a", turns=3, tool_s=0.2), 0.0)], "static-ttl", {"ttl_s": 50.0})
    while not scheduler.table.pins:
        loop.advance()
    while not scheduler.requests:
        loop.advance()
    scheduler.finish_requests(list(scheduler.requests), RequestStatus.FINISHED_ABORTED)
    assert not scheduler.table.pins
    assert scheduler.kv_cache_manager.reset_prefix_cache()


def test_two_programs_with_one_id_leave_nothing_behind() -> None:
    jobs = [Job(program("same", turns=3, tool_s=0.1), 0.0), Job(program("same", turns=3, new=70, tool_s=0.2), 0.05)]
    scheduler, loop = build(jobs, "static-ttl", {"ttl_s": 5.0})
    loop.run()
    scheduler.release_all("shutdown")
    assert scheduler.kv_cache_manager.reset_prefix_cache()


@pytest.mark.parametrize("policy", DEPLOYABLE)
def test_the_same_run_twice(policy: str) -> None:
    jobs = [Job(program(f"p{i}", new=60 + i), 0.1 * i) for i in range(6)]
    first, second = play(jobs, policy), play(jobs, policy)
    assert first.turns == second.turns
    assert first.events == second.events


def test_the_scheduler_s_time_is_counted_by_call_and_decides_nothing() -> None:
    """With a clock that a reading moves by a second: one in ``schedule``, one in ``update_from_output``."""
    jobs, ticks = [Job(program(f"p{i}"), 0.1 * i) for i in range(4)], count()
    turns: list[TurnRecord] = []
    _, loop = build(jobs, "continuum", {}, turns=turns)
    loop.scheduler_time = SchedulerStopwatch(lambda: float(next(ticks)))
    loop.run()
    calls = loop.counters.scheduler_calls
    assert facts_of([loop.scheduler_time] * 2) == {"calls": 2 * calls, "total_s": 4.0 * calls, "longest_s": 2.0}
    assert turns == play(jobs, "continuum").turns


def test_shared_prefixes_are_found_and_reasoning_is_not() -> None:
    def shared(name: str) -> Program:
        turns = (Turn(100, 20, carried_tokens=4, tool_calls=(ToolCall("ls", 0.1),)), Turn(30, 5))
        return Program(name, turns, shared_prefix_id="system", shared_prefix_tokens=64)

    played = play([Job(shared("a"), 0.0), Job(shared("b"), 5.0)])
    hits = {(e.program_id, e.turn): e.hit_tokens for e in played.of("start")}
    assert hits["a", 0] == 0
    assert hits["b", 0] == 64
    assert hits["a", 1] == 96  # the prompt's full blocks; the answer's place was taken by reasoning


def test_a_program_that_can_never_run_ends_the_run() -> None:
    with pytest.raises(EngineError, match="no request can run"):
        play([Job(program("huge", turns=1, new=2000), 0.0)], blocks=32)


def test_a_run_has_a_step_cap() -> None:
    scheduler, loop = build([Job(program("a", output=100), 0.0)], "vllm", {}, max_calls=3)
    with pytest.raises(EngineError, match="gave up after 3"):
        loop.run()
    assert isinstance(scheduler.table, ProgramTable)


def test_a_dying_engine_aborts_in_the_order_of_arrival() -> None:
    events: list[SchedulerEvent] = []
    _, loop = build([Job(program(f"p{i}"), 0.0) for i in range(8)], "vllm", {}, events=events)
    loop.advance()
    loop.abandon()
    assert [event.program_id for event in events if event.event == "finish"] == [f"p{i}" for i in range(8)]
