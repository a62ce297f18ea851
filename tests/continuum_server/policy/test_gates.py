"""What is special about the gates ``concur`` and ``lease-gate``: who is let in, who is paused, and when."""

from __future__ import annotations

import pytest
from continuum_server.policy.facts import Machine, PrefillCurve, Step, TurnState
from policy_driver import Driver

POOL = Machine(PrefillCurve(0.0, 1e-3, 0.0), kv_tokens=10_000)


def held(driver: Driver, *turns: TurnState) -> list[bool]:
    return [driver.table.policy.rank(turn) is None for turn in turns]


def step(driver: Driver, seconds: float = 0.0, batch_tokens: int = 0) -> None:
    driver.now_s += seconds
    driver.table.step(Step(driver.now_s, batch_tokens))


def concur(**options: object) -> Driver:
    return Driver("concur", POOL, interval_s=1.0, **options)


def window(driver: Driver) -> int:
    return int(driver.table.policy.state()["programs_window"])


def test_the_earliest_programs_are_inside() -> None:
    driver = concur()
    turns = [driver.start(driver.arrive("a")), driver.start(driver.arrive("b")), driver.arrive("c")]
    assert held(driver, *turns) == [False, False, True]
    driver.finish(turns[0])  # its tool runs, and it stays inside
    step(driver, 0.1)
    assert held(driver, turns[2]) == [True]
    driver.turn("a", last=True)
    step(driver)
    assert held(driver, turns[2]) == [False]


@pytest.mark.parametrize(
    ("batch_tokens", "hit_tokens", "becomes"),
    [(1999, 0, 4), (2001, 0, 2), (5001, 19, 1), (5001, 20, 2), (9999, 100, 2)],
    ids=["memory is free", "between", "full and missing", "full and hitting", "full and all hits"],
)
def test_the_window_of_the_paper(batch_tokens: int, hit_tokens: int, becomes: int) -> None:
    """0.2 and 0.5 of 10,000 tokens; hits of 100 prompt tokens, 0.2 of them."""
    driver = concur()
    driver.start(driver.arrive("a", prompt=100), hit_tokens)
    driver.arrive("b")
    driver.arrive("c")
    step(driver, 1.1, batch_tokens)
    assert window(driver) == becomes


def test_a_window_that_nobody_waits_for_does_not_grow() -> None:
    driver = concur()
    driver.start(driver.arrive("a"))
    for _ in range(5):
        step(driver, 1.1)
    assert window(driver) == 2


def test_the_latest_program_is_paused_at_its_next_turn() -> None:
    driver = concur()
    first, second = driver.start(driver.arrive("a")), driver.start(driver.arrive("b"))
    step(driver, 1.1, 9000)
    assert (window(driver), held(driver, first, second)) == (1, [False, False])
    driver.finish(second)
    driver.finish(first)
    again, later = driver.arrive("b"), driver.arrive("a")
    assert held(driver, again, later) == [True, False]
    step(driver, 1.1)  # memory is free
    assert held(driver, again) == [False]


def test_a_child_is_no_way_in() -> None:
    """A client can claim any parent."""
    driver = concur()
    driver.start(driver.arrive("a"))
    driver.start(driver.arrive("b"))
    assert held(driver, driver.arrive("child", parent="a")) == [True]


def lease(**options: object) -> Driver:
    return Driver("lease-gate", POOL, **options)


def test_programs_count_in_full_while_their_tools_run() -> None:
    driver = lease()
    step(driver)
    for name in ("a", "b"):
        turn = driver.arrive(name, prompt=4000)
        step(driver)
        driver.finish(driver.start(turn), context=4000)
    newcomer = driver.arrive("c", prompt=3000)
    step(driver)
    assert held(driver, newcomer) == [True]
    step(driver, 29.0)
    assert held(driver, newcomer) == [True]


def test_the_longest_idle_program_is_paused_when_its_lease_is_over() -> None:
    driver = lease()
    for name, gap_s in (("a", 10.0), ("b", 25.0)):
        turn = driver.arrive(name, prompt=4000)
        step(driver)
        driver.finish(driver.start(turn), context=4000)
        driver.now_s += gap_s
    newcomer = driver.arrive("c", prompt=3000)
    step(driver)  # a's lease was over at 30 s, b's is not
    assert held(driver, newcomer) == [False]
    back, paused = driver.arrive("b", prompt=4100), driver.arrive("a", prompt=4100)
    step(driver)
    assert held(driver, back, paused) == [False, True]


def test_paused_before_new_and_small_before_large() -> None:
    """10,000 tokens: after ``a`` was paused and all else has left, the paused one goes first, then the smaller."""
    driver = lease()
    first = driver.arrive("a", prompt=6000)
    step(driver)
    driver.finish(driver.start(first), context=6000)
    driver.now_s = 31.0
    big = driver.arrive("b", prompt=9000)
    step(driver)
    assert held(driver, big) == [False]
    large, small, paused = (
        driver.arrive("new-large", prompt=3900),
        driver.arrive("new-small", prompt=3800),
        driver.arrive("a", prompt=6100),
    )
    step(driver)
    assert held(driver, large, small, paused) == [True, True, True]
    driver.table.abort(big)
    step(driver)
    assert held(driver, large, small, paused) == [True, False, False]


def test_a_program_larger_than_the_pool_needs_all_of_it() -> None:
    driver = lease()
    turn = driver.arrive("a", prompt=50_000)
    step(driver)
    assert held(driver, turn) == [False]


def test_a_request_that_waited_for_long_is_admitted() -> None:
    driver = lease(patience_s=100.0)
    running = driver.arrive("a", prompt=9000)
    step(driver)
    driver.start(running)
    waiting = driver.arrive("b", prompt=9000)
    step(driver, 99.0)
    assert held(driver, waiting) == [True]
    assert driver.table.policy.next_event_s() == 100.0
    step(driver, 2.0)
    assert held(driver, waiting) == [False]


def test_a_turn_inside_is_served_although_the_pool_is_full() -> None:
    """It takes the room of a program whose lease is over, if there is one."""
    driver = lease()
    for name in ("a", "b"):
        turn = driver.arrive(name, prompt=5000)
        step(driver)
        driver.finish(driver.start(turn), context=5000)
    again = driver.arrive("a", prompt=8000)
    assert held(driver, again) == [False]
    assert driver.table.policy.state()["programs_inside"] == 2
    driver.finish(driver.start(again), context=8000)
    driver.now_s += 31.0
    assert held(driver, driver.arrive("a", prompt=8100)) == [False]
    assert driver.table.policy.state()["programs_inside"] == 1
