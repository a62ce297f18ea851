"""``working-set`` in a program table over a pool of 1,000 tokens: who comes earlier, and how long KV is held."""

from __future__ import annotations

from dataclasses import replace

import pytest
from continuum_server.policy.facts import DecodeLine, Machine, PrefillCurve, Stored, TurnState
from continuum_server.policy.guests import BURST_S, GUESTS_SHARE, Guests
from continuum_server.policy.order import Class
from continuum_server.policy.program_table import Guards
from continuum_server.policy.rules.working_set import AHEAD, LATEST
from continuum_server.policy.tool_times import RecentToolTimes
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import POOL, Driver

TIERS = replace(POOL, swap_token_s=1e-3)
"""A reload of 300 tokens takes 0.3 s."""


def driven(machine: Machine = POOL, worth: float | None = None) -> Driver:
    """``worth``: of memory, for decoding."""
    if worth is not None:
        machine = replace(machine, decode=DecodeLine(worth, (1.0 - worth) / machine.kv_tokens))
    return Driver("working-set", machine, Guards())


def turn(driver: Driver, name: str, prompt: int = 300, context: int = 300, last: bool = False) -> float:
    """A turn of no length; its hold."""
    hold = driver.finish(driver.arrive(name, prompt, last), context=context)
    return hold.ttl_s if hold is not None else 0.0


def order(driver: Driver, *turns: TurnState) -> list[str]:
    """The programs of waiting turns, the first one first."""
    left = {driver.table.order.place(each): each for each in turns}
    out: list[str] = []
    while left:
        first = left.pop(driver.table.order.first(left))
        out.append(first.program.name)
    return out


# ------------------------------------------------------------------------------------- small programs


def finished(largest: int) -> Driver:
    """Ten programs have ended: nine at 100 tokens, one at ``largest``. A program is expected to end at the mean of
    those that grew larger than its prompt. If ``largest`` is 600, a prompt of 50 tokens is expected to grow to 150, and
    a prompt of 100 to 599 tokens to 600."""
    driver = driven()
    for number, tokens in enumerate([100] * 9 + [largest]):
        turn(driver, f"done{number}", 50, tokens, last=True)
    return driver


@pytest.mark.parametrize(
    ("largest", "beside", "prompt", "tagged", "first"),
    [
        (600, 500, 50, True, True),  # 150 tokens of 600
        (599, 500, 50, True, False),
        (600, 100, 50, True, True),  # the large one is expected to have 600
        (600, 99, 50, True, False),  # 150
        (600, 500, 100, True, False),  # the other one is expected to have 600, too
        (600, 500, 50, False, False),
    ],
)
def test_turns_of_small_programs_run_before_those_of_an_earlier_large_one(
    largest: int, beside: int, prompt: int, tagged: bool, first: bool
) -> None:
    """The giant is the largest context of the latest turns."""
    driver = finished(largest)
    turn(driver, "large", beside, beside)
    large, other = driver.arrive("large", beside), driver.arrive("other", prompt, tagged=tagged)
    assert (driver.policy.rank(other) < driver.policy.rank(large)) is first


@pytest.mark.parametrize(("later", "first"), [(AHEAD - 1, True), (AHEAD, True), (AHEAD + 1, False)])
def test_a_small_program_runs_before_a_large_one_that_came_shortly_before(later: int, first: bool) -> None:
    driver = finished(600)
    large = driver.start(driver.arrive("large", 500))
    for _ in range(later - 1):
        driver.table.identity.next_sequence()
    small = driver.arrive("small", 50)
    driver.finish(large, context=500)
    assert small.sequence == large.sequence + later
    assert (driver.policy.rank(small) < driver.policy.rank(driver.arrive("large", 501))) is first


@pytest.mark.parametrize(("turns", "first"), [(LATEST - 1, True), (LATEST, False)])
def test_a_giant_of_which_no_turn_finished_lately_is_none(turns: int, first: bool) -> None:
    driver = finished(600)
    turn(driver, "large", 500, 500)
    for number in range(turns):
        turn(driver, f"other{number}", 50, 50)
    assert (driver.policy.rank(driver.arrive("small", 50))[1] < 0) is first


# ---------------------------------------------------------------------------------------------- guests


def crowded() -> tuple[Driver, TurnState]:
    """An earlier program waits without a pin, and no newcomer is known."""
    driver = driven()
    turn(driver, "early")
    driver.table.pins.end("early")
    return driver, driver.arrive("early")


def test_one_newcomer_at_a_time_has_its_first_turn_before_earlier_programs() -> None:
    driver, early = crowded()
    first, second = driver.arrive("a"), driver.arrive("b")
    assert driver.invited() == ["a"]
    assert driver.invited(1.0) == []
    assert order(driver, early, first, second) == ["a", "early", "b"]
    driver.finish(driver.start(first))
    assert driver.invited() == ["b"]
    back = driver.arrive("a")
    assert order(driver, early, second, back) == ["b", "early", "a"]  # a has its place in program order again


