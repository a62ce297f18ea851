"""Constants and thresholds of policies, each with a case at, below or above it."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log

import pytest
from continuum_server.policy.facts import Footprint, Hold, PrefillCurve, ProgramState, Stored, TurnFinish, TurnState
from continuum_server.policy.hints import Predictions
from continuum_server.policy.holds import USUAL_WORTH, Holds
from continuum_server.policy.pins import Pins
from continuum_server.policy.program_table import Guards
from continuum_server.policy.returns import Returns
from policy_driver import MACHINE, Driver


def finish(tool: str | None, share: float, context: int = 20_000) -> TurnFinish:
    turn = TurnState(ProgramState("p", 0.0, 1), 0, "r", 0.0, context, 1)
    return TurnFinish(turn, 0.0, context, 10, tool, return_share=share)


@pytest.mark.parametrize(
    ("share", "cold_s", "warm_s"), [(1.0, log(20), 15.0), (0.8, log(16), 15.0), (0.7, log(14), 0.0)]
)
def test_continuum_holds_in_proportion_to_the_share_of_programs_that_go_on(
    share: float, cold_s: float, warm_s: float
) -> None:
    """A rebuild takes 20 s, and every recorded tool 15 s."""
    cold, warm = Driver("continuum").policy, Driver("continuum", cold_samples=0).policy
    warm.tools.add("ls", 15.0)
    holds: list[Hold] = [policy.turn_finished(finish("ls", share)) for policy in (cold, warm)]
    assert [hold.ttl_s for hold in holds] == pytest.approx([cold_s, warm_s])


@pytest.mark.parametrize(("away_s", "late_s"), [(20.0, 60.0), (1.0, 30.0), (300.0, 600.0)])
def test_a_program_has_ended_when_it_is_late(away_s: float, late_s: float) -> None:
    """Three times the mean time between turns, at least 30 s, at most the longest hold."""
    returns, program, gone = Returns(600.0), ProgramState("p", 0.0, 1), ProgramState("gone", 0.0, 2)
    returns.answered(program, "ls", 0.0)
    returns.returned(program, away_s)
    returns.answered(gone, "ls", 1000.0)
    before = returns.share(program, "ls", 1000.0)
    assert returns.share(program, "ls", 1000.0 + late_s) == before
    assert returns.share(program, "ls", 1000.0 + late_s + 0.001) < before


@pytest.mark.parametrize(
    ("ended", "asked", "share"),
    [(None, None, 0.64), (None, "ls", 1.0), ("make", None, 1.0), ("make", "ls", 0.8), ("ls", "ls", 0.64)],
)
def test_a_share_begins_with_four_answers_that_were_followed(
    ended: str | None, asked: str | None, share: float
) -> None:
    """One answer was not: of all answers with a tool (or without) four of five were, and of those that name this tool
    four of five as many."""
    returns = Returns(600.0)
    returns.answered(ProgramState("gone", 0.0, 2), ended, 0.0)
    assert returns.share(ProgramState("p", 0.0, 1), asked, 31.0) == pytest.approx(share)


@pytest.mark.parametrize(("p90_s", "deviation"), [(2.0, log(2.25 / 1.25) / 1.2816), (None, 0.1**0.5), (1.0, 0.1**0.5)])
def test_a_program_is_late_two_standard_deviations_after_its_prediction(p90_s: float | None, deviation: float) -> None:
    """The deviation of the logarithm follows from the predicted P90, if that is longer; else the usual one counts."""
    turn = finish("ls", 1.0).turn
    turn.tags.pred_tool_s, turn.tags.pred_tool_p90_s = 1.0, p90_s
    hold_s = Predictions().hold_s(turn, 0.0, even_s=100.0, learned_s=0.0)
    assert hold_s == pytest.approx(1.25 * exp(2.0 * deviation))


@pytest.mark.parametrize(("saved", "believed"), [(2, True), (1, False)])
def test_a_prediction_that_costs_counts_as_much_as_two_that_save(saved: int, believed: bool) -> None:
    """Of a rebuild of 10 s: held for 5 s where it would be none, or not at all where it would be 5 s."""
    predictions, now_s = Predictions(), 0.0
    for predicted_s, learned_s in (*[(5.0, 0.0)] * saved, (500.0, 5.0)):
        turn = finish("ls", 1.0).turn
        turn.tags.pred_tool_s, turn.program.last_finish_s = predicted_s, now_s
        predictions.hold_s(turn, now_s, 10.0, learned_s)
        predictions.returned(turn, now_s + 5.0)
        now_s += 100.0
    turn.tags.pred_tool_s = 500.0
    assert predictions.hold_s(turn, now_s, 10.0, learned_s=5.0) == (0.0 if believed else 5.0)


@pytest.mark.parametrize(("agent_s", "first"), [(3.17, False), (3.21, True)])
def test_one_offs_take_up_to_92_hundredths_of_40_seconds(agent_s: float, first: bool) -> None:
    """At first all counts as theirs. An agent's prompt, and 10 ms for its answer, is 8% of that window at 3.2 s."""
    driver = Driver("program-fcfs")
    driver.finish(driver.arrive("agent", round(agent_s * 1000)))
    assert driver.table.one_offs.first(None) == first


@pytest.mark.parametrize(("windows", "chats", "first"), [(1, 3, True), (1, 4, False), (3, 3, True), (3, 4, False)])
def test_one_prompt_counts_as_at_most_the_window(windows: int, chats: int, first: bool) -> None:
    """After an agent's long prompt the share of one-offs is 0; each of these chats is half of what is left to 1."""
    driver = Driver("program-fcfs")
    driver.finish(driver.arrive("agent", windows * 40_000))
    for number in range(chats):
        driver.finish(driver.arrive(f"chat-{number}", 20_000, tagged=False), context=0)
    assert driver.table.one_offs.first(None) == first


