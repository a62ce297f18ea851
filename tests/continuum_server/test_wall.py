"""No exception of ours reaches the engine: every hook raises at random, before or after it did its work."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.policy.facts import ProgramState, TurnFinish
from continuum_server.policy.identity import Identity
from continuum_server.policy.order import Order
from continuum_server.policy.pins import Pins
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.programs import Programs
from continuum_server.policy.registry import POLICIES
from continuum_server.policy.tenants import Tenants
from continuum_server.vllm_plugin import touch_points
from continuum_server.vllm_plugin.metrics import Metrics
from continuum_server.vllm_plugin.output_tools import OutputTools
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_server.vllm_plugin.wall import PolicyFailed
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, SchedulerEvent, ToolCall, Turn
from nano import BITING, SERVED, build, each_policy, keyed
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

OF_POLICY = (
    *("turn_arrived", "rank", "turn_started", "turn_preempted", "turn_finished", "turn_lost", "program_finished"),
    *("position", "step", "preemption_victims"),
)
OF_TABLE = (
    *("arrive", "turn", "start", "preempt", "finish", "abort", "drop", "end_program"),
    *("step", "overdue"),
)
OF_ORDER = ("place", "keep_place", "yielding", "preempted_for")
OF_TENANTS = ("arrived", "started", "preempted", "left", "tick", "claim", "overrun", "step_tokens")
OF_PINS = ("add", "end", "expired")
OF_PROGRAMS = ("find", "with_key", "add", "note_busy", "note_idle", "note_failed", "forget")


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
    kinds = ("arrive", "finish", "pin", "unpin")
    arrive, finish, pin, unpin = (
        Counter((event.program_id, event.turn, event.request_id) for event in events if event.event == kind)
        for kind in kinds
    )
    assert arrive == finish
    assert {key[:2] for key in pin} <= {key[:2] for key in unpin}
    assert max(Counter(key[:2] for key in arrive).values()) == 1, "a turn number is used twice"


@pytest.mark.parametrize(("share", "keys"), [(0.002, 2), (0.03, 1), (0.03, 2), (0.3, 1)])
@each_policy(SERVED)
def test_every_hook_may_raise(policy: str, share: float, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``next_deadline_s`` is the virtual engine's question, which no server asks: it may not fail here."""
    faults, jobs = Faults(7, share), crowd(18)
    turns: list[Any] = []
    events: list[SchedulerEvent] = []
    guards = Guards(pins_yield_to="waiting", max_overtake_s=5.0, key_lag=0.1)
    kept: dict[str, Any] = {"guards": guards, "turns": turns, "events": events}
    scheduler, loop = build(jobs, policy, BITING[policy], blocks=112, scheduler_type=ProgramScheduler, **kept)
    free, table = scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), scheduler.table
    faults.patch(monkeypatch, POLICIES[policy], OF_POLICY)
    faults.patch(monkeypatch, ProgramTable, OF_TABLE)
    faults.patch(monkeypatch, Order, OF_ORDER)
    faults.patch(monkeypatch, Pins, OF_PINS)
    faults.patch(monkeypatch, Identity, ("program_for",))
    faults.patch(monkeypatch, Programs, OF_PROGRAMS)
    faults.patch(monkeypatch, Tenants, OF_TENANTS)
    scheduler.output_tool = faults.wrap(lambda request: "ls")
    with keyed(lambda name: f"{int(name[1:]) % keys:016x}"):
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


@pytest.mark.parametrize("hook", ["turn_arrived", "rank", "turn_started", "turn_finished", "program_finished"])
def test_in_virtual_time_an_exception_ends_the_run(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, loop = build(crowd(12), "working-set", BITING["working-set"], blocks=112)
    monkeypatch.setattr(POLICIES["working-set"], hook, Faults(1, 1.0).wrap(Faults.fail))
    with pytest.raises(PolicyFailed, match=r"the policy failed at '.*': Fault:  \(.*test_wall.py:\d+\)"):
        loop.run()


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


def test_a_failure_is_logged_once_and_costs_only_what_it_concerned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The third turn of ``p0`` and all turns of ``p1`` are not held; others keep their holds."""
    finished = POLICIES["static-ttl"].turn_finished

    def broken(self: Any, finish: TurnFinish) -> Any:
        if (name := finish.turn.program.name) == "p1" or (name == "p0" and finish.turn.program.turns_finished == 2):
            raise Fault
        return finished(self, finish)

    monkeypatch.setattr(POLICIES["static-ttl"], "turn_finished", broken)
    events: list[SchedulerEvent] = []
    scheduler, loop = build(crowd(3), "static-ttl", {"ttl_s": 60.0}, events=events, scheduler_type=ProgramScheduler)
    loop.run()
    pinned = [(event.program_id, event.turn) for event in events if event.event == "pin"]
    assert sorted(pinned) == sorted({(f"p{n}", turn) for n in (0, 2) for turn in range(4)} - {("p0", 1)})
    assert scheduler.wall.errors == 5
    (record,) = [record for record in caplog.records if record.name == "continuum"]
    assert "end of a request failed" in record.getMessage()
    assert record.exc_info is not None