def test_a_pin_comes_before_a_guest() -> None:
    driver = driven()
    turn(driver, "early")
    early, guest = driver.arrive("early"), driver.arrive("a")
    assert driver.invited() == ["a"]
    assert order(driver, guest, early) == ["early", "a"]


def test_a_guests_kv_is_not_held() -> None:
    """Its next turn comes after those of earlier programs, so a hold would be long."""
    driver = driven()
    guest = driver.arrive("a")
    assert driver.invited() == ["a"]
    assert driver.finish(driver.start(guest), context=100) is None
    assert driver.finish(driver.start(driver.arrive("a")), context=100) is not None


def test_no_newcomer_is_a_guest_while_a_sub_agent_waits() -> None:
    driver, _ = crowded()
    child, newcomer = driver.arrive("child", parent="early"), driver.arrive("a")
    assert driver.invited() == []
    driver.start(child)
    assert driver.invited() == ["a"]
    assert not driver.policy.guests.includes(child)
    assert driver.policy.guests.includes(newcomer)


@pytest.mark.parametrize("how", ["abort", "start, abort", "start, finish", "start, preempt, start, finish"])
def test_the_next_newcomer_is_a_guest_when_the_last_one_left(how: str) -> None:
    driver, _ = crowded()
    first, _ = driver.arrive("a"), driver.arrive("b")
    assert driver.invited() == ["a"]
    for event in how.split(", "):
        assert driver.invited() == []
        if event == "preempt":
            driver.table.preempt(first, driver.now_s)
            assert driver.table.order.place(first) == first.place  # it stays a guest
        elif event == "start":
            driver.start(first)
        else:
            {"abort": driver.table.abort, "finish": driver.finish}[event](first)
    assert driver.invited() == ["b"]


@pytest.mark.parametrize(("late_s", "next_one"), [(-1e-6, []), (0.0, ["b"]), (1e-6, ["b"])])
def test_prompts_of_guests_take_a_share_of_the_engines_time(late_s: float, next_one: list[str]) -> None:
    """A prompt of 1,000 tokens takes a second. After what was saved up is gone, the next guest waits for eight."""
    driver, _ = crowded()
    driver.now_s = 1000.0
    for number in range(round(BURST_S)):
        saved = driver.arrive(f"saved{number}", 1000)
        assert driver.invited() == [f"saved{number}"]
        driver.finish(driver.start(saved), context=1000)
    guest = driver.arrive("a", 1000)
    assert driver.invited() == ["a"]
    driver.finish(driver.start(guest), context=1000)
    driver.arrive("b", 1000)
    assert driver.invited() == []
    assert driver.policy.next_event_s() == 1000.0 + 1.0 / GUESTS_SHARE
    driver.now_s += 1.0 / GUESTS_SHARE
    assert driver.invited(late_s) == next_one


def test_fresh_ids_with_large_prompts_are_guests_for_their_share_of_the_time() -> None:
    """A client begins a new program with every request, one behind the other, for an hour."""
    driver, flood, guests_s = driven(), 0, 0.0
    while driver.now_s < 3600.0:
        flood += 1
        newcomer = driver.arrive(f"flood{flood}", 900)
        driver.step()
        guests_s += 0.9 * driver.policy.guests.includes(newcomer)
        driver.start(newcomer)
        driver.now_s += 1.0
        driver.finish(newcomer, context=900)
    assert guests_s == pytest.approx(GUESTS_SHARE * 3600.0 + BURST_S, rel=0.01)


def test_each_key_has_guests_of_its_own() -> None:
    driver = driven()
    for key in ("k1", "k2"):
        driver.arrive("a", key=key)
        driver.arrive("b", key=key)
    assert [name.partition("\0")[0] for name in driver.invited()] == ["k1", "k2"]


def test_guests_cost_nothing_where_no_profile_was_measured() -> None:
    guests = Guests(replace(POOL, prefill=PrefillCurve(0.0, 0.0, 0.0)))
    assert guests.next_s() is None
    turn = driven().arrive("a", 10_000)
    guests.arrived(turn)
    assert guests.invite(0.0) == [turn]
    assert guests.next_s() is None  # the guest first


# ------------------------------------------------------------------------------------------------ holds


@pytest.mark.parametrize(
    ("stored", "loss_s"),
    [
        (None, 0.3),  # no tiers: the engine computes all
        (Stored(0), 0.3),
        (Stored(300), 0.3),  # a reload takes 0.3 s
        (Stored(200), 0.3),
        (Stored(300, 300), 0.3),  # from the SSD: slower than computing it
    ],
)
def test_a_hold_lasts_until_it_has_cost_as_much_as_a_loss(stored: Stored | None, loss_s: float) -> None:
    """300 tokens are 0.3 of the pool."""
    driver = driven(replace(TIERS, ssd_token_s=3e-3), worth=0.5)
    hold = driver.finish(driver.arrive("a", 300), context=300, stored=stored)
    assert hold is not None
    assert hold.ttl_s == pytest.approx(loss_s / (0.3 * 0.5))


