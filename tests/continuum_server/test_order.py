"""The order on vLLM's real scheduler, in random crowds: who is first runs as soon as it fits, and nobody else before.

The test has its own idea of places and counts blocks by itself.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from continuum_server.policy.facts import TurnState
from continuum_server.policy.pins import Pin
from continuum_server.policy.program_table import Guards
from continuum_server.vllm_plugin import kv_groups, touch_points
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn
from nano import build, check_turns, keyed

BOUND_S = 6.0
"""``max_overtake_s`` here."""


IDS = {f"p{number}" for number in range(24)}


def crowd(seed: int) -> list[Job]:
    """Agents, long streams, large prompts, sub-agents and single requests, in a pool that holds a few of them."""
    drawn, jobs = random.Random(seed), list[Job]()
    for number in range(drawn.randint(6, 24)):
        kind = drawn.choice(["agent", "agent", "stream", "giant", "child", "chat"])
        turns = drawn.randint(2, 6) if kind in ("agent", "child") else 1
        new = drawn.randint(400, 900) if kind == "giant" else drawn.randint(10, 120)
        output = drawn.randint(150, 500) if kind == "stream" else drawn.randint(2, 30)
        calls = (ToolCall("ls", drawn.choice([0.0, 0.05, 0.3, 2.0])),)
        made = tuple(Turn(new if not turn else 40, output, tool_calls=calls) for turn in range(turns))
        parent = {"parent_id": f"p{number - 1}"} if kind == "child" and number else {}
        jobs.append(Job(Program(f"p{number}", made, tagged=kind != "chat", **parent), drawn.uniform(0.0, 4.0)))
    return sorted(jobs, key=lambda job: job.arrival_s)


def priority_of(name: str) -> int:
    """The priority of a program's requests, which those without an id lack. The server takes -3 as 0."""
    own = name.split(":")[-1]  # behind the key
    return random.Random(own).choice((0, 0, -3, 1, 7)) if own in IDS else 0


