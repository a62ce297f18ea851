"""The virtual engine on vLLM's real scheduler: what must hold for every policy and workload.

``nano.play`` checks each run that a test plays: every turn was served, and no block leaked.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES
from continuum_server.virtual.config import EngineError
from continuum_server.virtual.scheduler_time import SchedulerStopwatch, facts_of
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn, TurnRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import ANY_TIERS, BITING, PlainTimes, Played, build, each_policy, play, program, workloads
from policy_cost import Stock
from vllm.v1.request import RequestStatus

shapes = st.fixed_dictionaries(
    {
        "blocks": st.integers(48, 160),
        "chunk_tokens": st.sampled_from([9, 16, 256]),  # small chunks make long stretches of them
        "max_num_seqs": st.sampled_from([2, 3, 8]),
        "offload": ANY_TIERS,
        "times": st.sampled_from([0.0, 0.05]).map(PlainTimes),  # seconds of a request besides its steps
        "guards": st.sampled_from(["policy", "waiting", "never"]).map(
            lambda yielding: Guards(pins_yield_to=yielding, max_pinned_share=1.0)
        ),
    }
)


@each_policy()
@given(jobs=workloads(wishes=True), shape=shapes, biting=st.booleans())
@settings(max_examples=settings.default.max_examples // 4)
def test_skipping_steps_changes_nothing(policy: str, jobs: list[Job], shape: dict[str, Any], biting: bool) -> None:
    """In pools of any size, with tiers and without, whichever pins yield, with soft holds (``kv_ttl_s``).

    A turn of n tokens has n - 1 gaps between them, which fill the time from its first token to its last.
    """
    options = BITING[policy] if biting else {}
    stepwise, skipping = (play(jobs, policy, options, max_stretch=most, token_times=True, **shape) for most in (1, 512))
    assert skipping.turns == stepwise.turns
    assert skipping.events == stepwise.events
    assert skipping.loop.counters.engine_steps == stepwise.loop.counters.engine_steps
    for turn in skipping.turns:
        gaps = turn.token_gaps_ms or {}
        assert sum(gaps.values()) == turn.output_tokens - 1  # type: ignore[operator]
        span_s = turn.finish_s - turn.first_token_s  # type: ignore[operator]
        assert abs(sum(float(ms) * number for ms, number in gaps.items()) / 1e3 - span_s) <= 0.005 * span_s


@given(jobs=workloads())
@settings(max_examples=12)
def test_recording_the_times_of_tokens_changes_nothing_else(jobs: list[Job]) -> None:
    recorded = play(jobs, blocks=48, token_times=True).turns
    assert [replace(turn, token_gaps_ms=None) for turn in recorded] == play(jobs, blocks=48).turns


@each_policy()
@given(jobs=workloads(), blocks=st.integers(48, 100))
@settings(max_examples=settings.default.max_examples // 6)
def test_who_starts_is_first_in_order(policy: str, jobs: list[Job], blocks: int) -> None:
    """Whenever a request leaves the queue, no other had a smaller class and rank at that moment. One-offs are a class
    only while their share of the engine's work lasts."""
    scheduler, loop = build(jobs, policy, BITING[policy], blocks=blocks)
    queue, popped = scheduler.waiting, []
    pop = queue.popleft if POLICIES[policy].stock_order else queue.pop_request

    def watched() -> Any:
        keys = {request.request_id: order_of(request) for request in queue}
        request = pop()
        assert keys[request.request_id] == min(keys.values())
        popped.append(request.request_id)
        return request

    def order_of(request: Any) -> Any:
        if POLICIES[policy].stock_order:
            preempted = request.status == RequestStatus.PREEMPTED
            return (not preempted, 0 if preempted else request.arrival_time)
        return scheduler.table.order.now(scheduler._place_of(request))

    queue.pop_request = watched
    loop.run()
    assert len(popped) >= sum(len(job.program.turns) for job in jobs)


@given(jobs=workloads(wishes=True), offload=ANY_TIERS)
@settings(max_examples=settings.default.max_examples // 4)
def test_policy_vllm_is_the_stock_scheduler_step_for_step(jobs: list[Job], offload: Any) -> None:
    """And with tiers the stock connector."""
    stock = play(jobs, scheduler_type=Stock, max_stretch=1, offload=offload)
    ours = play(jobs, "vllm", max_stretch=1, offload=offload)
    assert ours.turns == stock.turns
    assert ours.loop.counters == stock.loop.counters
    assert ours.of("pin") == []


def test_a_hit_keeps_the_whole_prefix() -> None:
    """The returning turn finds every full block of its program, though others filled the pool meanwhile."""
    rivals = [Job(program(f"r{i}", turns=1, new=300, output=20), 0.35 + 0.01 * i) for i in range(12)]
    jobs = [Job(program("a", turns=2, new=200, output=9, tool_s=1.0), 0.0), *rivals]
    held = play(jobs, "static-ttl", {"ttl_s": 5.0})

    def second_hit(played: Played) -> int:
        return next(e.hit_tokens or 0 for e in played.of("start") if e.program_id == "a" and e.turn == 1)

    assert second_hit(held) == 208  # 200 + 8 computed outputs: 13 full blocks
    assert second_hit(play(jobs, "vllm")) < 208
    assert [(e.event, e.program_id, e.turn, e.reason) for e in held.events if "pin" in e.event] == [
        ("pin", "a", 0, None),  # and none after its last step, or those of its rivals
        ("unpin", "a", 0, "hit"),
    ]


def test_abort_releases_what_the_program_held() -> None:
    """A client that goes away while its turn waits, here for the only place in the batch, leaves no pin behind."""
    jobs = [Job(program("a", turns=3, tool_s=0.2), 0.0), Job(program("b", turns=1, output=200), 0.05)]
    scheduler, loop = build(jobs, "static-ttl", {"ttl_s": 50.0}, max_num_seqs=1)
    while not (scheduler.table.pins and len(scheduler.requests) == 2):
        assert loop.step()
    assert len(scheduler.waiting) == 1
    scheduler.finish_requests([request.request_id for request in scheduler.waiting], RequestStatus.FINISHED_ABORTED)
    assert not scheduler.table.pins
    assert not scheduler.held.blocks


def test_the_scheduler_s_time_is_counted_by_call_and_decides_nothing() -> None:
    """With a clock that a reading moves by a second: one in ``schedule``, one in ``update_from_output``."""
    jobs, ticks = [Job(program(f"p{i}"), 0.1 * i) for i in range(4)], count()
    turns: list[TurnRecord] = []
    _, loop = build(jobs, "continuum", {}, turns=turns)
    loop.loop.scheduler_time = SchedulerStopwatch(lambda: float(next(ticks)))
    loop.run()
    calls = loop.loop.counters.scheduler_calls
    assert facts_of([loop.loop.scheduler_time] * 2) == {"calls": 2 * calls, "total_s": 4.0 * calls, "longest_s": 2.0}
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


@pytest.mark.parametrize(
    ("new", "limits", "message"), [(2000, {}, "no request can run"), (40, {"max_calls": 2}, "gave up after 2")]
)
def test_a_run_that_cannot_end_ends(new: int, limits: dict[str, int], message: str) -> None:
    """A program that can never run, and a run of more calls than allowed."""
    with pytest.raises(EngineError, match=message):
        play([Job(program("p", turns=1, new=new, output=100), 0.0)], blocks=32, **limits)
