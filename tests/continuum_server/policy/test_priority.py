"""vLLM's ``priority``: work in the background stands behind all other work, and its KV yields to it."""

from __future__ import annotations

import pytest
from continuum_server.policy.facts import TurnState
from continuum_server.policy.program_table import Guards
from policy_driver import Driver


def driven(**guards: float) -> Driver:
    return Driver("working-set", guards=Guards(**guards))


def first(driver: Driver, *turns: TurnState) -> str:
    """The program of the turn that comes first."""
    places = {driver.table.order.place(turn): turn.program.name for turn in turns}
    return places[driver.table.order.first(places)]


@pytest.mark.parametrize("pinned", [False, True])
def test_work_in_the_background_stands_behind_later_programs_even_with_a_pin(pinned: bool) -> None:
    driver = driven()
    driver.turn("nightly", priority=1)
    if not pinned:
        driver.table.pins.end("nightly")
    nightly, person = driver.arrive("nightly", 2000, priority=1), driver.arrive("person")
    assert first(driver, nightly, person) == "person"


def test_kv_of_the_background_yields_while_its_tool_runs() -> None:
    driver = driven()
    driver.turn("nightly", priority=1)
    driver.turn("agent")
    asker = driver.arrive("person")
    assert [pin.program.name for pin in driver.table.order.yielding(asker, must_free=False)] == ["nightly"]
    behind = driver.arrive("later", priority=1)
    assert driver.table.order.yielding(behind, must_free=False) == []


def test_of_the_pins_that_must_go_those_of_the_background_go_first() -> None:
    driver = driven()
    driver.turn("nightly", priority=2)
    driver.turn("weekly", priority=1)
    driver.turn("agent")
    asker = driver.arrive("person")
    names = [pin.program.name for pin in driver.table.order.yielding(asker, must_free=True)]
    assert names == ["nightly", "weekly", "agent"]


def test_the_background_has_no_guests_and_keeps_nobody_from_being_one() -> None:
    driver = driven()
    driver.turn("root", priority=1)
    driver.arrive("child", parent="root", priority=1)
    driver.arrive("nightly", priority=1)
    driver.arrive("person")
    assert driver.invited() == ["person"]


@pytest.mark.parametrize(("waited_s", "who"), [(9.0, "person"), (11.0, "nightly")])
def test_who_waits_in_the_background_is_passed_for_no_longer_than_the_guard_says(waited_s: float, who: str) -> None:
    driver = driven(max_overtake_s=10.0)
    nightly = driver.arrive("nightly", priority=5)
    driver.now_s += waited_s
    person = driver.arrive("person")
    driver.table.overdue(driver.now_s)
    assert first(driver, nightly, person) == who


def test_a_target_for_first_tokens_is_not_for_the_background() -> None:
    driver = driven(first_token_s=1.0)
    driver.arrive("nightly", priority=1)
    person = driver.arrive("person")
    assert driver.table.overdue(5.0) == [person]
