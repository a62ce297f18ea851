"""``working-set`` in a program table over a pool of 1,000 tokens: admission, places lost, forecasts of growth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from continuum_server.policy.estimate import Footprints
from continuum_server.policy.facts import DecodeLine, Machine, PrefillCurve, Stored, TurnState
from continuum_server.policy.program_table import Guards
from continuum_server.policy.programs import marks_of
from continuum_server.policy.rules.working_set import AHEAD, LOOK_PAST
from continuum_server.policy.tool_times import RecentToolTimes
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import POOL, Driver


def gate(machine: Machine = POOL, worth: float | None = None, **options: object) -> Driver:
    """``worth``: of memory, for decoding."""
    if worth is not None:
        machine = replace(machine, decode=DecodeLine(worth, (1.0 - worth) / machine.kv_tokens))
    return Driver("working-set", machine, Guards(), **options)


def turn(driver: Driver, name: str, prompt: int = 300, context: int = 300, last: bool = False) -> float:
    """A turn of no length; its hold."""
    hold = driver.finish(driver.arrive(name, prompt, last), context=context)
    return hold.ttl_s if hold is not None else 0.0


def wait(driver: Driver, name: str, prompt: int = 300, **facts: object) -> bool:
    """Whether a request that comes now is held back."""
    return driver.waits(driver.arrive(name, prompt, **facts)) == [True]


def full(**options: object) -> tuple[Driver, list[TurnState]]:
    """Three programs of 300 tokens inside."""
    driver = gate(**options)  # type: ignore[arg-type]
    inside = [driver.arrive(name, 300) for name in "abc"]
    assert not any(driver.waits(*inside))
    return driver, inside


def test_a_new_program_waits_until_it_fits() -> None:
    driver, (first, *_) = full()
    assert wait(driver, "d")
    assert wait(driver, "e", 50)  # it would fit; nobody of unknown size overtakes
    assert driver.admitted() == []
    first.is_last = True
    driver.finish(first, context=300)
    assert driver.admitted() == ["d", "e"]  # by now all programs end at 300 tokens: 600 inside, 300 more, 50 at the end


@pytest.mark.parametrize(("prompt", "waits"), [("abcdefghij" * 4 + "xy", False), ("x" + "abcdefghij" * 4, True)])
def test_blocks_that_a_program_inside_has_count_once(prompt: str, waits: bool) -> None:
    """Two prompts of 640 tokens and more in a pool of 1,000: the second fits if it begins as the first does."""
    driver = gate()

    def hashes(text: str) -> list[str]:
        return [text[: end + 1] for end in range(len(text))]

    assert driver.waits(driver.arrive("a", hashes("abcdefghij" * 4))) == [False]
    assert driver.waits(driver.arrive("b", hashes(prompt))) == [waits]


def test_growth_is_forecast_from_finished_programs_once_memory_was_short() -> None:
    driver = gate()
    turn(driver, "done", 400, 400, last=True)
    a, b, c = (driver.arrive(name) for name in "abc")
    assert not any(driver.waits(a, b, c))  # three would grow to 1,200; nothing was lost yet
    driver.table.preempt(driver.start(a), 0.0)
    assert wait(driver, "d", 100)
    driver.table.abort(b)
    assert driver.admitted() == []  # three grow to 1,200
    driver.table.abort(c)
    assert driver.admitted() == ["d"]  # two to 800
    assert wait(driver, "e", 100)
    assert driver.admitted(600.5) == ["e"]  # nothing was lost for 600 s: 300 tokens are there, and 100 more


def test_kv_lost_to_others_counts_kv_given_up_does_not() -> None:
    driver = gate(worth=0.5)
    turn(driver, "done", 400, 400, last=True)
    for name in "ab":
        turn(driver, name, 100, 110)
    assert driver.admitted(1e3) == []  # both holds are over
    for name in "ab":
        driver.start(driver.arrive(name, 200))
    assert not wait(driver, "c", 100)
    turn(driver, "c", 100, 110)
    driver.start(driver.arrive("c", 200))
    assert wait(driver, "d", 100)


def finished(largest: int) -> Driver:
    """Ten programs have ended: nine at 100 tokens, one at ``largest``. A program is expected to end at the mean of
    those that grew larger than its prompt. If ``largest`` is 600, a prompt of 50 tokens is expected to grow to 150, and
    a prompt of 100 to 599 tokens to 600."""
    driver = gate()
    for number, tokens in enumerate([100] * 9 + [largest]):
        turn(driver, f"done{number}", 50, tokens, last=True)
    return driver


def behind_a_giant(largest: int = 600, key: str | None = None) -> Driver:
    """Two programs are inside, with 500 and 400 tokens. The giant, with 500, waits outside."""
    driver = finished(largest)
    for name, prompt in (("a", 500), ("b", 400)):
        assert not wait(driver, name, prompt, key=key)
    assert wait(driver, "giant", 500, key=key)
    return driver


def test_small_programs_that_leave_before_a_giant_fits_pass_it() -> None:
    driver = behind_a_giant()
    for name, prompt in (("one", 50), ("long", 49), ("medium", 100), ("two", 50), ("three", 50)):
        assert wait(driver, name, prompt)
    assert driver.admitted() == ["one", "two"]  # it fits when a has left; then nothing is free beside it


@pytest.mark.parametrize(
    ("first", "prompt", "passes"),
    [
        (500, 50, True),  # both grow by 100 until a has left
        (500, 49, False),  # it grows by 101, and the giant fills what a leaves
        (350, 49, True),  # 150 tokens are free beside the giant by then
        (351, 49, False),
        (100, 50, False),  # it would fit now, with nothing beside it
    ],
)
def test_a_small_program_passes_if_it_leaves_or_has_room_beside_the_first(
    first: int, prompt: int, passes: bool
) -> None:
    assert behind_a_giant().policy._inside.delays(prompt, first) is not passes


@pytest.mark.parametrize(("largest", "passes"), [(599, False), (600, True)])
def test_small_is_a_quarter(largest: int, passes: bool) -> None:
    """150 of 600, or 149.9 of 599."""
    driver = behind_a_giant(largest)
    driver.arrive("small", 50)
    assert driver.admitted() == (["small"] if passes else [])


@pytest.mark.parametrize(("between", "passes"), [(LOOK_PAST - 2, True), (LOOK_PAST - 1, False)])
def test_small_programs_are_sought_among_the_first_ones(between: int, passes: bool) -> None:
    driver = behind_a_giant()
    for number in range(between):
        driver.arrive(f"medium{number}", 100)
    driver.arrive("small", 50)
    assert driver.admitted() == (["small"] if passes else [])


@pytest.mark.parametrize(("key", "passes"), [("one", True), ("other", False)])
def test_nobody_passes_a_program_of_another_key(key: str, passes: bool) -> None:
    driver = behind_a_giant(key="one")
    small = driver.arrive("small", 50, key=key)
    assert driver.admitted() == ([small.program.program_id] if passes else [])


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
    driver = finished(largest)
    large, other = driver.arrive("large", beside), driver.arrive("other", prompt, tagged=tagged)
    assert driver.waits(large, other) == [False, False]
    assert (driver.policy.rank(other) < driver.policy.rank(large)) is first


@pytest.mark.parametrize(("later", "first"), [(AHEAD - 1, True), (AHEAD, False)])
def test_a_small_program_runs_before_a_large_one_that_came_shortly_before(later: int, first: bool) -> None:
    driver = finished(600)
    large = driver.arrive("large", 500)
    for _ in range(later - 1):
        driver.table.identity.next_sequence()
    small = driver.arrive("small", 50)
    assert small.sequence == large.sequence + later
    assert (driver.policy.rank(small) < driver.policy.rank(large)) is first


@pytest.mark.parametrize(("share", "second_waits"), [(0.1, True), (0, False)])
def test_alone_anything_goes_and_without_admission_all(share: float, second_waits: bool) -> None:
    driver = gate(share=share)
    assert not wait(driver, "a", 900)
    assert wait(driver, "b", 1) == second_waits


def test_a_sub_agent_of_a_program_inside_passes() -> None:
    driver, (parent, *_) = full()
    assert wait(driver, "d")
    early = driver.arrive("early", parent="a")
    assert driver.waits(early) == [True]  # the parent does not wait for it yet
    driver.finish(parent, context=300)
    driver.table.abort(early)
    child = driver.arrive("child", parent="a")
    assert driver.waits(child) == [False]
    assert wait(driver, "another", parent="a")  # one at a time
    driver.finish(child, context=100)
    assert not wait(driver, "a")
    assert not wait(driver, "child", parent="a")  # it is inside, though it came later than those outside
    assert wait(driver, "stranger", parent="nobody")


def test_a_program_whose_tool_never_returns_loses_its_place() -> None:
    """Rebuilding 300 tokens takes 0.3 s of the engine; they are 0.3 of its memory, worth 0.15 of its speed: 2 s."""
    driver, inside = full(worth=0.5)
    for each in inside:
        driver.finish(each, context=300)
    late = driver.arrive("d", 300)
    assert driver.admitted() == []
    assert driver.table.next_deadline_s() == 2.0
    assert driver.admitted(2.0) == []
    driver.now_s = 2.001
    assert {pin.program.program_id for pin in driver.table.pins.expired(driver.now_s)} == set("abc")
    assert driver.admitted() == ["d"]
    assert not any(driver.waits(late))
    assert not wait(driver, "a", 900)  # who was inside is never held back
    assert wait(driver, "e")


def test_who_never_says_it_is_done_counts_as_finished_when_its_hold_ends() -> None:
    driver = gate(worth=0.5)
    turn(driver, "done", 100, 400)
    assert driver.admitted(2.001) == []
    driver.policy.turn_preempted(driver.arrive("plain", tagged=False), driver.now_s)
    assert [wait(driver, name, 100) for name in "abc"] == [False, False, True]
    assert driver.policy.state() == {"programs_inside": 2, "programs_outside": 1}


def test_with_tiers_a_program_counts_as_finished_when_even_computing_its_kv_anew_would_not_pay() -> None:
    """A reload of 0.3 s is worth a hold of 0.3 s; 300 tokens computed anew are worth one of 2 s."""
    driver = gate(TIERS, worth=0.5)
    driver.policy._holds.in_tier.add(1.0)
    hold = driver.finish(driver.arrive("a", 300), context=300, stored=Stored(300))
    assert hold is not None
    assert hold.ttl_s == pytest.approx(0.3)
    for seconds, final_tokens in ((0.31, 0.0), (1.68, 0.0), (0.02, 300.0)):
        driver.step(seconds)
        assert driver.policy._inside.footprints.final_tokens(0) == final_tokens


def test_aborted_requests_give_their_place_back_and_are_new_when_they_return() -> None:
    driver, inside = full()
    impatient, late = driver.arrive("d", 300), driver.arrive("e", 300)
    driver.table.abort(impatient)
    assert wait(driver, "f")
    driver.table.abort(inside[0])
    assert driver.admitted() == ["e"]
    assert not any(driver.waits(late))
    assert wait(driver, "d")  # no way around the queue


TIERS = replace(POOL, swap_token_s=1e-3)
"""A reload of 300 tokens takes 0.3 s."""


def test_with_tiers_the_room_is_the_gpus() -> None:
    """What the tiers hold cannot be in the batch. KV that was brought back was lost to others too."""
    driver, _ = full(machine=TIERS)
    assert wait(driver, "d")
    driver = gate(TIERS, worth=0.5)
    turn(driver, "done", 1000, 1000, last=True)
    turn(driver, "a")
    turn(driver, "b")
    back = driver.arrive("a", 300)
    driver.now_s = 9.0
    driver.start(back, 300, reloaded_tokens=300)
    assert wait(driver, "c")  # three would grow to 1,000 each


@pytest.mark.parametrize(
    ("stored", "loss_s"),
    [
        (None, 0.3),  # no tiers: the engine computes all
        (Stored(0), 0.3),
        (Stored(300), 0.3 * 0.5 * 0.3),  # memory for 0.3 s
        (Stored(200), 0.3 * 0.5 * 0.2 + 0.1),
        (Stored(300, 300), 0.3 * 0.5 * 1.2),  # from the SSD: 0.9 s more
    ],
)
@pytest.mark.parametrize(("waited_s", "kept"), [(0.0, True), (0.1, True), (9.0, True), (0.1, False)])
def test_a_hold_lasts_until_it_has_cost_as_much_as_a_loss(
    stored: Stored | None, loss_s: float, waited_s: float, kept: bool
) -> None:
    """300 tokens are 0.3 of the pool. With tiers the wait for room counts too: two programs inside lose half of it.

    If tiers did not keep what they had, all is computed again.
    """
    driver = gate(replace(TIERS, ssd_token_s=3e-3), worth=0.5, learn_tool_times=False)
    turn(driver, "b")
    back = driver.arrive("b", 300)
    driver.now_s += waited_s
    driver.start(back, 300 if kept else 0, reloaded_tokens=300 if kept else 0)
    hold = driver.finish(driver.arrive("a", 300), context=300, stored=stored)
    expected_s = min(0.3, loss_s + waited_s / 2) if kept else 0.3
    assert hold is not None
    assert hold.ttl_s == pytest.approx(expected_s / (0.3 * 0.5))


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
    assert turn(gate(machine), "a") == pytest.approx(hold_s, rel=0.02)


@pytest.mark.parametrize(("learn_tool_times", "worth"), [(True, 0.5 + 1.5), (False, 0.5)])
def test_memory_is_worth_more_while_programs_wait_for_their_tools(learn_tool_times: bool, worth: float) -> None:
    driver, holds_s = gate(worth=0.5, learn_tool_times=learn_tool_times), []
    for _ in range(2):
        each = driver.start(driver.arrive("a", 300))
        driver.now_s += 1.0
        hold = driver.finish(each, context=300)
        holds_s.append(hold.ttl_s if hold else 0.0)
        driver.now_s += 1.5
    assert holds_s == [pytest.approx(1 / 0.5), pytest.approx(1 / worth)]  # away for 1.5 s, at work for 1


def test_nobody_waits_for_ever() -> None:
    """Three programs that never end hold the pool; one of those outside comes in every ten minutes."""
    driver, _ = full()
    for name in "de":
        driver.arrive(name, 300)
    came: list[tuple[str, float]] = []
    while len(came) < 2:
        driver.now_s = driver.policy.next_event_s() + 1e-6
        came += [(name, round(driver.now_s, 3)) for name in driver.admitted()]
    assert came == [("d", 600.0), ("e", 1200.0)]


def test_a_program_that_changed_half_of_its_prompt_waits_like_a_newcomer() -> None:
    """It returns behind the first program outside, because it keeps only a part of its seniority."""
    driver, (first, *_) = full()
    blocks = [f"a{number}" for number in range(300)]
    driver.finish(first, context=300)
    first.program.marks = marks_of(blocks, 0)
    waiting = driver.arrive("d", 300)
    for _ in range(20):
        driver.table.identity.next_sequence()
    back = driver.arrive("a", [*blocks[:160], *"xyz"])
    assert back.program is first.program
    assert driver.waits(back) == [True]
    assert driver.policy.position(waiting.program) < driver.policy.position(back.program)
    assert driver.admitted() == ["d"]


# ------------------------------------------------------------------------------------------------- tool times


@given(st.lists(st.integers(0, 40), min_size=1, max_size=400), st.integers(1, 60))
def test_the_hold_tried_first_of_the_cheapest(times_s: list[int], even_s: int) -> None:
    """Whole seconds, so that ties are ties: the break-even time first, then no hold, then every so many samples.

    Of up to 64 samples all are tried, so that no other hold up to the break-even time is cheaper. Fewer than 32 say
    nothing. Those added since the last look wait for a round 32.
    """
    tool_times = RecentToolTimes(window=1024)
    for away_s in times_s:
        tool_times.add(away_s)
    known = sorted(times_s)
    number = sum(time_s <= even_s for time_s in known)
    step = max(1, number // RecentToolTimes.POINTS)

    def cost(tau_s: float) -> float:
        return sum(min(time_s, tau_s) + (even_s if time_s > tau_s else 0.0) for time_s in known)

    tried = [even_s, 0, *(known[i] for i in range(step - 1, number, step))] if len(known) >= 32 else [even_s]
    assert tool_times.best_hold_s(even_s) == min(even_s, min(tried, key=cost) * RecentToolTimes.MARGIN)


def test_a_place_lost_early_is_no_program_finished() -> None:
    """After quick tools a hold is short; that a program outstays it says nothing of how far it has grown."""
    driver = gate(worth=0.5)
    for away_s in (*[0.1] * 30, 90.0):
        driver.policy._holds.tool_times.add(away_s)
    turn(driver, "a", 100, 110)
    driver.now_s += 0.1  # the 32nd
    driver.arrive("a", 600)
    assert turn(driver, "b", 300, 310) == pytest.approx(0.125)
    assert wait(driver, "c")
    assert driver.admitted(0.126) == ["c"]
    assert driver.policy._inside.footprints.final_tokens(0) == 0.0
    driver.admitted(2.0)
    assert driver.policy._inside.footprints.final_tokens(0) == 310.0


# ------------------------------------------------------------------------------------------------- forecast


@given(
    finals=st.lists(st.integers(1, 500), max_size=8),
    contexts=st.lists(st.integers(1, 500), min_size=1, max_size=8),
    limit=st.integers(1, 2000),
)
def test_overflow_share_is_what_growing_in_small_steps_says(finals: list[int], contexts: list[int], limit: int) -> None:
    """A context grows to the mean of the finished programs that were larger; the last one's growth is the way."""
    footprints = Footprints(window=4)
    for tokens in finals:
        footprints.add(tokens)
    larger = [[tokens for tokens in finals[-4:] if tokens > context] for context in contexts]
    growth = [(sum(each) / len(each) - own if each else 0.0, own) for each, own in zip(larger, contexts, strict=True)]
    way, steps = growth[-1][0], 2000
    moments = [way * (step + 0.5) / steps for step in range(steps)]
    over = sum(sum(tokens + moment for left, tokens in growth if left >= moment) > limit for moment in moments)
    share, crowded = (footprints.overflow_share(each, limit, each, sum(each)) for each in (contexts, [50, *contexts]))
    assert share == pytest.approx(over / steps, abs=len(contexts) * 2 / steps)
    assert crowded >= share


@pytest.mark.parametrize(("rebuild_token_s", "waits"), [(1e-3, False), (5e-3, False), (9e-3, True), (2e-2, True)])
def test_one_more_is_let_in_where_its_rebuilds_cost_less_than_it_brings(rebuild_token_s: float, waits: bool) -> None:
    """Two grow from 100 to 600 in a pool of 1,000: on the last fifth of the way one of them does not fit.

    A turn takes a second, half of which is gained: the second program adds a half to the worth of memory. Rebuilding
    350 tokens takes 0.35 to 7 s, a fifth of the time.
    """
    driver = gate(replace(POOL, prefill=PrefillCurve(0.0, rebuild_token_s, 0.0)), worth=1.0, learn_tool_times=False)
    each = driver.start(driver.arrive("done", 600))
    driver.now_s = 1.0
    driver.finish(each, context=600)
    turn(driver, "done", 600, 600, last=True)
    driver.policy.turn_preempted(driver.arrive("plain", tagged=False), driver.now_s)
    assert not wait(driver, "a", 100)
    assert wait(driver, "b", 100) == waits