@pytest.mark.parametrize(
    ("load_s", "stored", "loss_s"),
    [
        (5e-3, None, 10.0),
        (5e-3, Stored(0), 10.0),
        (5e-3, Stored(400), 8.0),
        (10e-3, Stored(400), 10.0),
        (15e-3, Stored(400), 10.0),
    ],
)
def test_a_tier_never_makes_a_loss_dearer(load_s: float, stored: Stored | None, loss_s: float) -> None:
    """To compute 1,000 tokens takes 10 s of the engine, and 4 s that a batch shares."""
    machine = replace(MACHINE, prefill=PrefillCurve(0.0, 1e-2, 4.0), swap_token_s=load_s)
    assert Holds(machine).break_even_s(1000, stored) == pytest.approx(loss_s / (0.01 * USUAL_WORTH))


def test_a_hold_costs_the_room_that_it_takes() -> None:
    """Of a model with a window of eight blocks beside full attention, 1,000 tokens take 63 + 8 blocks."""
    machine = replace(MACHINE, footprint=Footprint(((16, None), (16, 8)), block_tokens=10.0))
    even_s = machine.prefill.marginal_prefill_s(1000) / (71 * 10.0 / machine.kv_tokens * USUAL_WORTH)
    assert Holds(machine).break_even_s(1000) == pytest.approx(even_s)


@pytest.mark.parametrize(
    ("blocks", "fits"), [("c", True), ("cd", True), ("cde", False), ("abcd", True), ("abcde", False)]
)
def test_pins_may_fill_what_they_may_hold(blocks: str, fits: bool) -> None:
    """Four blocks of 16 tokens, of which another pin has ``a`` and ``b``: shared blocks count once."""
    pins = Pins(16, max_tokens=64.0, max_ttl_s=9.0, max_per_client=None)
    pins.add(finish("ls", 1.0).turn, 0.0, Hold(9.0), "ab")
    assert (pins.allowed(Hold(1.0), 0.0, lambda: blocks, None) is not None) == fits


def test_a_first_turn_is_overdue_when_its_prefill_would_miss_the_target() -> None:
    """A target of 5 s, and 1 s of prefill. The first such turn then waits 2 s more, which is expected of the next."""
    driver = Driver("vllm", guards=Guards(first_token_s=5.0))
    driver.start(driver.arrive("runs"))
    for at_s, late_s in ((0.0, 4.0), (100.0, 102.0)):
        driver.now_s = at_s
        turn = driver.arrive(f"at {at_s}", 1000)
        assert driver.table.overdue(late_s) == []
        assert driver.table.overdue(late_s + 0.25) == [turn]
        driver.now_s = late_s + 2.25
        driver.start(turn)


def test_only_a_program_s_first_turn_has_a_target() -> None:
    driver = Driver("vllm", guards=Guards(first_token_s=5.0))
    driver.turn("a")
    second, first = driver.arrive("a"), driver.arrive("b")
    assert driver.table.overdue(1000.0) == [first]
    assert not second.overdue


@pytest.mark.parametrize(("served_s", "queue"), [(3.999, 0), (4.0, 1), (11.999, 1), (12.0, 2), (28.0, 3)])
def test_autellix_has_queues_of_4_8_and_16_seconds(served_s: float, queue: int) -> None:
    driver = Driver("autellix")
    turn = driver.start(driver.arrive("a"))
    driver.now_s = served_s
    driver.finish(turn)
    assert driver.policy.rank(driver.arrive("a"))[0] == queue


@pytest.mark.parametrize(("away_s", "waits"), [(0.0, True), (1.95, True), (2.0, False)])
def test_thunderagent_counts_half_of_an_acting_program_each_second(away_s: float, waits: bool) -> None:
    """8,000 tokens in a pool of 10,000 leave room for 7,800, with 100 for each program, once 2,000 are left of them."""
    driver = Driver("thunderagent", replace(MACHINE, kv_tokens=10_000), interval_s=0.01)
    driver.turn("acts", context=8_000)
    driver.step(0.011)
    turn = driver.arrive("new", 7_800)
    driver.step(away_s)
    assert driver.waits(turn) == [waits]


@pytest.mark.parametrize(
    ("options", "stored", "discard", "swap"),
    [
        ({}, Stored(3000), 4.096 * 4096 / 2 + 2 * 2.048 * 1000, 0.3 * 4096 + 1.096 * 5096),
        ({"chunk_tokens": 0}, None, 4.096 * 5096, inf),
        ({"chunk_tokens": 4096}, Stored(0), 4.096 * 5096, inf),
        ({"swap_stalls": 1}, Stored(4096), 4.096 * 4096 / 2 + 2 * 2.048 * 1000, 2 * 0.4096 * 1000),
    ],
)
def test_the_wastes_of_infercept(options: dict[str, int], stored: Stored | None, discard: float, swap: float) -> None:
    """Of 4,096 tokens beside 1,000 others: a token takes 1 ms to compute, 0.1 ms to load, and a step has 2,048."""
    policy = Driver("infercept", replace(MACHINE, swap_token_s=1e-4), **options).policy
    assert policy.discard_waste(4096, 1000) == pytest.approx(discard)
    assert policy.swap_waste(4096, 1000, stored) == pytest.approx(swap)
