"""The program table: programs, pins, deadlines, victims, guards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from continuum_server.policy.estimate import cold_start_ttl
from continuum_server.policy.facts import Hold, TurnStart, TurnState
from continuum_server.policy.program_table import Guards
from policy_driver import MACHINE, POOL, Driver

HELD = {"policy": "static-ttl", "machine": POOL, "guards": Guards(), "ttl_s": 2.0}
LONG: dict[str, Any] = {**HELD, "ttl_s": 50.0}


def turn(driver: Driver, name: str, prompt: Any = 100, hits: int = 0, **facts: Any) -> TurnState:
    """A turn of no length, whose prompt finds so many blocks."""
    made = driver.start(driver.arrive(name, prompt, **facts), hits * 16)
    driver.finish(made, context=made.prompt_tokens)
    return made


def test_a_pin_expires_after_its_deadline_not_at_it_and_not_while_its_program_waits() -> None:
    driver = Driver(**HELD)
    turn(driver, "a")
    assert driver.table.next_deadline_s() == 2.0
    assert driver.table.pins.expired(2.0) == []
    (pin,) = driver.table.pins.expired(2.0001)
    assert pin.program.program_id == "a"
    turn(driver, "b")
    driver.arrive("b")
    assert driver.table.pins.expired(100.0) == []
    assert "b" in driver.table.pins


def test_soft_holds_cost_no_memory_and_no_search() -> None:
    """Conversations with one id that all ask for a soft hold: beside the latest, four are remembered, as without it."""
    driver = Driver("program-fcfs", POOL)
    for number in range(50):
        turn(driver, "user", [str(number)], kv_ttl_s=100.0)
    assert len(driver.table.identity.programs) == 5
    assert (len(driver.table.pins.soft), driver.table.pins.soft_tokens) == (50, 50 * 16)
    assert all(pin.blocks == () for pin in driver.table.pins.values())
    driver.step(1000.0)
    assert (len(driver.table.pins.soft), driver.table.pins.soft_tokens) == (0, 0)


# ------------------------------------------------------------------------------------------- which program it is


@pytest.mark.parametrize(
    ("before", "hits", "now", "same"),
    [
        ("abcdefgh", 0, "abcdefghijkl", True),
        ("abcdefgh", 0, "abcdeXghij", True),  # an edited tail, of which at least half is kept
        ("abcdefgh", 0, "abcde", True),
        ("abcdefgh", 0, "abQRSTUV", False),
        ("SSSSSSSSab", 8, "SSSSSSSSxy", False),  # a shared system prompt: two blocks are its own
        ("SSSSSSSSab", 8, "SSSSSSSSabc", True),
    ],
)
def test_a_program_goes_on_where_its_prompt_does(before: str, hits: int, now: str, same: bool) -> None:
    driver = Driver("vllm")
    first = turn(driver, "a", before, hits)
    second = turn(driver, "a", now)
    assert (second.program is first.program) == same
    assert [first.index, second.index] == [0, 1]  # turns of an id are counted on
    assert (second.program.sequence > first.program.sequence) != same
    assert driver.arrive("a", before + "ij").program is first.program  # a side conversation ends nothing


def test_a_first_prompt_that_is_not_extended_is_its_ids_program_at_a_new_place() -> None:
    driver = Driver("vllm")
    first, other = turn(driver, "a", "abcdefgh"), turn(driver, "b", "0")
    driver.now_s = 100.0
    second = turn(driver, "a", "QRSTUVWXY")
    assert second.program is first.program
    assert (second.program.arrival_s, second.program.sequence > other.program.sequence) == (100.0, True)
    assert second.compacted  # what is held of the first turn is of no use
    assert turn(driver, "a", "QRSTUVWXYZ").program is first.program
    assert turn(driver, "a", "0123456789abc").program is not first.program  # it has gone on: another conversation
    shorter = turn(driver, "b", "1")
    assert shorter.program is not other.program


@pytest.mark.parametrize("kept", [16, 11, 8])
def test_a_program_that_goes_on_keeps_its_seniority(kept: int) -> None:
    """Agents rewrite parts of their history. Half of the prompt is what makes it the same conversation."""
    driver = Driver("program-fcfs")
    first = turn(driver, "a", "abcdefghijklmnop")
    for number in range(7):
        turn(driver, f"b{number}", f"{number}")
    driver.now_s = 100.0
    back = driver.arrive("a", "abcdefghijklmnop"[:kept] + "uvw")
    assert back.program is first.program
    assert (back.program.arrival_s, driver.policy.rank(back)) == (0.0, (1, 9))


def test_ids_belong_to_their_keys() -> None:
    driver = Driver("vllm")
    mine, yours = (turn(driver, "a", "abcd", key=key) for key in ("k1", "k2"))
    assert mine.program is not yours.program
    assert driver.table.identity.programs.of("a", "k1") == [mine.program]
    assert driver.table.identity.programs.of("a") == []
    assert driver.arrive("a", "abcde", key="k2").program is yours.program
    assert driver.arrive("child", "xyz", parent="a", key="k3").program.family is None
    assert (mine.program.name, yours.program.name) == ("k1:a", "k2:a")


# ------------------------------------------------------------------------------------------- guards and victims


def test_guards_cap_time_and_share() -> None:
    driver = Driver(**{**LONG, "guards": Guards(max_ttl_s=1.0, max_pinned_share=0.15)})
    turn(driver, "a")
    turn(driver, "b")  # 100 of 150 tokens are pinned: no room for another 100
    assert (list(driver.table.pins), driver.table.pins.tokens, driver.table.next_deadline_s()) == (["a"], 100, 1.0)


def test_a_client_has_as_many_pins_as_the_guard_says() -> None:
    driver = Driver(**{**LONG, "guards": Guards(max_pins_per_client=1)})
    for name, client in (("a", "k1"), ("b", "k1"), ("c", "k2")):
        turn(driver, name, client=client)
    assert list(driver.table.pins) == ["a", "c"]
    turn(driver, "a", client="k1")
    assert list(driver.table.pins) == ["c", "a"]


@pytest.mark.parametrize(
    ("policy", "yielding", "may", "must"),  # pins that yield to b; and where one must go
    [
        ("static-ttl", "never", "", "dcab"),
        ("static-ttl", "policy", "", "dcab"),
        ("static-ttl", "waiting", "c", "dcab"),
        ("working-set", "policy", "c", "dcab"),
    ],
)
def test_pins_yield_to_whom_they_may_the_latest_first(policy: str, yielding: Any, may: str, must: str) -> None:
    """Programs a to d are held. The tools of d run; a, b and c are back, and b does not fit."""
    driver = Driver(policy, replace(POOL, kv_tokens=100_000), Guards(pins_yield_to=yielding))
    for name in "abcd":
        turn(driver, name)
        driver.table.pins.end(name)
        driver.table.pins.add(driver.arrive(name), 0.0, Hold(50.0), [name])
        if name == "d":
            driver.table.abort(driver.table.identity.programs.of("d")[0].turn)  # type: ignore[arg-type]
    (asker,) = driver.table.identity.programs.of("b")
    assert asker.turn is not None
    for must_free, expected in ((False, may), (True, must)):
        found = driver.table.order.yielding(asker.turn, must_free)
        assert "".join(pin.program.program_id for pin in found) == expected
    asker.turn.overdue = True
    assert len(driver.table.order.yielding(asker.turn, must_free=False)) == 3


# ------------------------------------------------------------------------------------------- what policies are told


def test_tool_times_are_gaps_keyed_by_tool() -> None:
    driver = Driver("continuum", cold_samples=0)
    driver.turn("a", "pytest", 3.5)
    driver.arrive("a")
    driver.now_s += 0.1
    driver.arrive("a")  # beside the first: no second sample of the same gap
    assert driver.policy.tools.counts() == {"pytest": 1}
    assert driver.policy.tools.times_for("pytest").recent() == [3.5]


@pytest.mark.parametrize(
    ("kept", "added", "context", "hits", "delay_s"),
    [
        (600, 0, 600, 600, 0.0),
        (600, 0, 600, 599, 0.0),  # the last block of a prompt is never needed from the cache
        (600, 0, 600, 598, 5.0),
        (600, 0, 600, 0, 5.0),
        (600, 0, 6000, 600, 0.0),  # an answer of reasoning that never comes back
        (400, 1, 600, 400, 0.0),  # a prompt that was shortened: what it does not repeat cannot be lost
        (400, 1, 600, 375, 0.0),
        (400, 1, 600, 300, 5.0),
    ],
)
def test_only_what_the_next_prompt_repeats_can_be_lost(
    kept: int, added: int, context: int, hits: int, delay_s: float
) -> None:
    """After a prompt of 600 blocks: T counts the wait of a turn whose KV was evicted."""
    driver = Driver("continuum", replace(MACHINE, kv_tokens=400_000))
    blocks = [f"a{number}" for number in range(600)]
    driver.finish(driver.arrive("a", blocks), context=16 * context)
    driver.now_s = 10.0
    back = driver.arrive("a", [*blocks[:kept], *["summary"] * added])
    driver.now_s = 15.0
    driver.start(back, hits * 16)
    assert driver.policy.state()["delay_estimate_seconds"] == delay_s
    hold = driver.finish(back, context=2000)
    assert hold is not None
    assert hold.ttl_s == cold_start_ttl(delay_s + 2.0)  # while few tools are known, T counts in full


def test_a_turn_is_overdue_after_the_guards_time_or_in_an_idle_engine() -> None:
    driver = Driver("vllm", guards=Guards(max_overtake_s=5.0))
    first, second = driver.arrive("a"), driver.arrive("b")
    driver.start(driver.arrive("c"))  # it runs
    assert driver.table.overdue(5.0) == []
    assert driver.table.overdue(0.0, idle=True) == [first]
    assert driver.table.next_deadline_s() == 5.0
    assert driver.table.overdue(5.001) == [second]
    assert first.overdue
    assert second.overdue


@pytest.mark.parametrize(("turns", "output", "keeps"), [(0, 0, True), (0, 1, False), (1, 1, True)])
def test_who_aborts_an_answer_before_the_first_turn_is_over_starts_again_in_line(
    turns: int, output: int, keeps: bool
) -> None:
    driver = Driver("program-fcfs")
    for _ in range(turns):
        driver.turn("a")
    driver.now_s = 10.0
    first = driver.start(driver.arrive("a"))
    driver.table.abort(first, 100 + output, output)
    driver.now_s = 20.0
    again = driver.arrive("a")
    assert (again.program is first.program, again.index) == (keeps, turns)
    assert again.program.arrival_s == (first.program.arrival_s if keeps else 20.0)


def test_a_history_that_was_not_compacted_may_grow() -> None:
    driver = Driver("program-fcfs")
    driver.finish(driver.arrive("a", "abcd"), context=16 * 4)
    driver.now_s = 100.0
    grown = driver.arrive("a", ["a", "b", "c", "d", *map(str, range(40))])
    assert grown.program.arrival_s == 0.0


@pytest.mark.parametrize(
    ("now", "context", "beside", "goes_on"),
    [
        ("aXYZ", 16 * 16, False, True),
        ("aXYZ", 8 * 16, False, True),  # half of the last context
        ("aXYZ", 8 * 16 - 1, False, False),  # not much shorter
        ("XYZ", 16 * 16, False, False),  # begins otherwise
        ("aXYZ", 16 * 16, True, False),  # another program has the same id
    ],
)
def test_a_compacted_history_keeps_its_programs_seniority(now: str, context: int, beside: bool, goes_on: bool) -> None:
    driver = Driver("program-fcfs")
    first = driver.arrive("a", "abcdefghijklmnop")
    driver.finish(first, context=context)
    if beside:
        turn(driver, "a", "0123456789")
    driver.now_s = 100.0
    back = driver.arrive("a", now)
    assert (back.program is first.program, back.compacted) == (goes_on, goes_on)
    assert back.program.arrival_s == (0.0 if goes_on else 100.0)


@pytest.mark.parametrize(
    ("hits", "reloaded", "evicted"), [(61, 0, False), (60, 0, True), (48, 48, True), (62, 62, True), (62, 1, False)]
)
def test_kv_that_was_reloaded_was_evicted(
    hits: int, reloaded: int, evicted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second prompt repeats 62 blocks, of which the last is never needed."""
    driver = Driver("program-fcfs", POOL)
    turn(driver, "a", 1000)
    seen: list[TurnStart] = []
    monkeypatch.setattr(type(driver.table.policy), "turn_started", lambda policy, start: seen.append(start))
    driver.table.start(driver.arrive("a", 1200), 1.0, hits * 16, 16, reloaded * 16, 0.1)
    assert [start.kv_was_evicted for start in seen] == [evicted]
    assert seen[0].queued_s == pytest.approx(0.9)  # a second, without the reload
