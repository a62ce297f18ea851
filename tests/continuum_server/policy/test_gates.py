"""What is special about policies that hold requests back: who is let in, who is paused, and when."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from policy_driver import MACHINE, Driver

POOL = replace(MACHINE, kv_tokens=10_000)
concur = partial(Driver, "concur", POOL, interval_s=0.5)


def window(driver: Driver) -> int:
    return int(driver.policy.state()["programs_window"])


def test_the_earliest_programs_are_inside() -> None:
    driver = concur()
    turns = [driver.start(driver.arrive("a")), driver.start(driver.arrive("b")), driver.arrive("c")]
    assert driver.waits(*turns) == [False, False, True]
    driver.finish(turns[0])  # its tool runs, and it stays inside
    driver.step(0.1)
    assert driver.waits(turns[2]) == [True]
    driver.turn("a", last=True)
    driver.step()
    assert driver.waits(turns[2]) == [False]


@pytest.mark.parametrize(
    ("batch_tokens", "hit_tokens", "waiting", "becomes"),
    [
        *((1999, 0, "bc", 4), (1999, 0, "", 2), (2000, 0, "bc", 2)),
        *((5000, 0, "bc", 2), (5001, 19, "bc", 1), (5001, 20, "bc", 2)),
    ],
    ids=["memory is free", "nobody waits", "from 0.2", "to 0.5", "full and missing", "full and hitting"],
)
def test_the_window_of_the_paper(batch_tokens: int, hit_tokens: int, waiting: str, becomes: int) -> None:
    """0.2 and 0.5 of 10,000 tokens; hits of 100 prompt tokens, 0.2 of them."""
    driver = concur()
    driver.start(driver.arrive("a", prompt=100), hit_tokens)
    for name in waiting:
        driver.arrive(name)
    driver.step(1.1, batch_tokens)
    assert window(driver) == becomes


def test_the_latest_program_is_paused_at_its_next_turn() -> None:
    driver = concur()
    first, second = driver.start(driver.arrive("a")), driver.start(driver.arrive("b"))
    driver.step(1.1, 9000)
    assert (window(driver), driver.waits(first, second)) == (1, [False, False])
    driver.finish(second)
    driver.finish(first)
    again, later = driver.arrive("b"), driver.arrive("a")
    assert driver.waits(again, later) == [True, False]
    driver.step(1.1)  # memory is free
    assert driver.waits(again) == [False]


def test_a_child_is_no_way_in() -> None:
    """A client can claim any parent."""
    driver = concur()
    driver.start(driver.arrive("a"))
    driver.start(driver.arrive("b"))
    assert driver.waits(driver.arrive("child", parent="a")) == [True]


def test_thunderagent_resumes_at_its_next_check_what_fits_by_then() -> None:
    driver = Driver("thunderagent", POOL, interval_s=0.5, buffer_tokens=0)
    first, second = driver.start(driver.arrive("a", 9_000)), driver.arrive("b", 5_000)
    driver.step(1.1)
    assert driver.waits(second) == [True]
    first.tags.is_last_step = True
    driver.finish(first)
    driver.step(1.1)
    assert driver.waits(second) == [False]


def test_thunderagent_pauses_all_programs_when_its_first_estimates_were_too_small() -> None:
    """Until the first answer half of each prompt counts, so three programs fit. Then marking one frees nothing."""
    driver = Driver("thunderagent", POOL, interval_s=0.5, buffer_tokens=0, first_estimate=0.5)
    first, second, third = (driver.start(driver.arrive(name, 6_000)) for name in "abc")
    driver.finish(first, context=6_000)
    again = driver.start(driver.arrive("a", 6_000))
    driver.step(0.6)
    for turn, name in ((again, "a"), (second, "b"), (third, "c")):
        driver.finish(turn, context=6_000)
        assert driver.waits(driver.arrive(name, 6_000)) == [True]


@pytest.mark.parametrize("gate", ["concur", "thunderagent"])
def test_a_one_off_is_let_in_and_leaves_nothing_behind(gate: str) -> None:
    driver = Driver(gate, POOL)
    driver.start(driver.arrive("agent", 9_990))
    held = driver.arrive("later", 5_000)
    one_offs = [driver.arrive(f"chat {number}", 5_000, tagged=False) for number in range(3)]
    assert driver.waits(held, *one_offs) == [gate != "concur", False, False, False]
    ranks = [driver.policy.rank(turn) for turn in one_offs]
    assert ranks == sorted(ranks)
    for turn in one_offs:
        driver.finish(turn, None)
    driver.step()
    assert driver.table.pins == {}
    kept = vars(driver.policy)
    assert not any(
        turn.program in kept.get("_entries", {}) or turn.program in kept.get("_alive", {}) for turn in one_offs
    )
