"""What a policy remembers of programs and turns is let go with them: after aborts, ends, and forgetting."""

from __future__ import annotations

import gc

import pytest
from continuum_server.policy.facts import Machine, Orders, PrefillCurve, ProgramState, Step, TurnState
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES
from continuum_server.policy.rules.autellix import Autellix
from continuum_server.policy.rules.thunderagent import ThunderAgent
from policy_driver import Driver

SMALL = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=10_000)


def held_back(driver: Driver, turn: TurnState) -> bool:
    return driver.table.policy.rank(turn) is None


def step(driver: Driver, seconds: float = 0.0) -> Orders:
    driver.now_s += seconds
    return driver.table.step(Step(driver.now_s, 0))


def thunder(driver: Driver) -> ThunderAgent:
    assert isinstance(driver.table.policy, ThunderAgent)
    return driver.table.policy


def test_aborted_programs_weigh_nothing_in_thunderagent() -> None:
    driver = Driver("thunderagent", SMALL)
    for number in range(3):
        driver.table.abort(driver.arrive(f"p{number}", prompt=3000))
    newcomer = driver.arrive("newcomer", prompt=9000)
    assert not held_back(driver, newcomer)


def test_a_program_that_lost_a_later_turn_counts_anew_in_thunderagent() -> None:
    """Its tool was interrupted too: nothing says any more how long it has been away, so nothing of it decays."""
    driver = Driver("thunderagent", SMALL)
    driver.turn("p")
    driver.table.abort(driver.arrive("p", prompt=9000))
    newcomer = driver.arrive("newcomer", prompt=9000)
    assert not held_back(driver, newcomer)
    again = driver.arrive("p", prompt=9000)
    assert held_back(driver, again)


def test_calls_that_left_do_not_stay_in_autellix() -> None:
    """However long they would have had to wait: a program that was served for 1,000 s, ratio 1e6."""
    driver = Driver("autellix", SMALL, starvation_ratio=1e6, first_range_s=1.0)
    first = driver.start(driver.arrive("p"))
    driver.now_s += 1000.0
    driver.finish(first)
    for _ in range(1000):
        driver.table.abort(driver.arrive("p"))
        step(driver, 0.01)
    policy = driver.table.policy
    assert isinstance(policy, Autellix)
    assert len(policy._starving) < 200


ENDS = ("aborted", "last step", "released", "forgotten")


def ends(driver: Driver, name: str, kind: str) -> None:
    """A program's whole life, ended in one of the ways there are."""
    turn = driver.arrive(name)
    if kind == "aborted":
        driver.table.abort(turn)
    elif kind == "last step":
        driver.finish(driver.start(driver.arrive(name, last=True)))
        driver.table.abort(turn)
    else:
        driver.finish(driver.start(turn))
        if kind == "released":
            for program in driver.table.programs_of(name):
                driver.table.end_program(program)


DEPLOYED = [name for name, policy in POLICIES.items() if policy.label == "policy"]


@pytest.mark.parametrize("policy", DEPLOYED)
def test_a_policy_remembers_no_program_for_ever(policy: str) -> None:
    """300 programs for each way to end, under a guard that remembers one; a while later few are left anywhere."""
    drivers = []
    for kind in ENDS:
        driver = Driver(policy, SMALL, Guards(max_programs=1))
        for number in range(300):
            ends(driver, f"{kind} {policy} {number}", kind)
            step(driver, 1.0)
        driver.now_s += 1e5
        for number in range(3):
            ends(driver, f"after all {number}", kind)
            step(driver, 10.0)
        drivers.append(driver)
    gc.collect()
    alive = [each.program_id for each in gc.get_objects() if type(each) is ProgramState]
    left = {kind: sum(name.startswith(f"{kind} {policy} ") for name in alive) for kind in ENDS}
    assert max(left.values()) < 70, left
