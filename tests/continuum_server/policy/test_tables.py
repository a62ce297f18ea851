"""What a policy remembers of programs and turns is let go with them: after aborts, ends, and forgetting."""

from __future__ import annotations

import gc
from dataclasses import replace

from continuum_server.policy.facts import ProgramState
from continuum_server.policy.program_table import Guards
from nano import SERVED, each_policy
from policy_driver import MACHINE, Driver

SMALL = replace(MACHINE, kv_tokens=10_000)


def test_what_thunderagent_counts_of_programs_that_lost_a_turn() -> None:
    """Nothing, if it was their first. Else all: nothing says any more how long it has been away, so nothing decays."""
    driver = Driver("thunderagent", SMALL)
    for number in range(3):
        driver.table.abort(driver.arrive(f"p{number}", 3000))
    driver.turn("p", context=100)
    driver.table.abort(driver.arrive("p", 9000))
    assert driver.waits(driver.arrive("newcomer", 9000)) == [False]
    assert driver.waits(driver.arrive("p", 9000)) == [True]


def test_calls_that_left_do_not_stay_in_autellix() -> None:
    """However long they would have had to wait: a program that was served for 1,000 s, ratio 1e6."""
    driver = Driver("autellix", SMALL, starvation_ratio=1e6, first_range_s=1.0)
    first = driver.start(driver.arrive("p"))
    driver.now_s += 1000.0
    driver.finish(first)
    for _ in range(1000):
        driver.table.abort(driver.arrive("p"))
        driver.step(0.01)
    assert len(driver.policy._starving) < 200


ENDS = ("aborted", "last step", "released", "forgotten")


def ends(driver: Driver, name: str, kind: str) -> None:
    """A program's whole life, ended in one of the ways there are."""
    turn = driver.arrive(name, 200, kind == "last step")  # too large a prompt for a one-off
    if kind == "aborted":
        driver.table.abort(turn)
    else:
        driver.finish(driver.start(turn))
    for program in driver.table.identity.programs.of(name) if kind == "released" else ():
        driver.table.end_program(program)


@each_policy(SERVED)
def test_a_policy_remembers_no_program_for_ever(policy: str) -> None:
    """300 programs for each way to end, under a guard that remembers one; a while later few are left anywhere."""
    drivers = []
    for kind in ENDS:
        driver = Driver(policy, SMALL, Guards(max_programs=1))
        for number in range(300):
            ends(driver, f"{kind} {policy} {number}", kind)
            driver.step(1.0)
        driver.now_s += 1e5
        for number in range(3):
            ends(driver, f"after all {number}", kind)
            driver.step(10.0)
        drivers.append(driver)
    gc.collect()
    alive = [each.program_id for each in gc.get_objects() if type(each) is ProgramState]
    left = {kind: sum(name.startswith(f"{kind} {policy} ") for name in alive) for kind in ENDS}
    assert max(left.values()) < 70, left
