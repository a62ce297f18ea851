"""What clients say of their tools: how it changes a hold, and how wrong hints lose their weight."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from continuum_server.policy.facts import DecodeLine
from continuum_server.policy.hints import CLIENTS, Predictions
from continuum_server.policy.program_table import Guards
from continuum_server.policy.tool_times import RecentToolTimes
from hypothesis import given, settings
from hypothesis import strategies as st
from nano import each_policy
from policy_driver import MACHINE, Driver

# ---------------------------------------------------------------------------------- predicted tool times


def played(driver: Driver, name: str, tool_s: float, tool: str | None = "ls", **hints: Any) -> float:
    return driver.turn(name, tool, tool_s, context=9000, **hints)


def learned(policy: str) -> Driver:
    """A policy that has seen 200 tools of 2 s and 50 of 30 s. A rebuild is worth 9 to 100 s."""
    driver = Driver(policy, replace(MACHINE, decode=DecodeLine(1.0, 0.0)))
    driver.gaps("ls", *[2.0, 2.0, 30.0, 2.0, 2.0] * 50)
    return driver


@pytest.mark.parametrize("policy", ["working-set", "continuum"])
def test_true_predictions_decide(policy: str) -> None:
    """A tool that returns in time is waited for, just as long as needed; one that does not is not waited for."""
    driver = learned(policy)
    for _ in range(10):
        for tool_s in (5.0, 500.0):
            played(driver, "p", tool_s, pred_tool_s=tool_s)
    assert 5.0 <= played(driver, "p", 5.0, pred_tool_s=5.0) < 12.0
    assert played(driver, "p", 500.0, pred_tool_s=500.0) == 0.0
    assert 2.0 <= played(driver, "other", 1.0) < 50.0  # no prediction: what was learned of gaps decides


@pytest.mark.parametrize("policy", ["working-set", "continuum"])
def test_wrong_predictions_soon_lose_their_weight(policy: str) -> None:
    driver, honest = learned(policy), learned(policy)
    without = played(honest, "p", 2.0)
    assert without >= 2.0
    for _ in range(20):  # well believed
        played(driver, "p", 5.0, pred_tool_s=5.0)
    for _ in range(4):
        played(driver, "p", 2.0, pred_tool_s=500.0)
    assert played(driver, "p", 2.0, pred_tool_s=500.0) == pytest.approx(without, rel=0.05)


def test_the_score_of_a_client_is_its_own_and_the_least_recent_is_forgotten() -> None:
    predictions = Predictions()

    def believed(key: str, away_s: float | None = None) -> bool:
        """Whether 5 s are held where it would be 1 s. If ``away_s`` is given, the program returns then."""
        turn = Driver("vllm").arrive("p", key=key)
        turn.tags.pred_tool_s, turn.program.last_finish_s = 5.0, 0.0
        held_s = predictions.hold_s(turn, 0.0, 10.0, 1.0)
        if away_s is not None:
            predictions.returned(turn, away_s)
        return held_s > 1.0

    assert [believed("liar", 500.0), believed("liar"), believed("other")] == [True, False, True]
    for number in range(CLIENTS):
        believed(str(number))
    assert believed("liar")


names, seconds = st.sampled_from(("ls", "make", "x")), st.floats(0.0, 1e5)
said = {
    "pred_tool": names,
    "pred_tool_s": seconds,
    "pred_tool_p90_s": seconds,
    "last_func_call": names,
    "last_tool_duration_s": seconds,
}
hints = st.fixed_dictionaries({}, optional=said)


@each_policy(["working-set", "continuum", "continuum-v1", "continuum-fixed"])
@given(told=st.lists(hints, min_size=8, max_size=30), chance=st.randoms(use_true_random=False))
@settings(max_examples=settings.default.max_examples // 4)
def test_what_a_client_says_changes_nobody_else_s_holds(
    policy: str, told: list[dict[str, object]], chance: random.Random
) -> None:
    """Two programs call tools in turn. Whatever one of them says, the other's holds are the same."""
    tools = [chance.choice((0.3, 2.0, 30.0)) for _ in told]

    def others(said: list[dict[str, object]]) -> list[float]:
        driver = Driver(policy)
        driver.gaps("ls", *[1.0, 5.0] * 80)
        holds = []
        for tool_s, tags in zip(tools, said, strict=True):
            assert played(driver, "liar", tool_s, **tags) >= 0.0
            holds.append(played(driver, "other", tool_s))
        return holds

    assert others(told) == others([{} for _ in told])


