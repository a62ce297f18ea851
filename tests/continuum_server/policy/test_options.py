"""Every option of every policy: what is accepted builds a policy that lives; what is not is one line."""

from __future__ import annotations

import math
import random
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from continuum_server.policy.base import Future, Policy
from continuum_server.policy.facts import DecodeLine, Machine, PrefillCurve, Step, Stored, TurnState
from continuum_server.policy.program_table import Guards, ProgramTable
from continuum_server.policy.registry import POLICIES, PolicyError, make_policy, read_options
from hypothesis import given, settings
from hypothesis import strategies as st

PAGES = Path(__file__).parents[3] / "docs" / "policies"
MACHINES = (
    Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=10_000),
    Machine(PrefillCurve(0.0, 0.0, 0.0), kv_tokens=64, max_num_batched_tokens=1),
    Machine(PrefillCurve(1e-9, 1e-5, 0.01), 50_000, 2048, 1e-6, 1e-5, DecodeLine(0.005, 1e-7)),
)
EDGES = (0, 1, 2, 3, 64, 0.5, 0.999, 1e-320, 1e-9, 1e-3, 1e6, 1e9, 1e300, 10**6, 10**9, 10**30, 10**400)
NOT_NUMBERS = (True, "2", "0.5", "none", "evicted", "moon", None, [], {}, b"1", math.inf, math.nan, -1, -0.5)
VALUES = (
    st.sampled_from((*EDGES, *NOT_NUMBERS))
    | st.integers(0, 2000)
    | st.floats(0.0, 1e6, exclude_min=True)
    | st.floats(0.0, 1.0)
)


class Foreseen(dict[str, Future]):
    def __missing__(self, request_id: str) -> Future:
        seconds = float(len(request_id))
        return Future(seconds, seconds, seconds, seconds)


