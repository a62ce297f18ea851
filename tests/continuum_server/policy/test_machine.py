"""Any order of events, under every policy that can be deployed: what must hold after each of them.

The rules use few ids, so that ids are reused, shared by requests at once, and named as parents.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
from continuum_server.policy.facts import ToolEvent
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from nano import BITING, SERVED, each_policy
from reference_engine import BLOCK_SIZE, BLOCKS, MACHINE, Engine, Request
from test_options import MACHINES, VALUES, accepted

GUARDS = Guards(max_ttl_s=60.0, max_pinned_share=0.4, max_programs=6, max_overtake_s=30.0)

NAMES = st.sampled_from("abc")
SIZES = st.sampled_from([1, 3, 10, 20])


class Chain(list[str]):
    """A request's block hashes, as vLLM has them; can be referred to weakly."""


class Machine(RuleBasedStateMachine):
    """Events of an engine and its clients."""

    policy = "vllm"

    def __init__(self) -> None:
        super().__init__()
        self.options = BITING[self.policy]
        self.hardware = MACHINE
        self.engine = Engine(self.policy, self.options, GUARDS)
        self.contexts: dict[str, tuple[str, ...]] = {}
        """By id: the context of the turn that finished last."""
        self.made = 0
        self.most = 0
        """Requests and pins at once so far."""

    def fresh(self, size: int) -> tuple[str, ...]:
        self.made += 1
        return tuple(f"{self.made}.{index}" for index in range(size))

    @initialize(data=st.data())
    def any_options(self, data: st.DataObject) -> None:
        """Half of the times others than those with which the policy acts often, on any machine."""
        names = [each.name for each in fields(POLICIES[self.policy].options_type) if each.name != "statistics"]
        if data.draw(st.booleans()):
            drawn = data.draw(st.dictionaries(st.sampled_from(names), VALUES)) if names else {}
            self.options, self.hardware = accepted(self.policy, drawn), data.draw(st.sampled_from(MACHINES))
        self.a_restart()

    # ------------------------------------------------------------------------------------- rules

    @rule(name=NAMES, size=SIZES, last=st.booleans(), wish_s=st.sampled_from([0.0, 1.0, 1e9]))
    def a_new_conversation(self, name: str, size: int, last: bool, wish_s: float) -> None:
        self.engine.arrive(name, self.fresh(size), is_last_step=last, kv_ttl_s=wish_s)
        self.step()

    @rule(name=NAMES, size=st.integers(0, 6))
    def a_next_turn(self, name: str, size: int) -> None:
        before = self.contexts.get(name, ())[: BLOCKS - 10]
        self.engine.arrive(name, before + self.fresh(max(size, 0 if before else 1)))
        self.step()

    @rule(name=NAMES, parent=NAMES, size=SIZES)
    def a_sub_agent(self, name: str, parent: str, size: int) -> None:
        self.engine.arrive(f"{name}{self.made}", self.fresh(size), parent)
        self.step()

    @rule(size=SIZES)
    def a_request_without_tags(self, size: int) -> None:
        self.engine.arrive(f"untagged-{self.made}", self.fresh(size), tagged=False)
        self.step()

    @rule(name=NAMES, number=st.integers(2, 4), own=st.integers(0, 3))
    def several_at_once(self, name: str, number: int, own: int) -> None:
        shared = self.contexts.get(name, ())[:20]
        for _ in range(number):
            self.engine.arrive(name, shared + self.fresh(own + 1))
        self.step()

    @precondition(lambda self: self.engine.running)
    @rule(output=st.integers(0, 3), size=st.integers(1, 3))
    def a_program_goes_on_at_once(self, output: int, size: int) -> None:
        """Its turn ends and the next one is there."""
        request = self.engine.running[0]
        chain = request.chain + self.fresh(min(output, BLOCKS - len(self.engine.blocks())))
        self.engine.finish(request, chain[len(request.chain) :], "ls")
        if request.turn.tagged and len(chain) < BLOCKS // 2:
            self.engine.arrive(request.turn.program.name, chain + self.fresh(size))
        self.step()

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data(), tool=st.sampled_from(["ls", None]), output=st.integers(0, 3))
    def a_turn_ends(self, data: st.DataObject, tool: str | None, output: int) -> None:
        """By itself, at its length, or at a stop string: to the program table these are one."""
        request: Request = data.draw(st.sampled_from(self.engine.running))
        room = BLOCKS - len(self.engine.blocks())
        chain = self.fresh(min(output, room))
        self.engine.finish(request, chain, tool)
        self.contexts[request.turn.program.name] = request.chain + chain
        self.step()

    @precondition(lambda self: self.engine.running or self.engine.waiting)
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        self.engine.abort(data.draw(st.sampled_from(self.engine.running + self.engine.waiting)))
        self.step()

    @precondition(lambda self: self.engine.running)
    @rule(data=st.data())
    def a_turn_is_preempted(self, data: st.DataObject) -> None:
        self.engine.preempt(data.draw(st.sampled_from(self.engine.running)))
        self.step()

    @rule(name=NAMES)
    def a_release(self, name: str) -> None:
        self.engine.release(name)
        self.step()

    @rule(name=NAMES, seconds=st.sampled_from([None, 0.0, 2.0, 1e5]))
    def a_tool_event(self, name: str, seconds: float | None) -> None:
        for program in self.engine.table.identity.programs.of(name):
            self.engine.table.tool_event(program, ToolEvent(seconds), self.engine.now_s)
        self.step()

    @rule(seconds=st.sampled_from([0.5, 3.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.step(seconds)

    def step(self, seconds: float = 0.01) -> None:
        engine = self.engine
        first = engine.table.one_offs.first(None)
        engine.step(seconds)
        assert engine.running or not engine.waiting, "requests wait, and the engine stands still"
        for _, turn in engine.started:
            for other in engine.waiting:
                late = other.turn.since_s + GUARDS.max_overtake_s < engine.now_s
                assert not (late and other.turn.sequence < turn.sequence), "overtaken after max_overtake_s"
                earlier = other.turn.program.sequence < turn.program.sequence and not other.turn.one_off
                if self.policy == "program-fcfs" and earlier and turn.one_off:
                    assert first or turn.overdue, "one-offs overtook a program beyond their share"

    @rule()
    def a_restart(self) -> None:
        """The engine dies: its clients' requests fail, and a new one knows no program."""
        before, self.engine = self.engine, Engine(self.policy, self.options, GUARDS, self.hardware)
        self.engine.now_s = before.now_s

    # -------------------------------------------------------------------------------- invariants

    @invariant()
    def pins_are_what_is_held(self) -> None:
        table, held = self.engine.table, self.engine.held
        assert set(table.pins) == set(held)
        distinct = {block for name, pin in table.pins.items() if not pin.soft for block in held[name]}
        assert table.pins.tokens == len(distinct) * BLOCK_SIZE
        soft = (name for name, pin in table.pins.items() if pin.soft)
        assert table.pins.soft_tokens == sum(len(held[name]) for name in soft) * BLOCK_SIZE
        assert table.pins.tokens <= GUARDS.max_pinned_share * BLOCKS * BLOCK_SIZE

    @invariant()
    def no_pin_is_without_a_program(self) -> None:
        table = self.engine.table
        for name, pin in table.pins.items():
            if not pin.soft:  # a soft hold keeps no program from being forgotten
                assert pin.program in table.identity.programs.of(pin.program.name)
            assert pin.program.program_id == name
            assert pin.deadline_s <= self.engine.now_s + GUARDS.max_ttl_s

    @invariant()
    def no_request_without_an_id_keeps_kv(self) -> None:
        assert not [pin for pin in self.engine.table.pins.values() if pin.program.name.startswith("untagged")]

    @invariant()
    def no_program_has_two_requests(self) -> None:
        requests = self.engine.running + self.engine.waiting
        programs = [request.turn.program for request in requests]
        assert len(set(map(id, programs))) == len(programs), "two requests of one program at once"

    @invariant()
    def memory_is_bounded(self) -> None:
        """Programs beyond the limit are forgotten when the next one comes."""
        table = self.engine.table
        here = len(self.engine.running) + len(self.engine.waiting)
        self.most = max(self.most, here + len(self.engine.held))
        assert len(table.identity.programs) <= GUARDS.max_programs + self.most + 1
        programs = table.identity.programs
        assert +programs.recognised == Counter(each.recognised_by for each in programs._programs.values())
        assert len(table._turns) == here
        assert len(table._waiting) <= len(self.engine.waiting)

    def teardown(self) -> None:
        """Whatever happened: all requests can be served, and nothing stays held."""
        engine = self.engine
        for _ in range(1_000):
            if not (engine.running or engine.waiting):
                break
            engine.step(0.5)
            if engine.running:
                engine.finish(engine.running[0], (), "ls")
        assert engine.running == engine.waiting == []
        engine.step(2 * GUARDS.max_ttl_s)
        assert not engine.held
        assert engine.table.pins.tokens == 0


@pytest.mark.parametrize("policy", SERVED)
def test_a_request_s_block_hashes_go_with_it(policy: str) -> None:
    """They are vLLM's own list, megabytes for a long prompt, and programs are remembered for long."""
    engine, chains = Engine(policy, BITING[policy], GUARDS), []
    for number in range(30):
        chain = Chain(f"{number}.{index}" for index in range(20))
        chains.append(weakref.ref(chain))
        request: Any = engine.arrive(f"p{number}", chain)  # type: ignore[arg-type]
        del chain
        engine.step(0.1)
        if number % 3 or request not in engine.running:
            engine.abort(request)
        else:
            engine.finish(request, [], "ls")  # type: ignore[arg-type]
        del request
    engine.step(2 * GUARDS.max_ttl_s)
    engine.started.clear()
    assert not any(chain() for chain in chains[:-1])


@pytest.mark.hypothesis  # `make fuzz` runs it too
@each_policy()
def test_whatever_happens(policy: str) -> None:
    machine: Any = type("MachineOf", (Machine,), {"policy": policy})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=settings.default.max_examples // 2, stateful_step_count=60)
    )
