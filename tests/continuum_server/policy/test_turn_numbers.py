"""Which turn an arriving request is: by the client's id, else by the prompt of a try that ended badly."""

from __future__ import annotations

from typing import Any

import pytest
from continuum_server.policy.programs import REMEMBERED, TurnNumbers
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import Driver

FAILED = "failed"


@pytest.mark.parametrize(
    ("arrivals", "numbers"),  # a turn id and a prompt; or that the turn of this number and prompt failed
    [
        ([(name, "x") for name in "abacbcd"], [0, 1, 0, 2, 1, 2, 3]),  # an id that was used is that turn again
        # without one, the prompt of a failed try is, once
        ([(None, "x"), (None, "x"), (FAILED, 0), (None, "y"), (None, "x"), (None, "x")], [0, 1, 2, 0, 3]),
        # two calls side by side that both failed
        ([(None, "x"), (None, "x"), (FAILED, 0), (FAILED, 1), *[(None, "x")] * 3], [0, 1, 0, 1, 2]),
        # the client says that this is another turn; then it says nothing
        ([("a", "x"), (FAILED, 0), ("b", "x"), (None, "x")], [0, 1, 0]),
        ([(None, "w"), (None, "x"), *[(FAILED, 1), (None, "x")] * 50], [0, 1] + [1] * 50),
        ([(str(name), "x") for name in (*range(9), 1, 0)], [*range(9), 1, 9]),  # eight ids are remembered
    ],
)
def test_which_turn_it_is(arrivals: list[tuple[Any, Any]], numbers: list[int]) -> None:
    turns, found = TurnNumbers(), []
    for name, what in arrivals:
        if name is FAILED:
            turns.failed(what, "x")
        else:
            found.append(turns.arrived(name, what))
    assert found == numbers


def test_a_turn_tried_again_is_no_tool_time() -> None:
    """Its answer was lost on the way to the client: what passed until it came again was no tool."""
    driver = Driver("continuum")
    driver.turn("p", gap_s=1.0)
    driver.finish(driver.start(driver.arrive("p", turn_id="one")))
    driver.now_s += 0.5
    again = driver.arrive("p", turn_id="one")
    assert again.index == 1
    driver.finish(driver.start(again))
    driver.now_s += 1.0
    assert driver.arrive("p").index == 2
    assert driver.table.policy.tool_counts() == {"ls": 2}


steps = st.tuples(st.none() | st.integers(0, 30).map(str), st.integers(0, 30), st.booleans())


@given(st.lists(steps, max_size=60) | st.lists(steps, min_size=60, max_size=120))
def test_numbers_are_dense_ids_keep_theirs_and_memory_is_bounded(arrivals: list[tuple[str | None, int, bool]]) -> None:
    turns, by_id = TurnNumbers(), dict[str, int]()
    for turn_id, prompt, fails in arrivals:
        before = turns.following
        number = turns.arrived(turn_id, prompt)
        assert 0 <= number <= before  # none is skipped
        assert turns.following == max(before, number + 1)
        if turn_id is not None and len(by_id) < REMEMBERED:
            assert by_id.setdefault(turn_id, number) == number
        if fails:
            turns.failed(number, prompt)
        assert max(len(turns._by_id), len(turns._failed)) <= REMEMBERED
