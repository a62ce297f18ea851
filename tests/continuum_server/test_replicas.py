"""Several virtual engines behind a router: nothing lost, nothing before its cause, one engine as without a router."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.policy.facts import PrefillCurve
from continuum_server.policy.program_table import Guards
from continuum_server.routers import ROUTERS, Arrival, Door
from continuum_server.virtual.config import EngineError, EngineShape
from continuum_server.virtual.engine import build_engine
from continuum_server.virtual.offload import Offload
from continuum_server.virtual.replicas import ReplicaLoops, ReplicaSink
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import SchedulerEvent, TurnRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import NANO, PlainTimes, check_turns, play, program, tier, workloads

SHAPE = EngineShape(NANO, 4096, 64, 16, 8, 256)
LEAST_STEP_S = 0.01
"""Of ``PlainTimes``."""


class Outcome:
    """A run on several replicas, checked for leaks."""

    def __init__(
        self,
        jobs: list[Job],
        router: str,
        replicas: int = 3,
        policy: str = "static-ttl",
        max_stretch: int = 512,
        least_step_s: float = LEAST_STEP_S,
        offload: Offload | None = None,
        most_idle_s: float = inf,
    ) -> None:
        shape = replace(SHAPE, offload=offload)
        self.events: list[SchedulerEvent] = []
        self.turns: list[TurnRecord] = []
        times, sink = PlainTimes(), SimpleNamespace(write=self.events.append)
        own = Settings(policy, {}, Guards(), PrefillCurve(0.0, 1e-4, 0.01, "t"))
        sinks = [ReplicaSink(index, sink) for index in range(replicas)]
        limits: dict[str, Any] = {"max_stretch": max_stretch, "max_calls": 200_000}
        engines = [build_engine(shape, times, own, (), self.turns.append, each, **limits) for each in sinks]
        self.loops = [engine.loop for engine in engines]
        driver = ReplicaLoops(self.loops, ROUTERS[router](), jobs, least_step_s, most_idle_s=most_idle_s)
        driver.run()
        self.skipped_s = driver.skipped_s
        for engine in engines:
            assert engine.close() == 0, "blocks leaked"
            scheduler = engine.scheduler
            assert not scheduler.table.pins
            assert scheduler.kv_cache_manager.reset_prefix_cache()

    def places(self) -> dict[str, list[int | None]]:
        """By program: the replica of each turn."""
        found: dict[str, list[int | None]] = defaultdict(list)
        for event in sorted(self.events, key=lambda e: e.turn):
            if event.event == "arrive":
                found[event.program_id].append(event.replica)
        return dict(found)


def crowd() -> list[Job]:
    return [Job(program(f"p{i}", turns=4, new=50 + i, output=6 + i % 5, tool_s=0.2), 0.05 * i) for i in range(12)]


def check_skipping(jobs: list[Job], router: str, **rest: Any) -> tuple[Outcome, Outcome]:
    """A stretch of steps ends before any turn that another replica's answer may bring."""
    skipping, stepwise = (Outcome(jobs, router, max_stretch=most, **rest) for most in (512, 1))
    check_turns(skipping.turns, jobs)
    assert sorted(skipping.turns, key=_key) == sorted(stepwise.turns, key=_key)
    assert skipping.places() == stepwise.places()
    return skipping, stepwise