def test_a_hold_is_shorter_if_a_tier_is_fast() -> None:
    """A reload takes a tenth of a second."""
    driver = driven(replace(POOL, swap_token_s=1e-3 / 3), worth=0.5)
    hold = driver.finish(driver.arrive("a", 300), context=300, stored=Stored(300))
    assert hold is not None
    assert hold.ttl_s == pytest.approx(0.1 / (0.3 * 0.5))


@pytest.mark.parametrize(
    ("machine", "hold_s"),
    [
        (replace(POOL, decode=DecodeLine(0.01, 1e-5)), 1 / 0.5),  # a step of 10 ms, 20 ms with the pool full
        (replace(POOL, decode=DecodeLine(0.01, 0.0)), 1 / 1.0),
        (replace(POOL, decode=DecodeLine(0.0, 0.0)), 1 / 0.27),  # says nothing
        (POOL, 1 / 0.27),
        # without a prefill curve a rebuild is not free
        (replace(POOL, prefill=PrefillCurve(0.0, 0.0, 0.0), decode=DecodeLine(0.01, 1e-5)), 5.5e-5 * 1000 / 0.5),
    ],
)
def test_what_memory_is_worth_comes_from_decode_steps(machine: Machine, hold_s: float) -> None:
    """Rebuilding 300 tokens takes 0.3 s, of 0.3 of the pool: held for a second over the worth."""
    assert turn(driven(machine), "a") == pytest.approx(hold_s, rel=0.02)


@pytest.mark.parametrize(("away_s", "kept_s"), [(1.5, 1.5), (2.5, 2.0)])
def test_memory_is_worth_more_while_programs_wait_for_their_tools(away_s: float, kept_s: float) -> None:
    """A second at work, and so much time away. KV is held for two seconds at most."""
    driver, holds_s = driven(worth=0.5), []
    for _ in range(2):
        each = driver.start(driver.arrive("a", 300))
        driver.now_s += 1.0
        hold = driver.finish(each, context=300)
        holds_s.append(hold.ttl_s if hold else 0.0)
        driver.now_s += away_s
    assert holds_s == [pytest.approx(1 / 0.5), pytest.approx(1 / (0.5 + kept_s))]


@pytest.mark.parametrize(("away_s", "final_tokens"), [(3.999, 0.0), (4.0, 0.0), (4.001, 300.0)])
def test_who_never_says_it_is_done_counts_as_finished_when_even_a_rebuild_is_late(
    away_s: float, final_tokens: float
) -> None:
    """A hold of two seconds, and two more."""
    driver = driven(worth=0.5)
    turn(driver, "a")
    driver.now_s += away_s
    driver.arrive("b", 10)
    assert driver.policy._finals.final_tokens(0) == final_tokens


def test_a_program_counts_as_finished_once() -> None:
    driver = driven(worth=0.5)
    turn(driver, "a")
    turn(driver, "a", 400, 400, last=True)
    turn(driver, "lost")
    driver.table.abort(driver.arrive("lost"))
    driver.now_s += 100.0
    driver.arrive("b", 10)
    assert driver.policy._finals.final_tokens(0) == 400.0


# ------------------------------------------------------------------------------------------------- tool times


@given(st.lists(st.integers(0, 40), min_size=1, max_size=400), st.integers(1, 60))
def test_the_hold_tried_first_of_the_cheapest(times_s: list[int], even_s: int) -> None:
    """Whole seconds, so that ties are ties: the break-even time first, then no hold, then every so many samples.

    Of up to 64 samples all are tried, so that no other hold up to the break-even time is cheaper. Too few say nothing.
    """
    tool_times = RecentToolTimes(window=1024)
    for away_s in times_s:
        tool_times.add(away_s)
    known = sorted(times_s)
    number = sum(time_s <= even_s for time_s in known)
    step = max(1, number // RecentToolTimes.POINTS)

    def cost(tau_s: float) -> float:
        return sum(min(time_s, tau_s) + (even_s if time_s > tau_s else 0.0) for time_s in known)

    enough = len(known) >= RecentToolTimes.ENOUGH
    tried = [even_s, 0, *(known[i] for i in range(step - 1, number, step))] if enough else [even_s]
    assert tool_times.best_hold_s(even_s) == min(even_s, min(tried, key=cost) * RecentToolTimes.MARGIN)


def test_a_place_is_kept_by_a_turn_that_was_preempted() -> None:
    """It had a pin, which its start used up."""
    driver = driven()
    turn(driver, "early")
    early = driver.arrive("early")
    assert driver.table.order.place(early).kind is Class.PINNED
    driver.start(early)
    driver.table.preempt(early, driver.now_s)
    assert driver.table.order.place(early).kind is Class.PINNED