@given(st.floats(0.0, 1e5), st.floats(0.0, 1e5), st.randoms(use_true_random=False))
@settings(max_examples=settings.default.max_examples // 4)
def test_the_value_of_a_hint_does_not_change_the_worth_of_memory(
    first_s: float, second_s: float, chance: random.Random
) -> None:
    """Two programs, turns of a second, places that end while tools run: ``working-set`` weighs its holds by both."""
    tools = [chance.choice((2.0, 60.0)) for _ in range(20)]

    def others(said_s: float) -> list[float]:
        driver = Driver("working-set", replace(MACHINE, decode=DecodeLine(1.0, 4e-5)))
        holds = []
        for tool_s in tools:
            for tags in ({"pred_tool_s": said_s}, {}):
                turn = driver.start(driver.arrive(str(tags.keys()), **tags))
                driver.now_s += 1.0
                holds.append(driver.finish(turn, "ls", context=9000))
                for _ in range(4):
                    driver.step(tool_s / 4)
        return [hold.ttl_s if hold else 0.0 for hold in holds[1::2]]

    assert others(first_s) == others(second_s)


@given(st.lists(st.floats(0.0, 1e5), min_size=40, max_size=80), st.floats(0.0, 1e5), st.floats(0.1, 1e3))
def test_no_prediction_holds_longer_than_a_rebuild_is_worth(
    samples: list[float], predicted_s: float, even_s: float
) -> None:
    times = RecentToolTimes(1024)
    for away_s in samples:
        times.add(away_s)
    turn = Driver("vllm").arrive("p")
    turn.tags.pred_tool_s = predicted_s
    learned_s = times.best_hold_s(even_s)
    hold_s = Predictions().hold_s(turn, 0.0, even_s, learned_s)
    assert 0.0 <= hold_s <= even_s


# ------------------------------------------------------------------------------------------- tool events


@pytest.mark.parametrize("policy", ["working-set", "continuum"])
def test_an_event_says_what_a_prediction_in_the_request_says(policy: str) -> None:
    """An event that comes while the answer is generated counts as the turn's own prediction. The seconds of a later
    event count from the event on."""
    asked, streams, later = (learned(policy) for _ in range(3))
    hinted_s = played(asked, "p", 0.0, pred_tool_s=2.0)
    unsure_s = played(asked, "p", 0.0, pred_tool_s=2.0, pred_tool_p90_s=3.0)
    turn = streams.start(streams.arrive("p"))
    assert streams.tell("p", 2.0) is None
    hold = streams.finish(turn, context=9000)
    assert hold is not None
    assert hold.ttl_s == hinted_s != unsure_s
    played(later, "p", 0.0)
    assert later.tell("p", 2.0) == pytest.approx(hinted_s)
    assert later.tell("p", 2.0, 3.0) == pytest.approx(unsure_s)
    later.now_s += 1.0
    assert later.tell("p", 2.0) == pytest.approx(1.0 + hinted_s)


@pytest.mark.parametrize("policy", ["working-set", "continuum"])
def test_a_hold_is_given_up_once_the_tool_takes_longer_than_a_rebuild_is_worth(policy: str) -> None:
    driver = learned(policy)
    played(driver, "p", 1.0)
    even_s = driver.tell("p")
    assert even_s is not None
    assert driver.tell("p", even_s - 1.0) == even_s  # it is expected exactly then
    assert driver.tell("p", even_s - 0.99) is None
    assert driver.tell("p") == even_s  # before the next step, nothing is lost yet
    driver.step(even_s)
    assert driver.tell("p", 0.0) is None


def test_a_hold_that_is_given_up_late_saves_only_the_rest() -> None:
    driver = learned("continuum")
    learned_s = played(driver, "p", 0.5)
    even_s = driver.tell("p")
    assert driver.tell("p", 3600.0) is None
    driver.now_s += 3600.0
    played(driver, "p", 0.0)
    score = driver.policy.predictions._clients.of(None).score.value
    assert even_s is not None
    assert score == pytest.approx((learned_s - 0.5) / even_s)


def test_a_tool_that_has_ended_is_no_prediction_but_counts_as_one_that_was_right_or_wrong() -> None:
    driver = learned("continuum")
    for _ in range(8):
        learned_s = played(driver, "p", 1.0)
        driver.tell("p")
        driver.now_s += learned_s  # later than without the event, and still in time
    client = driver.policy.predictions._clients.of(None)
    assert client.error.count == 0
    assert client.score.value > 0.0
    for _ in range(8):  # it says so, and comes much too late
        played(driver, "p", 1.0)
        driver.tell("p")
        driver.now_s += 500.0
    learned_s = played(driver, "p", 1.0)
    assert client.score.value < 0.0
    assert driver.tell("p") == learned_s


@pytest.mark.parametrize(("tool_s", "weight"), [(5.0, 1.0), (500.0, -1.0)])
def test_the_error_of_an_event_is_that_of_the_seconds_that_were_left(tool_s: float, weight: float) -> None:
    driver = learned("continuum")
    played(driver, "p", 1.0)
    driver.tell("p", 4.0)
    driver.now_s += tool_s - 1.0
    played(driver, "p", 0.0)
    client = driver.policy.predictions._clients.of(None)
    assert client.error.value == (0.0 if weight > 0.0 else 1.0)
    assert (client.score.value > 0.0) == (weight > 0.0)


def test_an_event_moves_no_hold_that_no_prediction_moves() -> None:
    """Under a policy that reads none, after the hold's end, and beyond the longest hold."""
    fixed = Driver("static-ttl", ttl_s=5.0)
    fixed.turn("p", gap_s=1.0)
    assert [fixed.tell("p", seconds) for seconds in (3600.0, 1.0, None)] == [5.0] * 3
    short = Driver("working-set", guards=Guards(max_ttl_s=2.0))
    short.turn("p", gap_s=1.0)
    assert short.tell("p") == 2.0
    short.turn("q", gap_s=1.0)
    short.step(1.5)
    assert short.tell("q") is None
    short.turn("q")
    assert short.policy.predictions._clients.of(None).score.count == 0  # the event came too late to save anything
    turn = short.arrive("q")
    assert short.tell("q", 1.0) is not None
    assert turn.tags.pred_tool_s is None  # of the tool before, whose event comes late


def test_a_client_that_moves_a_hold_for_ever_takes_no_memory() -> None:
    driver = learned("working-set")
    played(driver, "p", 0.0)
    for number in range(10_000):
        driver.tell("p", 0.001 * (number % 100))
    assert len(driver.table.pins._deadlines) < 100
    played(driver, "q", 1.0)
    assert driver.tell("p", 0.1) is not None
    driver.step(10.0)
    assert "p" not in driver.table.pins


# ------------------------------------------------------------------------------------------- samples


def test_a_predicted_name_is_no_sample() -> None:
    driver = Driver("continuum")
    played(driver, "p", 1.0, tool="ls", pred_tool="make")
    played(driver, "p", 1.0, tool=None, pred_tool="make")
    played(driver, "p", 1.0)
    assert driver.policy.tool_counts() == {"ls": 1, "(unknown)": 1}


def test_where_the_output_names_no_tool_the_client_s_word_counts_up_to_the_gap() -> None:
    driver = Driver("continuum")
    played(driver, "p", 60.0, tool=None)
    played(driver, "p", 3.0, tool=None, last_func_call="make", last_tool_duration_s=2.0)
    played(driver, "p", 7.0, tool="ls", last_func_call="make", last_tool_duration_s=500.0)
    played(driver, "p", 1.0, tool="ls", last_func_call="make", last_tool_duration_s=0.0)
    found = driver.policy.export_statistics()
    assert {name: times["recent_s"] for name, times in found["tools"].items()} == {
        "make (hint)": [2.0, 3.0],
        "ls": [7.0],
    }
    assert found["all"]["recent_s"] == [60.0, 3.0, 7.0]


def test_names_that_only_clients_say_push_no_tool_out() -> None:
    driver = Driver("continuum", max_tools=2)
    played(driver, "p", 1.0)
    played(driver, "p", 1.0, tool=None)
    for number in range(5):
        played(
            driver,
            "p",
            1.0,
            None,
            **{"last_func_call": f"tool-{number}", "last_tool_duration_s": 1.0} if number else {},
        )
    assert set(driver.policy.tool_counts()) == {"ls", "(unknown)"}
