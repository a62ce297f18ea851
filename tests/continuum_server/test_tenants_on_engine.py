"""Fair sharing between API keys on vLLM's scheduler, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from continuum_server.policy import tenants
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES
from continuum_server.policy.tenants import LATE
from continuum_traces.conversation import Job
from continuum_traces.schema import SchedulerEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import BITING, build, each_policy, keyed, play, program, workloads

A, B = "a" * 16, "b" * 16
ORDERED = [name for name, policy in POLICIES.items() if not policy.stock_order]
LAG = 0.2
"""Of the pool of 48 blocks: 0.015 s."""
TICK_S = 0.01


def events(jobs: list[Job], policy: str, guards: Guards, key_of: Callable[[str], str | None]) -> list[SchedulerEvent]:
    with keyed(key_of):
        return play(jobs, policy, BITING[policy], blocks=48, guards=guards).events


@each_policy()
@given(jobs=workloads(wishes=True), key=st.sampled_from([None, A]))
@settings(max_examples=settings.default.max_examples // 12)
def test_one_key_or_none_changes_no_event(policy: str, jobs: list[Job], key: str | None) -> None:
    fair, unfair = (events(jobs, policy, Guards(fair=fair), lambda name: key) for fair in ("keys", "none"))
    assert fair == unfair


class Watch:
    """The virtual times of keys at all events."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._since_s: dict[str, float] = {}
        self.longest_s = 0.0
        """Longest stay of a request in the engine once it started, and the longest computation of a prompt."""
        self.most_s = 0.0
        """Largest difference between the virtual time of a key and that of one that waits."""

    def write(self, event: SchedulerEvent) -> None:
        keys = list(self._scheduler.table.tenants)
        if event.event in ("start", "resume"):
            self._since_s.setdefault(str(event.request_id), event.t - 1e-4 * (event.prompt_tokens or 0))
        if event.event == "finish":
            self.longest_s = max(self.longest_s, event.t - self._since_s.pop(str(event.request_id), event.t))
        waiting = [key.virtual_s for key in keys if key.waiting]
        if waiting:
            self.most_s = max(self.most_s, max(key.virtual_s for key in keys) - min(waiting))


@st.composite
def crowds(draw: st.DrawFn) -> list[Job]:
    """Programs of two or three keys, the first letters of their names. Key a keeps the engine busy for seconds."""
    jobs = []
    for number in range(draw(st.integers(9, 16))):
        key = "a" if number < 8 else draw(st.sampled_from("bbc"))
        sizes = {"turns": draw(st.integers(1, 4)), "new": draw(st.integers(1, 150)), "output": draw(st.integers(1, 30))}
        name, since_s = f"{key}{number}", draw(st.floats(0.0, 0.2 if key == "a" else 2.0))
        jobs.append(Job(program(name, tool_s=draw(st.sampled_from([0.0, 0.3])), **sizes), since_s))
    return jobs


@pytest.mark.hypothesis
@each_policy(ORDERED)
@given(jobs=crowds())
@settings(max_examples=settings.default.max_examples // 8)
def test_no_key_falls_behind_by_more_than_the_lag_and_a_request(policy: str, jobs: list[Job]) -> None:
    """Whatever the policy, a key with a waiting request is at most a lag and the longest request behind every other.
    If the policy holds requests back, ``LATE`` lags and two requests."""
    with pytest.MonkeyPatch.context() as patch, keyed(lambda name: 16 * name[0]):
        patch.setattr(tenants, "TICK_S", TICK_S)
        scheduler, loop = build(jobs, policy, BITING[policy], blocks=48, guards=Guards(key_lag=LAG))
        scheduler.sink = watch = Watch(scheduler)
        loop.run()
    lags, requests = (LATE, 2) if POLICIES[policy].steps else (1.0, 1)
    assert watch.most_s <= lags * scheduler.table.tenants.lag_s + TICK_S + requests * watch.longest_s


def test_a_key_with_one_request_does_not_wait_for_the_queue_of_another() -> None:
    """Sixteen programs of one key wait when another key's only program comes."""
    jobs = [Job(program(f"p{number}", turns=1, new=300, output=20), 0.01 * number) for number in range(16)]
    jobs.append(Job(program("q", turns=1, new=300, output=20), 0.5))
    started = {}
    for fair in ("keys", "none"):
        rows = events(jobs, "program-fcfs", Guards(fair=fair, key_lag=LAG), lambda name: B if name == "q" else A)  # type: ignore[arg-type]
        starts = [event.program_id for event in rows if event.event == "start"]
        started[fair] = next(place for place, name in enumerate(starts) if name.endswith("q"))
    assert started["none"] == 16
    assert started["keys"] < 8
