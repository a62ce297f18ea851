"""What must hold for every policy on the real scheduler: completion, no leak, determinism, and skipped steps that
change nothing; with hostile tool times and options chosen so that each rule acts often in a run of a few seconds."""

from __future__ import annotations

from typing import Any

import pytest
from continuum_server.policy.facts import Machine, PrefillCurve
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES
from continuum_server.vllm_plugin.scheduler import BoundRefused, ProgramScheduler
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import Played, build, play, program
from test_virtual import check_every_program, workloads
from vllm.v1.request import RequestStatus

BITING: dict[str, dict[str, Any]] = {name: dict(policy.test_options) for name, policy in POLICIES.items()}
EVERY = sorted(POLICIES)


@pytest.mark.parametrize("policy", EVERY)
@given(
    jobs=workloads(),
    blocks=st.integers(48, 160),
    chunk_tokens=st.sampled_from([9, 16, 256]),
    max_num_seqs=st.sampled_from([2, 3, 8]),
)
@settings(max_examples=settings.default.max_examples // 6)
def test_skipping_steps_changes_nothing(policy: str, jobs: list[Job], **shape: int) -> None:
    """Stretches of decode steps, and of prompt chunks beside them: small chunks make these long."""
    stepwise = play(jobs, policy, BITING[policy], max_stretch=1, **shape)
    skipping = play(jobs, policy, BITING[policy], **shape)
    check_every_program(skipping, jobs)
    assert skipping.turns == stepwise.turns
    assert skipping.events == stepwise.events
    assert skipping.loop.counters.engine_steps == stepwise.loop.counters.engine_steps


TOOL_TIMES: dict[str, Any] = {
    "none": lambda program, turn: 0.0,
    "forever": lambda program, turn: 1e6,
    "identical": lambda program, turn: 0.5,
    "bimodal": lambda program, turn: 0.05 if (program + turn) % 2 else 40.0,
    "a sudden shift": lambda program, turn: 0.1 if turn < 4 else 30.0,
}


@pytest.mark.parametrize("hostile", TOOL_TIMES)
@pytest.mark.parametrize("policy", EVERY)
def test_hostile_tool_times(policy: str, hostile: str) -> None:
    """Sixteen programs of eight turns in a pool that holds about three of them."""
    jobs = []
    for number in range(16):
        turns = tuple(
            Turn(60, 12, tool_calls=(ToolCall("ls", TOOL_TIMES[hostile](number, index)),)) for index in range(8)
        )
        jobs.append(Job(Program(f"p{number}", turns), 0.2 * number))
    first = play(jobs, policy, BITING[policy], blocks=112)
    check_every_program(first, jobs)
    if hostile == "bimodal":
        second = play(jobs, policy, BITING[policy], blocks=112)
        assert first.turns == second.turns
        assert first.events == second.events


@pytest.mark.parametrize("yielding", ["waiting", "later", "anyone"])
@pytest.mark.parametrize("policy", EVERY)
@given(jobs=workloads())
@settings(max_examples=5)
def test_pins_that_yield(policy: str, yielding: Any, jobs: list[Job]) -> None:
    guards = Guards(pins_yield_to=yielding, max_pinned_share=1.0)
    check_every_program(play(jobs, policy, BITING[policy], blocks=48, guards=guards), jobs)


@pytest.mark.parametrize("policy", EVERY)
@given(jobs=workloads(), blocks=st.integers(48, 100))
@settings(max_examples=settings.default.max_examples // 6)
def test_who_starts_is_first_in_order(policy: str, jobs: list[Job], blocks: int) -> None:
    """Whenever a request leaves the queue, no other had a smaller class and rank at that moment."""
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
        return scheduler._queue_key(request)

    queue.pop_request = watched
    loop.run()
    assert len(popped) >= sum(len(job.program.turns) for job in jobs)


# ------------------------------------------------------------------------------------------------- each rule acts


def crowd(turns: int = 6, output: int = 40) -> list[Job]:
    """More than the pool holds, all at once."""
    return [Job(program(f"p{i}", turns=turns, new=80, output=output, tool_s=0.4), 0.05 * i) for i in range(10)]


def test_autellix_preempts_who_was_served_most() -> None:
    """A long call fills the pool; a fresh program arrives: the long one goes, comes back and ends."""
    jobs = [Job(program("long", turns=1, new=700, output=200), 0.0), Job(program("short", turns=1, new=400), 1.0)]
    options = {"first_range_s": 0.1, "first_quantum_s": 0.5, "starvation_ratio": 0}
    played = play(jobs, "autellix", options, blocks=64)
    assert [(e.program_id, e.event) for e in played.events if e.event in ("preempt", "resume")] == [
        ("long", "preempt"),
        ("long", "resume"),
    ]
    preempt, short = played.of("preempt")[0], next(e for e in played.of("start") if e.program_id == "short")
    assert preempt.t == short.t  # in the step in which the other starts
    assert play(jobs, "program-fcfs", blocks=64).of("preempt") == []


def test_autellix_leaves_calls_of_its_own_queue_alone() -> None:
    jobs = [Job(program("long", turns=1, new=700, output=200), 0.0), Job(program("short", turns=1, new=400), 1.0)]
    assert play(jobs, "autellix", {"first_quantum_s": 1e6}, blocks=64).of("preempt") == []


def test_autellix_promotes_the_starving() -> None:
    """A veteran of many turns waits behind a stream of newcomers, until its wait outweighs its service."""
    veteran = program("veteran", turns=8, new=60, output=30, tool_s=0.01)
    stream = [Job(program(f"n{i}", turns=1, new=500, output=60), 1.0 + 0.3 * i) for i in range(40)]
    options = {"first_range_s": 0.2, "first_quantum_s": 100.0}

    def end(ratio: float) -> float:
        played = play([Job(veteran, 0.0), *stream], "autellix", {**options, "starvation_ratio": ratio}, blocks=64)
        return next(turn.finish_s or 0.0 for turn in played.turns if (turn.program_id, turn.turn) == ("veteran", 4))

    assert end(2.0) < end(0.0) / 2  # without it the veteran waits for the whole stream


def test_autellix_counts_a_familys_service_together() -> None:
    """ATLAS: a sub-agent's first call inherits what its caller was served; a stranger's does not."""
    long = program("root", turns=6, new=60, output=40, tool_s=0.5)
    child = Program("child", (Turn(200, 20),), parent_id="root")
    rival = program("rival", turns=1, new=200, output=20)
    blocker = program("blocker", turns=1, new=880, output=100)
    jobs = [Job(long, 0.0), Job(blocker, 2.0), Job(child, 2.2), Job(rival, 2.4)]
    played = play(jobs, "autellix", {"first_range_s": 0.3, "first_quantum_s": 1e6, "starvation_ratio": 0}, blocks=64)
    starts = {e.program_id: e.t for e in played.of("start") if e.turn == 0}
    assert starts["rival"] < starts["child"]


def test_infercept_gives_up_what_waits_longer_than_recomputing_takes() -> None:
    """Nothing runs beside it: worth F(C)/2 per token, so 100 tokens of 0.1 ms and 10 ms a pass: half of 20 ms."""
    played = play([Job(program("a", turns=2, new=96, output=5, tool_s=3.0), 0.0)], "infercept")
    (pin,), (end,) = played.of("pin"), played.of("unpin")
    assert end.reason == "hit"  # the engine stood still: no step in which to judge
    rival = Job(program("b", turns=1, new=16, output=300), 0.0)
    played = play([Job(program("a", turns=2, new=96, output=5, tool_s=3.0), 0.0), rival], "infercept")
    (pin,), (end,) = played.of("pin"), played.of("unpin")
    assert end.reason == "expired"
    assert 0.01 < end.t - pin.t < 0.1


def test_infercept_keeps_more_where_more_would_wait() -> None:
    """The same program beside a batch of short and of long context."""

    def kept_s(context: int) -> float:
        rival = Job(program("b", turns=1, new=context, output=300), 0.0)
        played = play([Job(program("a", turns=2, new=96, output=5, tool_s=3.0), 0.0), rival], "infercept", blocks=160)
        return played.of("unpin")[0].t - played.of("pin")[0].t

    assert kept_s(1500) > 2 * kept_s(16)


def test_the_oracle_arm_holds_what_comes_back_soon_and_nothing_else() -> None:
    turns = tuple(Turn(96, 5, tool_calls=(ToolCall("ls", gap_s),)) for gap_s in (0.005, 50.0, 0.0, 0.1))
    rival = Job(program("b", turns=1, new=16, output=300), 0.0)
    played = play([Job(Program("a", turns), 0.0), rival], "infercept-oracle")
    assert [event.turn for event in played.of("pin")] == [0]
    assert [event.reason for event in played.of("unpin")] == ["hit"]


def test_thunderagent_keeps_active_programs_within_memory() -> None:
    """Programs that all fit at first outgrow the pool: some are paused, and none of those that run loses its KV."""
    jobs = crowd(turns=5)
    options = {"interval_s": 0.25, "buffer_tokens": 0, "half_life_s": 0}
    gated, free = play(jobs, "thunderagent", options, blocks=112), play(jobs, "program-fcfs", blocks=112)

    def hit(played: Played) -> float:
        starts = played.of("start")
        return sum(e.hit_tokens or 0 for e in starts) / sum(e.prompt_tokens or 0 for e in starts)

    assert hit(gated) > 1.5 * hit(free)


def test_no_gate_keeps_a_request_out_of_an_idle_engine() -> None:
    """A pool of 1,000 tokens, a program of 900 whose tool runs for an hour: nothing runs, so the newcomer does."""
    big = Program("big", (Turn(900, 8, tool_calls=(ToolCall("ls", 3600.0),)), Turn(20, 8)))
    jobs = [Job(big, 0.0), Job(program("late", turns=1, new=300), 1.0)]
    for policy, options in (("thunderagent", {"half_life_s": 0}), ("working-set", {}), ("static-ttl", {"ttl_s": 500})):
        played = play(jobs, policy, options, blocks=64)
        assert next(e.t for e in played.of("start") if e.program_id == "late") == 1.0


def test_working_set_keeps_what_it_lets_in() -> None:
    """More than fits comes at once, sizes being known: after the first losses those inside keep their KV."""
    first = Job(program("first", turns=6, new=80, output=40, tool_s=0.1), 0.0)
    at_once = [program(f"p{i}", turns=6, new=80, output=40, tool_s=0.01) for i in range(10)]
    jobs = [first, *[Job(each, 10.0 + 0.05 * i) for i, each in enumerate(at_once)]]
    ours, theirs = play(jobs, "working-set", blocks=112), play(jobs, "continuum", blocks=112)
    assert ours.of("finish")[-1].t < theirs.of("finish")[-1].t
    assert ours.loop.counters.prefill_tokens < 0.6 * theirs.loop.counters.prefill_tokens
    assert ours.loop.counters.preemptions == 0
    reasons = [event.reason for event in ours.of("unpin")]
    assert set(reasons) == {"hit", "pressure"}
    assert reasons.count("hit") > 2 * reasons.count("pressure")


def test_working_set_outlives_tools_that_never_return() -> None:
    """Every third program hangs for an hour while the pool holds about three: the others do not wait for it."""
    jobs = [
        Job(program(f"p{i}", turns=6, new=60, output=20, tool_s=3600.0 if i % 3 == 0 else 0.3), 0.2 * i)
        for i in range(12)
    ]
    played = play(jobs, "working-set", blocks=64)
    ends = {turn.program_id: turn.finish_s or 0.0 for turn in played.turns}
    assert max(ends[f"p{i}"] for i in range(12) if i % 3) < 60.0


def test_working_set_differs_from_continuum_by_nothing_at_rest() -> None:
    jobs = [Job(program(f"p{i}", turns=6, new=80, output=40, tool_s=0.4), 0.5 * i) for i in range(12)]
    at_rest = mean_jct(play(jobs, "working-set", blocks=2048))
    for policy in ("vllm", "static-ttl", "continuum"):
        assert at_rest <= 1.01 * mean_jct(play(jobs, policy, blocks=2048))


def mean_jct(played: Played) -> float:
    spans: dict[str, list[float]] = {}
    for turn in played.turns:
        spans.setdefault(turn.program_id, []).extend((turn.sent_s, turn.finish_s or 0.0))
    return sum(max(span) - min(span) for span in spans.values()) / len(spans)


def test_shortest_remaining_goes_first() -> None:
    """Three programs wait for a full pool; the one with least left to do is taken, whoever came first."""
    blocker = Job(program("blocker", turns=1, new=900, output=60), 0.0)
    waiting = [program("longest", 2, new=340), program("long", 2, new=320), program("short", 1, new=320)]
    jobs = [blocker, *[Job(one, 0.1 + 0.01 * i) for i, one in enumerate(waiting)]]
    played = play(jobs, "oracle-srpt", blocks=64)
    starts = {e.program_id: e.t for e in reversed(played.of("start"))}
    assert starts["short"] <= starts["long"] < starts["longest"]
    fair = {e.program_id: e.t for e in reversed(play(jobs, "program-fcfs", blocks=64).of("start"))}
    assert fair["longest"] <= fair["long"] < fair["short"]


def test_oracle_ttl_holds_to_the_instant_of_the_return() -> None:
    turns = tuple(Turn(96, 5, tool_calls=(ToolCall("ls", gap_s),)) for gap_s in (0.012, 7.0, 0.0))
    played = play([Job(Program("a", turns), 0.0)], "oracle-ttl")
    assert [(event.turn, event.ttl_s) for event in played.of("pin")] == [(0, 0.012)]
    assert [event.reason for event in played.of("unpin")] == ["hit"]


def test_a_long_program_goes_out_between_turns_for_a_short_one() -> None:
    """Two long ones fill the pool when short ones come: who knows what is left makes them wait."""
    jobs = [Job(program(f"long{i}", turns=12, new=60, output=20, tool_s=0.01), 0.0) for i in range(2)]
    jobs += [Job(program(f"short{i}", turns=1, new=300, output=8), 1.0) for i in range(4)]
    blind, foreseeing = (play(jobs, policy, {}, blocks=64) for policy in ("working-set", "oracle-working-set"))
    check_every_program(foreseeing, jobs)
    assert mean_jct(foreseeing) < 0.7 * mean_jct(blind)
    assert {event.program_id[:5] for event in foreseeing.of("finish")[:14]} == {"short", "long0", "long1"}


@pytest.mark.parametrize("policy", [name for name in EVERY if POLICIES[name].label == "bound"])
def test_a_server_refuses_bounds(policy: str) -> None:
    with pytest.raises(BoundRefused, match="knows the future"):
        build([], policy, {}, scheduler_type=ProgramScheduler)
    machine = Machine(PrefillCurve(0.0, 1e-4, 0.0), 1000)
    with pytest.raises(RuntimeError, match="needs the future"):
        POLICIES[policy](machine).future(None)  # type: ignore[arg-type]


def test_only_bounds_are_shown_the_future() -> None:
    for policy in EVERY:
        scheduler, _ = build([Job(program("a"), 0.0)], policy, {})
        assert (scheduler.table.policy.oracle is not None) == (POLICIES[policy].label == "bound")