def accepted(policy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that are taken one by one."""
    taken: dict[str, Any] = {}
    for name, value in options.items():
        try:
            read = read_options(POLICIES[policy], {name: value})
        except PolicyError as error:
            message = str(error)
        else:
            taken |= read
            continue
        assert name in message
        assert len(message) < 300
    return taken


class Life:
    """Turns that arrive, run, lose their place, finish and are lost, in an order drawn at random."""

    def __init__(self, policy: str, options: dict[str, Any], machine: Machine, seed: int) -> None:
        self.chance = random.Random(seed)
        made = make_policy(policy, options, machine)
        if made.label == "bound":
            made.oracle = Foreseen()
        self.table = ProgramTable(made, Guards(max_programs=3), machine.kv_tokens)
        self.now_s = 0.0
        self.turns: list[TurnState] = []

    def play(self, moves: int = 60) -> None:
        actions = (self.arrive, self.arrive, self.start, self.start, self.preempt, self.finish, self.finish, self.abort)
        for _ in range(moves):
            self.chance.choice(actions)()
            self.look()
            self.now_s += self.chance.choice((0.0, 0.01, 1.0, 7.0, 700.0))

    def arrive(self) -> None:
        name = f"p{self.chance.randrange(5)}"
        program = self.table.program_for(name, self.now_s, self.chance.choice((None, "p0")))
        sequence, tagged = self.table.next_sequence(), self.chance.random() < 0.9
        turn = TurnState(program, program.turns_arrived, f"r{sequence}", self.now_s, 1, sequence, tagged=tagged)
        turn.prompt_tokens = self.chance.choice((1, 100, 5000, 20_000))
        turn.is_last = self.chance.random() < 0.2
        turn.soft_hold_s = self.chance.choice((0.0, 5.0))
        self.table.arrive(turn, self.now_s)
        self.turns.append(turn)

    def pick(self, running: bool) -> TurnState | None:
        found = [turn for turn in self.turns if turn.running is running]
        return self.chance.choice(found) if found else None

    def start(self) -> None:
        turn = self.pick(running=False)
        if turn is not None and (self.table.policy.stock_order or self.table.policy.rank(turn) is not None):
            self.table.start(turn, self.now_s, self.chance.choice((0, turn.prompt_tokens)), 16)
            self.table.unpin(turn.program.program_id)

    def preempt(self) -> None:
        turn = self.pick(running=True)
        if turn is not None:
            self.table.preempt(turn, self.now_s)

    def finish(self) -> None:
        turn = self.pick(running=True)
        if turn is None:
            return
        self.turns.remove(turn)
        self.table.unpin(turn.program.program_id)
        context, tool = turn.prompt_tokens + 50, self.chance.choice((None, "ls", "pytest"))
        stored = None if self.table.policy.machine.swap_token_s is None else Stored(context, context // 2)
        hold = self.table.finish(turn, self.now_s, context, 50, tool, stored)
        if hold is not None:
            assert 0.0 < max(hold.ttl_s, hold.soft_s) <= self.table.guards.max_ttl_s
            self.table.pin(turn, self.now_s, hold, [(turn.request_id, block) for block in range(context // 16)])

    def abort(self) -> None:
        turn = self.chance.choice(self.turns) if self.turns else None
        if turn is not None:
            self.turns.remove(turn)
            self.table.abort(turn)
            self.table.unpin(turn.program.program_id)

    def look(self) -> None:
        """What an engine asks before a step."""
        for program in self.table.step(Step(self.now_s, 1000)).release:
            self.table.unpin(program.program_id)
        for pin in self.table.expired(self.now_s):
            self.table.unpin(pin.program.program_id)
        policy, running = self.table.policy, [turn for turn in self.turns if turn.running]
        for turn in self.turns:
            policy.rank(turn)
            if policy.preempts and not turn.running:
                policy.preemption_victims(turn, running, self.now_s)
            list(self.table.victims(turn, must_free=False))
        next_event_s = self.table.next_deadline_s()
        assert next_event_s is None or not math.isnan(next_event_s)
        policy.state()
        policy.export_statistics()


@pytest.mark.parametrize("policy", POLICIES)
@given(data=st.data(), machine=st.sampled_from(MACHINES), seed=st.integers(0, 99))
@settings(max_examples=settings.default.max_examples // 2)
def test_any_accepted_options_make_a_policy_that_lives(
    policy: str, data: st.DataObject, machine: Machine, seed: int
) -> None:
    names = [each.name for each in fields(POLICIES[policy].options_type) if each.name != "statistics"]
    chosen = data.draw(st.sets(st.sampled_from(names))) if names else set()
    drawn = {name: data.draw(VALUES, label=name) for name in sorted(chosen)}
    Life(policy, accepted(policy, drawn), machine, seed).play()


@pytest.mark.parametrize("policy", POLICIES)
def test_each_option_at_its_edges(policy: str) -> None:
    for each in fields(POLICIES[policy].options_type):
        for value in (*EDGES, *NOT_NUMBERS):
            options = accepted(policy, {each.name: value}) if each.name != "statistics" else {}
            for machine in MACHINES if options else ():
                Life(policy, options, machine, 1).play(40)


@pytest.mark.parametrize(
    ("policy", "name", "value", "allowed"),
    [
        ("static-ttl", "delay_window", 0, "must be a whole number from 1 to 10000000"),
        ("static-ttl", "delay_window", 2.9, "must be a whole number from 1 to 10000000"),
        ("static-ttl", "delay_window", True, "must be a whole number from 1 to 10000000"),
        ("static-ttl", "delay_window", "2.9", "must be a whole number from 1 to 10000000"),
        ("static-ttl", "ttl_s", False, "must be a number from 0 to 1000000000, or none"),
        ("static-ttl", "ttl_s", [1], "must be a number from 0 to 1000000000, or none"),
        ("continuum", "delay_of", "moon", "must be one of evicted, lost"),
        ("continuum", "delay_of", 1, "must be one of evicted, lost"),
        ("continuum", "statistics", 5, "must be text, or none"),
        ("continuum-v1", "delta", 1.0, "must be a number above 1e-12, below 1"),
        ("infercept", "swap_stalls", 2, "must be a whole number from 0 to 1"),
        ("thunderagent", "interval_s", 0, "must be a number from 0.001 to 1000000000"),
        ("working-set", "share", True, "must be a number from 0 to 1000"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(policy: str, name: str, value: object, allowed: str) -> None:
    with pytest.raises(PolicyError) as refused:
        read_options(POLICIES[policy], {name: value})
    assert str(refused.value) == f"policy {policy!r}: option {name} = {value!r}: {allowed}"


def test_numbers_may_come_as_text() -> None:
    read = read_options(POLICIES["static-ttl"], {"ttl_s": "2", "delay_window": "7"})
    assert read == {"ttl_s": 2.0, "delay_window": 7}
    assert isinstance(read["ttl_s"], float)
    assert read_options(POLICIES["static-ttl"], {"ttl_s": 3}) == {"ttl_s": 3.0}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_rule_is_a_file_and_a_page(policy: type[Policy]) -> None:
    file = "bounds" if policy.label == "bound" else policy.name.replace("-", "_")
    assert policy.__module__.endswith(f".rules.{file}")
    pages = [path.read_text(encoding="utf-8") for path in PAGES.glob("*.md") if path.stem != "README"]
    assert any(re.search(rf"^#+ `?{policy.name}`?$|`{policy.name}`", page, re.MULTILINE) for page in pages)
    made = make_policy(policy.name, policy.test_options, MACHINES[0])
    assert set(policy.gauges) <= set(made.state())
