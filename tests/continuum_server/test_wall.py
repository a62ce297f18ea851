"""No exception of ours reaches the engine: every hook raises at random, before or after it did its work."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.policy.base import Policy
from continuum_server.policy.facts import ProgramState, TurnFinish
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.programs import Programs
from continuum_server.policy.registry import POLICIES
from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.metrics import Metrics
from continuum_server.vllm_plugin.output_tools import OutputTools
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_server.vllm_plugin.wall import PolicyFailed
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, SchedulerEvent, ToolCall, Turn
from nano import BITING, SERVED, build, each_policy
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

OF_POLICY = (
    *("turn_arrived", "rank", "turn_started", "turn_preempted", "turn_finished", "turn_lost", "program_finished"),
    *("victim_rank", "step", "preemption_victims"),
)
OF_TABLE = (
    *("program_for", "arrive", "turn", "start", "preempt", "finish", "abort", "drop", "end_program", "siblings"),
    *("step", "overdue", "pin", "unpin", "expired", "victims"),
)
OF_PROGRAMS = ("find", "add", "note_busy", "note_idle", "note_failed", "forget")


class Fault(Exception):
    """What a hook of ours raises here."""


class Faults:
    """Makes methods raise with a probability, half of the times after they did their work."""

    def __init__(self, seed: int, share: float) -> None:
        self.random, self.share, self.raised = random.Random(seed), share, 0

    def wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*args: Any, **kwargs: Any) -> Any:
            when = self.random.random() / self.share
            if when < 0.5:
                self.fail()
            answer = method(*args, **kwargs)
            if when < 1.0:
                self.fail()
            return answer

        return faulty

    def fail(self) -> None:
        self.raised += 1
        raise Fault

    def patch(self, monkeypatch: pytest.MonkeyPatch, owner: Any, names: tuple[str, ...]) -> None:
        for name in names:
            monkeypatch.setattr(owner, name, self.wrap(getattr(owner, name)))


def crowd(programs: int = 24) -> list[Job]:
    """Programs of five turns in a pool that holds about three of them, some named alike, some sub-agents."""
    jobs = []
    for number in range(programs):
        turns = tuple(Turn(60, 12, tool_calls=(ToolCall("ls", 0.05 * (number % 7)),)) for _ in range(5))
        parent = f"p{number - 1}" if number % 5 == 4 else None
        jobs.append(Job(Program(f"p{number % 18}", turns, parent_id=parent), 0.1 * number))
    return jobs


def check_record(events: list[SchedulerEvent], end_s: float) -> None:
    """What arrived has ended, what was pinned is not any more, and no turn has the number of another."""
    metrics = Metrics()
    for event in events:
        metrics.count(event)
    assert metrics.longest_wait_s(end_s + 3600.0) == 0.0

    def turns(kind: str) -> Counter[tuple[str, int, str | None]]:
        ids = Counter((event.program_id, event.turn, event.request_id) for event in events if event.event == kind)
        return ids if kind in ("arrive", "finish") else Counter({(name, turn, None): 1 for name, turn, _ in ids})

    assert turns("arrive") == turns("finish")
    assert turns("pin") <= turns("unpin")
    numbers = Counter((name, turn) for name, turn, _ in turns("arrive"))
    assert max(numbers.values()) == 1, "a turn number is used twice"


@pytest.mark.parametrize("share", [0.002, 0.03, 0.3])
@each_policy(SERVED)
def test_every_hook_may_raise(policy: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """``next_deadline_s`` is the virtual engine's question, which no server asks: it may not fail here."""
    faults, jobs = Faults(7, share), crowd(18)
    turns: list[Any] = []
    events: list[SchedulerEvent] = []
    guards = Guards(pins_yield_to="waiting", max_overtake_s=5.0)
    kept: dict[str, Any] = {"guards": guards, "turns": turns, "events": events}
    scheduler, loop = build(jobs, policy, BITING[policy], blocks=112, scheduler_type=ProgramScheduler, **kept)
    free, table = scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), scheduler.table
    faults.patch(monkeypatch, POLICIES[policy], OF_POLICY)
    faults.patch(monkeypatch, ProgramTable, OF_TABLE)
    faults.patch(monkeypatch, Programs, OF_PROGRAMS)
    scheduler.output_tool = faults.wrap(lambda request: "ls")
    loop.run()
    monkeypatch.undo()
    assert faults.raised > 0
    assert scheduler.wall.errors >= faults.raised * 0.5  # an exception on the way back from another is one
    assert len(turns) == sum(len(job.program.turns) for job in jobs), "a request failed"
    scheduler.release_all("shutdown")
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free, "blocks leaked"
    assert not scheduler.held.blocks
    assert scheduler.kv_cache_manager.reset_prefix_cache()
    if share > 0.1:
        assert scheduler.table is not table, "nothing started over"
    check_record(events, loop.now_s)