class Watch:
    """What must hold in every step of a scheduler.

    Args:
        priorities: whether clients give priorities.
    """

    def __init__(self, scheduler: Any, priorities: bool) -> None:
        self.priorities = priorities
        self.scheduler, self.refused, self.seen = scheduler, list[str](), Counter[str]()
        self.had_pin: dict[str, bool] = {}
        """Whether a turn had a pin when it started."""
        manager = scheduler.kv_cache_manager
        manager.allocate_slots = self.allocating(manager.allocate_slots)
        self.schedule, scheduler.schedule = scheduler.schedule, self.step
        self.add_request, scheduler.add_request = scheduler.add_request, self.with_priority
        self.preempt, scheduler.preempted = scheduler.preempted, self.preempted

    # ---------------------------------------------------------------------------- its own idea of the order

    def with_priority(self, request: Any) -> None:
        request.priority = self.priority(touch_points.sampling(request).extra_args.get("program_id"))
        self.add_request(request)

    def priority(self, name: str | None) -> int:
        return priority_of(name or "") if self.priorities else 0

    def place(self, turn: TurnState) -> tuple[Any, ...]:
        """By priority: overdue turns, one-offs while they are first, turns with a pin (also if they have used it up),
        others."""
        table, program = self.scheduler.table, turn.program
        if turn.overdue:
            return -1, 0, turn.sequence
        priority = max(0, self.priority(program.name))
        if turn.one_off and table.one_offs.first(program.namespace):
            return priority, 1, *table.policy.rank(turn)
        held = table.pins.get(program.program_id)
        pinned = self.had_pin.get(turn.request_id, held is not None and not held.soft)
        return priority, 3 - (pinned and not turn.one_off), *table.policy.rank(turn)

    def waiting(self) -> list[TurnState]:
        return [self.scheduler.table.turn(request.request_id) for request in self.scheduler.waiting]

    def first(self) -> TurnState | None:
        tenants, turns = self.scheduler.table.tenants, self.waiting()
        allowed = tenants.within_lag({turn.program.namespace for turn in turns}) if turns else ()
        return min((turn for turn in turns if turn.program.namespace in allowed), key=self.place, default=None)

    def yields(self, pin: Pin, asker: TurnState) -> bool:
        """Whether the pin's next turn waits behind the asker, or comes after it in any case. A key that is ahead takes
        nothing of another."""
        turn = pin.program.turn
        if self.scheduler.table.tenants.ahead(asker.program.namespace, pin.program.namespace):
            return False
        if pin.program is asker.program or turn is None:
            away = max(0, self.priority(pin.program.name)), 2
            return pin.program is not asker.program and self.place(asker)[:2] < away
        return self.place(asker) < self.place(turn) and self.scheduler.table.policy.pins_yield_to == "waiting"

    # ----------------------------------------------------------------------------------- in every step

    def allocating(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        def checked(request: Any, *args: Any, **kwargs: Any) -> Any:
            turn, runs = self.scheduler.table.turn(request.request_id), touch_points.is_running(request)
            if not runs:
                assert turn is self.first(), "not the first one"
                free, blocks = self.room(turn)
            made = allocate(request, *args, **kwargs)
            if made is None and not runs:
                self.refused.append(request.request_id)
                wanted = kv_groups.blocks_wanted(self.scheduler, request, kwargs)
                assert free + blocks < wanted, "it fits into what is free and what yields"
                assert self.scheduler.running, "the engine stands still"
            elif not runs:
                self.had_pin.setdefault(turn.request_id, self.place(turn)[1] == 2)
            return made

        return checked

    def room(self, asker: TurnState) -> tuple[int, int]:
        """Free blocks, and those that nobody but pins that yield refers to. Between keys there are claims besides."""
        scheduler = self.scheduler
        yielding = [pin for pin in scheduler.table.pins.values() if self.yields(pin, asker)]
        held, references = Counter[int](), dict[int, int]()
        for pin in yielding:
            for block in scheduler.held.blocks[pin.program.program_id]:
                held[block.block_id] += 1
                references[block.block_id] = block.ref_cnt
        alone = sum(references[block] == number for block, number in held.items())
        return touch_points.free_block_count(scheduler), alone

    def step(self, *args: Any, **kwargs: Any) -> Any:
        self.refused.clear()
        scheduler = self.scheduler
        self.step_s = scheduler.clock()
        output = self.schedule(*args, **kwargs)
        head = self.first()
        if head is not None:
            full = len(scheduler.running) >= scheduler.max_num_running_reqs
            spent = output.total_num_scheduled_tokens >= 256 or touch_points.preempted_ids(output)
            charged = scheduler.table.tenants.several and output.scheduled_new_reqs  # by now another key may be first
            if not (full or spent or charged):
                assert head.request_id in self.refused, "the first one was not tried"
                self.seen["refused"] += 1
        started = {scheduler.table.turn(each.req_id) for each in output.scheduled_new_reqs}
        for turn in self.waiting():
            late = self.step_s - turn.since_s > BOUND_S
            assert not late or all(each.overdue and each.sequence < turn.sequence for each in started), "overtaken"
        return output

    def preempted(self, request_id: str, now_s: float) -> None:
        turn = self.scheduler.table.turn(request_id)
        before, table = turn.place, self.scheduler.table
        others = [table.turn(request.request_id) for request in self.scheduler.running]
        last = max(map(table.order.place_of_running, others), default=(-1.0, -1, (), 0.0))
        assert table.tenants.several or table.order.place_of_running(turn) > last, "it is not placed last"
        self.preempt(request_id, now_s)
        assert self.scheduler.table.order.place(turn) == before or turn.overdue, "a preempted turn lost its place"
        self.seen["preempted"] += 1


@pytest.mark.parametrize("keys", [1, 2])
@pytest.mark.parametrize("policy", ["working-set", "static-ttl"])
def test_the_first_one_runs_as_soon_as_it_fits(policy: str, keys: int) -> None:
    seen = Counter[str]()
    for seed in range(12):
        jobs, turns = crowd(seed), list[Any]()
        options = {"ttl_s": 1.0} if policy == "static-ttl" else {}
        blocks, guards = random.Random(seed).randint(64, 100), Guards(max_overtake_s=BOUND_S, max_pinned_share=1.0)
        scheduler, loop = build(jobs, policy, options, blocks=blocks, guards=guards, turns=turns, max_stretch=1)
        watch = Watch(scheduler, priorities=seed % 2 == 1)
        with keyed(lambda name: f"{len(name) % 2:016x}") if keys > 1 else nullcontext():
            loop.run()
        check_turns(turns, jobs)
        seen += watch.seen
    assert seen["refused"] > 100
    assert seen["preempted"] >= 5
