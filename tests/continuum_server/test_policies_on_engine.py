"""Each rule acts on the real scheduler: who is preempted, paused, promoted, held and let go, and when."""

from __future__ import annotations

import pytest
from continuum_server.policy.registry import POLICIES
from continuum_server.vllm_plugin.scheduler import BoundRefused, ProgramScheduler
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn
from nano import SERVED, build, mean_jct_s, play, program
from policy_driver import MACHINE

LONG_THEN_SHORT = [
    Job(program("long", turns=1, new=700, output=200), 0.0),
    Job(program("short", turns=1, new=400), 1.0),
]


def test_autellix_preempts_who_was_served_most() -> None:
    """A long call fills the pool; a fresh program arrives: the long one goes, comes back and ends."""
    options = {"first_range_s": 0.1, "first_quantum_s": 0.5, "starvation_ratio": 0}
    played = play(LONG_THEN_SHORT, "autellix", options, blocks=64)
    assert [(e.program_id, e.event) for e in played.events if e.event in ("preempt", "resume")] == [
        ("long", "preempt"),
        ("long", "resume"),
    ]
    preempt, short = played.of("preempt")[0], next(e for e in played.of("start") if e.program_id == "short")
    assert preempt.t == short.t  # in the step in which the other starts
    assert play(LONG_THEN_SHORT, "program-fcfs", blocks=64).of("preempt") == []
    in_one_queue = play(LONG_THEN_SHORT, "autellix", {"first_quantum_s": 1e6}, blocks=64)
    assert in_one_queue.of("preempt") == []


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

    def hold(*rivals: int) -> tuple[str | None, float]:
        """How it ended and how long it was, beside requests of so many tokens."""
        jobs = [Job(program("a", turns=2, new=96, output=5, tool_s=3.0), 0.0)]
        jobs += [Job(program("b", turns=1, new=context, output=300), 0.0) for context in rivals]
        played = play(jobs, "infercept", blocks=160)
        (pin,), (end,) = played.of("pin"), played.of("unpin")
        return end.reason, end.t - pin.t

    assert hold()[0] == "hit"  # the engine stood still: no step in which to judge
    (how, short_s), (_, long_s) = hold(16), hold(1500)
    assert how == "expired"
    assert 0.01 < short_s < min(0.1, long_s / 2)  # more would wait for the recomputation


def test_the_oracle_holds_to_the_instant_of_a_soon_return_and_nothing_else() -> None:
    turns = tuple(Turn(96, 5, tool_calls=(ToolCall("ls", gap_s),)) for gap_s in (0.012, 7.0, 0.1))
    rival = Job(program("b", turns=1, new=16, output=300), 0.0)
    played = play([Job(Program("a", turns), 0.0), rival], "oracle-ttl")
    assert [(event.turn, event.ttl_s) for event in played.of("pin")] == [(0, 0.012)]
    assert [event.reason for event in played.of("unpin")] == ["hit"]


def test_no_gate_keeps_a_request_out_of_an_idle_engine() -> None:
    """A pool of 1,000 tokens, a program of 900 whose tool runs for an hour: nothing runs, so the newcomer does."""
    big = Program("big", (Turn(900, 8, tool_calls=(ToolCall("ls", 3600.0),)), Turn(20, 8)))
    jobs = [Job(big, 0.0), Job(program("late", turns=1, new=300), 1.0)]
    for policy, options in (("thunderagent", {"half_life_s": 0}), ("working-set", {}), ("static-ttl", {"ttl_s": 500})):
        played = play(jobs, policy, options, blocks=64)
        assert next(e.t for e in played.of("start") if e.program_id == "late") == 1.0


def test_a_long_program_goes_out_between_turns_for_a_short_one() -> None:
    """Two long ones fill the pool when short ones come: who knows what is left makes them wait."""
    jobs = [Job(program(f"long{i}", turns=12, new=60, output=20, tool_s=0.01), 0.0) for i in range(2)]
    jobs += [Job(program(f"short{i}", turns=1, new=300, output=8), 1.0) for i in range(4)]
    blind, foreseeing = (play(jobs, policy, {}, blocks=64) for policy in ("working-set", "oracle-working-set"))
    assert mean_jct_s(foreseeing) < 0.7 * mean_jct_s(blind)
    assert {event.program_id[:5] for event in foreseeing.of("finish")[:14]} == {"short", "long0", "long1"}


def test_bounds_are_shown_the_future_and_servers_refuse_them() -> None:
    for name, policy in POLICIES.items():
        scheduler, _ = build([Job(program("a"), 0.0)], name, {})
        assert (getattr(scheduler.table.policy, "oracle", None) is None) == (name in SERVED)
        if name not in SERVED:
            with pytest.raises(BoundRefused, match="reads future turns"):
                build([], name, {}, scheduler_type=ProgramScheduler)
            with pytest.raises(RuntimeError, match="needs the future"):
                policy(MACHINE).future(None)  # type: ignore[attr-defined]