def test_a_record_that_cannot_be_written_costs_nothing_else() -> None:
    faults = Faults(7, 0.3)
    scheduler, loop = build(crowd(12), "static-ttl", {"ttl_s": 2.0}, scheduler_type=ProgramScheduler)
    scheduler.sink = SimpleNamespace(write=faults.wrap(lambda event: None))
    loop.run()
    assert 0 < faults.raised <= scheduler.wall.errors


@pytest.mark.parametrize("hook", OF_POLICY)
def test_a_hook_that_always_raises_leaves_stock_vllm(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = crowd(12)
    turns: list[Any] = []
    _, loop = build(
        jobs, "working-set", BITING["working-set"], blocks=112, turns=turns, scheduler_type=ProgramScheduler
    )
    faults = Faults(1, 1.0)
    faults.patch(monkeypatch, POLICIES["working-set"], (hook,))
    loop.run()
    assert len(turns) == 60


@pytest.mark.parametrize("hook", ["turn_arrived", "rank", "turn_started", "turn_finished", "program_finished"])
def test_in_virtual_time_an_exception_ends_the_run(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, loop = build(crowd(12), "working-set", BITING["working-set"], blocks=112)
    faults = Faults(1, 1e-9)
    monkeypatch.setattr(POLICIES["working-set"], hook, lambda *args, **kwargs: faults.fail())
    with pytest.raises(PolicyFailed, match=r"the policy failed at '.*': Fault:  \(.*test_wall.py:\d+\)"):
        loop.run()


def test_what_is_logged_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(self: Policy, finish: TurnFinish) -> Any:
        raise ZeroDivisionError("no such number")

    monkeypatch.setattr(POLICIES["static-ttl"], "turn_finished", broken)
    scheduler, loop = build(crowd(6), "static-ttl", {"ttl_s": 2.0}, scheduler_type=ProgramScheduler)
    loop.run()
    assert scheduler.wall.errors == 24  # each turn but the last of six programs
    (record,) = [record for record in caplog.records if record.name == "continuum"]
    assert "end of a request failed" in record.getMessage()
    assert record.exc_info is not None


def test_a_program_that_a_failure_concerned_is_served_and_others_keep_their_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    finished = POLICIES["static-ttl"].turn_finished

    def broken_for_one(self: Any, finish: TurnFinish) -> Any:
        if finish.turn.program.name == "p0" and finish.turn.program.turns_finished == 2:
            raise Fault
        return finished(self, finish)

    monkeypatch.setattr(POLICIES["static-ttl"], "turn_finished", broken_for_one)
    events: list[SchedulerEvent] = []
    _, loop = build(crowd(3), "static-ttl", {"ttl_s": 60.0}, events=events, scheduler_type=ProgramScheduler)
    loop.run()
    pinned = [(event.program_id, event.turn) for event in events if event.event == "pin"]
    expected = [(f"p{program}", turn) for program in range(3) for turn in range(4)]
    assert sorted(pinned) == sorted(set(expected) - {("p0", 1)})


def test_an_output_that_cannot_be_read_costs_no_hold() -> None:
    """The tokenizer raises: the tool is unknown, nothing else."""
    read = OutputTools.__new__(OutputTools)
    read._tokenizer, read._parser = ProgramState, None  # has no ``decode``
    assert read(type("Request", (), {"output_token_ids": [1]})()) is None  # type: ignore[arg-type]


def test_a_tool_call_that_was_cut_off_is_no_traceback_in_the_log() -> None:
    """vLLM's parsers log one each time. The tool is then read from the text."""
    parser = Hermes2ProToolParser(object())  # type: ignore[arg-type]
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign, assignment]
    log = logging.getLogger(Hermes2ProToolParser.__module__)
    log.addHandler(handler)
    try:
        assert touch_points.parse_tool_calls(parser, '<tool_call>\n{"name": "bash", "argu') == []
    finally:
        log.removeHandler(handler)
    assert (logged, log.disabled) == ([], False)