@given(
    jobs=workloads(wishes=True),
    router=st.sampled_from(sorted(ROUTERS)),
    policy=st.sampled_from(["vllm", "static-ttl", "continuum", "working-set"]),
)
@settings(max_examples=settings.default.max_examples // 2)
def test_every_program_completes_and_skipping_changes_nothing(router: str, policy: str, jobs: list[Job]) -> None:
    check_skipping(jobs, router, policy=policy)


def late(most_idle_s: float, replicas: int = 1) -> tuple[dict[tuple[str, int], TurnRecord], float]:
    """Two programs that arrive after 50 and 50.5 s and have a tool of 30 s: the turns, and what was skipped."""
    jobs = [Job(program(name, turns=2, tool_s=30.0), at_s) for name, at_s in (("a", 50.0), ("b", 50.5))]
    played = Outcome(jobs, "round-robin", replicas, most_idle_s=most_idle_s)
    return {(turn.program_id, turn.turn): turn for turn in played.turns}, played.skipped_s


@pytest.mark.parametrize("replicas", [1, 2])
def test_all_turns_come_earlier_if_none_runs_for_too_long(replicas: int) -> None:
    turns, skipped_s = late(4.0, replicas)
    first, second = (turns[name, 0].finish_s or 0.0 for name in "ab")
    assert [turns[name, 0].due_s for name in "ab"] == pytest.approx([4.0, 4.5])
    assert [turns[name, 1].due_s for name in "ab"] == pytest.approx([second + 4.0, 2 * second - first + 4.0])
    assert skipped_s == pytest.approx(50.0 - 4.0 + first + 30.0 - (second + 4.0))


@pytest.mark.parametrize(("most_idle_s", "earlier_s"), [(inf, 0.0), (50.0, 0.0), (49.75, 0.25)])
def test_turns_come_as_planned_up_to_the_longest_idle_time(most_idle_s: float, earlier_s: float) -> None:
    turns, skipped_s = late(most_idle_s)
    planned, _ = late(inf)
    assert skipped_s == earlier_s
    for key, turn in turns.items():
        assert turn.due_s == pytest.approx(planned[key].due_s - earlier_s)


def long_and_short() -> list[Job]:
    """Long answers on both replicas, and programs whose short turns come back in their midst."""
    long = [Job(program(f"long{i}", turns=1, output=150), 0.0) for i in range(2)]
    return [
        *long,
        *[Job(program(f"short{i}", turns=8, new=20, output=2, tool_s=0.04 + 0.03 * i), 0.1) for i in range(3)],
    ]


def test_turns_that_come_while_a_replica_waits_for_a_copy() -> None:
    """Tiers behind slow links: the GPU stands still until blocks it is about to overwrite are copied away."""
    check_skipping(crowd(), "least-loaded", offload=Offload(tier(200, 20.0)))


@pytest.mark.parametrize("router", ROUTERS)
def test_short_turns_come_back_in_the_midst_of_long_answers(router: str) -> None:
    skipping, stepwise = check_skipping(long_and_short(), router, replicas=2)
    calls = [sum(loop.counters.scheduler_calls for loop in one.loops) for one in (skipping, stepwise)]
    assert calls[0] < calls[1]


def test_a_replica_that_went_too_far_ends_the_run() -> None:
    """No step is as long as said here: a stretch would pass over turns that other replicas' answers bring."""
    with pytest.raises(EngineError, match="ran past the arrival of a turn"):
        Outcome(long_and_short(), "round-robin", replicas=2, least_step_s=100.0)


def _key(turn: TurnRecord) -> tuple[str, int]:
    return turn.program_id, turn.turn


@given(
    jobs=workloads(),
    router=st.sampled_from(sorted(ROUTERS)),
    policy=st.sampled_from(["vllm", "static-ttl", "continuum"]),
)
@settings(max_examples=settings.default.max_examples // 4)
def test_one_replica_equals_none(router: str, policy: str, jobs: list[Job]) -> None:
    behind, plain = Outcome(jobs, router, replicas=1, policy=policy), play(jobs, policy)
    assert behind.turns == plain.turns
    assert [replace(event, replica=None) for event in behind.events] == plain.events[: len(behind.events)]
    assert behind.loops[0].counters == plain.loop.counters


def test_round_robin_deals_out_turns() -> None:
    door = Door(ROUTERS["round-robin"](), 3)
    assert [door.send(Arrival(name, 10)) for name in "abcaa"] == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("router", ["affinity", "sticky"])
def test_a_program_stays(router: str) -> None:
    door = Door(ROUTERS[router](), 4)
    homes = {name: door.send(Arrival(name, 10)) for name in map(str, range(40))}
    assert set(homes.values()) == {0, 1, 2, 3}
    assert router == "affinity" or [*homes.values()] == [0, 1, 2, 3] * 10  # sticky gives each as many
    assert {name: door.send(Arrival(name, 10)) for name in homes} == homes
    door.forget("0")
    assert not any("0" in replica.programs for replica in door.replicas.values())


def test_the_least_loaded_replica_has_the_fewest_requests_then_tokens() -> None:
    door = Door(ROUTERS["least-loaded"](), 2)
    first = Arrival("a", 100)
    assert [door.send(first), door.send(Arrival("b", 900)), door.send(Arrival("c", 10))] == [0, 1, 0]
    assert door.send(Arrival("d", 10)) == 1
    door.answered(0, first)
    assert door.send(Arrival("e", 10)) == 0
    assert door.replicas[0].tokens == 20


def test_cache_aware_follows_the_longest_prefix_it_sent() -> None:
    door = Door(ROUTERS["cache-aware"](), 2)
    assert door.send(Arrival("a", 1000)) == 0
    assert door.send(Arrival("b", 400)) == 1  # unknown: where fewer tokens were sent
    assert door.send(Arrival("a", 1500)) == 0
    assert door.send(Arrival("b", 500)) == 1
    assert door.send(Arrival("a", 1600, kept_tokens=100)) == 1  # its history was rewritten: 100 of 1600 is too little


def test_cache_aware_sees_shared_prefixes() -> None:
    door = Door(ROUTERS["cache-aware"](), 2)
    shared = {"shared_prefix_id": "system", "shared_prefix_tokens": 800}
    assert [door.send(Arrival(name, 1000, **shared)) for name in "abc"] == [0, 0, 0]
