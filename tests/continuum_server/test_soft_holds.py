"""Soft holds (``kv_ttl_s``) on vLLM's scheduler: KV that a client asks to keep, if nobody else wants the memory.

Programs have two turns with a tool of 50 s between them; 20 blocks are held. One-off requests fill and leave the rest
of the pool several times in between, so that stock vLLM has evicted the KV when the program returns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from continuum_server.policy.program_table import Guards
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Tags
from nano import Played, build, each_policy, play, program

HELD = 336 // 16 - 1
"""Full blocks of the first turn's context."""


def asking(name: str, at_s: float = 0.0, seconds: float = 100.0, tool_s: float = 50.0) -> Job:
    made = program(name, turns=2, new=320, output=16, tool_s=tool_s)
    return Job(made, at_s, hints=(Tags(kv_ttl_s=seconds), Tags()))


def one_offs(new: int, count: int = 8, first_s: float = 10.0) -> list[Job]:
    return [Job(program(f"one-off-{i}", turns=1, new=new), first_s + i) for i in range(count)]


def hits(played: Played, name: str) -> int:
    """Tokens that the second turn of a program found in the cache."""
    return [event.hit_tokens or 0 for event in played.of("start") if event.program_id == name][1]


def waits(played: Played) -> list[float]:
    arrived = {event.request_id: event.t for event in played.of("arrive")}
    return [event.t - arrived[event.request_id] for event in played.of("start")]


@each_policy(["program-fcfs", "static-ttl", "continuum", "working-set"])
def test_what_nobody_else_wants_is_kept(policy: str) -> None:
    jobs = [asking("a"), asking("b", 1.0), *one_offs(new=400)]
    options: dict[str, Any] = {"ttl_s": 1.0} if policy == "static-ttl" else {}
    kept = play(jobs, policy, options, blocks=121)
    assert [hits(kept, name) for name in "ab"] == [HELD * 16] * 2
    lost = play([Job(job.program, job.arrival_s) for job in jobs], policy, options, blocks=121)
    assert max(hits(lost, name) for name in "ab") < HELD * 16 or policy == "working-set"


def test_a_soft_hold_makes_nobody_wait_and_the_oldest_goes_first() -> None:
    """Three are kept, 60 of 120 blocks. A request that needs 70 starts at once: only the newest, with 20, is kept."""
    jobs = [asking(name, float(i)) for i, name in enumerate(("old", "middle", "new"))]
    big = Job(program("big", turns=1, new=1104), 20.0)
    played, alone = play([*jobs, big], "program-fcfs", blocks=121), play([big], "program-fcfs", blocks=121)
    assert max(waits(played)) == 0.0
    assert max(hits(played, "old"), hits(played, "middle")) < HELD * 16 == hits(played, "new")
    ends = [[event.t for event in run.of("finish") if event.program_id == "big"] for run in (played, alone)]
    assert ends[0] == ends[1]


def test_what_one_soft_hold_keeps_is_evictable_and_what_two_keep_does_not_count() -> None:
    """Two programs begin with the same 160 tokens, and a third has none of them."""
    shared = {"shared_prefix_id": "system", "shared_prefix_tokens": 160}
    alike = [replace(job, program=replace(job.program, **shared)) for job in (asking("a"), asking("b", 1.0))]
    scheduler, loop = build([*alike, asking("c", 2.0), *one_offs(new=40, count=1)], "program-fcfs", {}, blocks=121)
    while loop.loop.now_s < 10.0:
        assert loop.step()
    assert len(scheduler.table.pins.soft) == 3
    assert scheduler.held.soft_blocks == 3 * HELD - 2 * 10


def test_a_soft_hold_follows_the_pin_and_is_no_pin() -> None:
    played = play([asking("a"), *one_offs(new=400)], "static-ttl", {"ttl_s": 2.0}, blocks=101)
    assert [(event.event, event.reason) for event in played.events if event.event in ("pin", "unpin")] == [
        ("pin", None),
        ("unpin", "expired"),
    ]
    assert hits(played, "a") == HELD * 16


@pytest.mark.parametrize(("seconds", "most_s"), [(30.0, 600.0), (1e6, 30.0)])
def test_a_soft_hold_ends_in_time(seconds: float, most_s: float) -> None:
    """After its seconds, or after the guard's: the return at 50 s finds what stock vLLM would have kept."""
    jobs = [asking("a", seconds=seconds), *one_offs(new=1200, first_s=35.0)]
    assert hits(play(jobs, "program-fcfs", blocks=101, guards=Guards(max_ttl_s=most_s)), "a") == 0


@pytest.mark.parametrize(("others", "kept"), [((), "def"), (one_offs(400), "ef")])
def test_soft_holds_keep_at_most_as_much_as_is_free(others: list[Job], kept: str) -> None:
    """Six programs ask for 120 of 130 blocks. Three keep theirs, but beside requests of 26 blocks only two do."""
    jobs = [asking(name, float(i), tool_s=50.0 if name in "def" else 200.0) for i, name in enumerate("abcdef")]
    played = play([*jobs, *others], "program-fcfs", blocks=131)
    assert [name for name in "def" if hits(played, name) == HELD * 16] == [*kept]


@pytest.mark.parametrize(("blocks", "kept"), [(120, 2), (121, 3)])
def test_soft_holds_may_be_as_large_as_what_is_free(blocks: int, kept: int) -> None:
    """Of 120 blocks three holds keep 60; one block is vLLM's own."""
    jobs = [*(asking(name, float(i), tool_s=200.0) for i, name in enumerate("abcd")), *one_offs(new=40, count=1)]
    scheduler, loop = build(jobs, "program-fcfs", {}, blocks=blocks)
    while loop.loop.now_s < 10.0:
        assert loop.step()
    assert len(scheduler.table.pins.soft) == kept
