"""What clients say of their tools: how it changes a hold, and how wrong hints lose their weight."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest
from continuum_server.policy.catalog import POLICIES
from continuum_server.policy.facts import Step
from continuum_server.policy.hints import CLIENTS, Clients, Predictions
from continuum_server.policy.program_table import Guards
from continuum_server.policy.tool_times import AwayTimes
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import Driver


def holds_without_hints(policy: str) -> str:
    """A digest of the holds of 3,000 turns of which no client says anything."""
    chance, driver, holds = random.Random(7), Driver(policy), []
    for number in range(300):
        for _ in range(10):
            context, gap_s = chance.randrange(200, 9000), chance.choice((0.3, 1.0, chance.expovariate(0.1), 90.0))
            hold = driver.finish(
                driver.start(driver.arrive(f"p{number}")), chance.choice((None, "ls", "make")), context
            )
            holds.append(round(hold.ttl_s, 6) if hold is not None else 0.0)
            driver.now_s += gap_s
        driver.turn(f"p{number}", last=True)
    return hashlib.sha256(repr(holds).encode()).hexdigest()[:16]


@pytest.mark.parametrize(("policy", "digest"), [("working-set", "5203bd9b7f122e4e"), ("continuum", "350bd1cc55bba1fe")])
def test_without_hints_every_hold_is_as_before_there_were_hints(policy: str, digest: str) -> None:
    assert holds_without_hints(policy) == digest


# ---------------------------------------------------------------------------------------- trust

amounts = st.floats(0.0, 3.0)


@given(st.sampled_from((0.5, 1.0)), st.lists(st.tuples(st.integers(0, 5), amounts, amounts), max_size=60))
def test_trust_stays_between_none_and_full(first: float, judged: list[tuple[int, float, float]]) -> None:
    clients = Clients(first)
    programs = [clients.trust(None) for _ in range(6)]
    for number, kept, broken in judged:
        before = programs[number].value
        programs[number].judge(kept, broken)
        assert 0.0 <= programs[number].value <= 1.0
        assert kept or not broken or programs[number].value <= before
    assert 0.0 <= clients.trust(None).prior <= 1.0


@given(st.lists(st.tuples(amounts, amounts), min_size=1, max_size=30))
def test_a_judgement_that_is_taken_back_leaves_no_trace(judged: list[tuple[float, float]]) -> None:
    clients = Clients(1.0)
    trust = clients.trust(None)
    for kept, broken in judged:
        sums, prior = (trust.kept, trust.broken), clients.trust(None).prior
        trust.judge(kept, broken)
        trust.replace(*sums)
        assert (trust.kept, trust.broken) == sums
        assert clients.trust(None).prior == pytest.approx(prior)


def test_one_program_cannot_speak_for_its_client() -> None:
    clients = Clients(0.5)
    for _ in range(9):
        clients.trust("key").judge(kept=1.0)
    liar = clients.trust("key")
    for _ in range(1000):
        liar.judge(broken=3.0)
    assert liar.value < 0.1
    assert clients.trust("key").value > 0.8
    assert clients.trust("another key").value == 0.5


def test_clients_that_are_forgotten() -> None:
    clients = Clients(0.5)
    clients.trust("first").judge(broken=3.0)
    for number in range(CLIENTS):
        clients.trust(str(number))
    assert clients.trust("first").prior == 0.5


# ---------------------------------------------------------------------------------- predicted tool times


def played(driver: Driver, name: str, tool_s: float, tool: str | None = "ls", **hints: Any) -> float:
    """One turn and its tool; the turn's TTL."""
    hold = driver.finish(driver.start(driver.arrive(name, **hints)), tool, context=9000)
    driver.now_s += tool_s
    return hold.ttl_s if hold is not None else 0.0


def learned(policy: str) -> Driver:
    """A policy that has seen 200 tools of 2 s and 50 of 30 s. A rebuild is worth some 10 s."""
    driver = Driver(policy, **({"memory_worth": 10.0} if policy == "working-set" else {}))
    driver.gaps("ls", *[2.0, 2.0, 30.0, 2.0, 2.0] * 50)
    return driver


@pytest.mark.parametrize("policy", ["working-set", "continuum"])
def test_true_predictions_decide(policy: str) -> None:
    """A tool that returns in time is waited for, just as long as needed; one that does not is not waited for."""
    driver = learned(policy)
    for _ in range(10):
        for tool_s in (5.0, 500.0):
            played(driver, "p", tool_s, tool_hint_s=tool_s)
    assert 5.0 <= played(driver, "p", 5.0, tool_hint_s=5.0) < 8.0
    assert played(driver, "p", 500.0, tool_hint_s=500.0) == 0.0
    assert 2.0 <= played(driver, "other", 1.0) < 3.0  # who says nothing is held as before


@pytest.mark.parametrize("policy", ["working-set", "continuum"])
def test_wrong_predictions_lose_their_weight_at_once(policy: str) -> None:
    driver, honest = learned(policy), learned(policy)
    without = played(honest, "p", 2.0)
    assert without >= 2.0
    for _ in range(20):  # well believed
        played(driver, "p", 5.0, tool_hint_s=5.0)
    played(driver, "p", 2.0, tool_hint_s=500.0)
    played(driver, "p", 2.0, tool_hint_s=500.0)
    assert played(driver, "p", 2.0, tool_hint_s=500.0) == pytest.approx(without, rel=0.05)


hints = st.fixed_dictionaries(
    {},
    optional={
        "tool_hint": st.sampled_from(("ls", "make", "x")),
        "tool_hint_s": st.floats(0.0, 1e5),
        "tool_hint_p90_s": st.floats(0.0, 1e5),
        "ran": st.sampled_from(("ls", "make", "x")),
        "ran_s": st.floats(0.0, 1e5),
    },
)


@pytest.mark.parametrize("policy", ["working-set", "continuum", "continuum-v1", "continuum-fixed"])
@given(told=st.lists(hints, min_size=8, max_size=30), chance=st.randoms(use_true_random=False))
@settings(max_examples=settings.default.max_examples // 2)
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
def test_the_value_of_a_hint_does_not_change_the_worth_of_memory(
    first_s: float, second_s: float, chance: random.Random
) -> None:
    """Two programs, turns of a second, places that end while tools run: ``working-set`` weighs its holds by both."""
    tools = [chance.choice((2.0, 60.0)) for _ in range(20)]

    def others(said_s: float) -> list[float]:
        driver = Driver("working-set", memory_worth=0.2)
        holds = []
        for tool_s in tools:
            for name, tags in (("liar", {"tool_hint_s": said_s}), ("other", {})):
                turn = driver.start(driver.arrive(name, **tags))
                driver.now_s += 1.0
                hold = driver.finish(turn, "ls", context=9000)
                holds += [hold.ttl_s if hold is not None else 0.0] if name == "other" else []
                for _ in range(4):
                    driver.now_s += tool_s / 4
                    driver.table.step(Step(driver.now_s, 0))
        return holds

    assert others(first_s) == others(second_s)


@given(st.lists(st.floats(0.0, 1e5), min_size=40, max_size=80), st.floats(0.0, 1e5), st.floats(0.1, 1e3))
def test_no_prediction_holds_longer_than_a_rebuild_is_worth(
    samples: list[float], predicted_s: float, even_s: float
) -> None:
    times = AwayTimes(1024)
    for away_s in samples:
        times.add(away_s)
    turn = Driver("vllm").arrive("p")
    turn.tool_hint_s = predicted_s
    learned_s = times.best_hold_s(even_s)
    hold_s = Predictions().hold_s(turn, 0.0, even_s, learned_s, times.cost(even_s))
    assert 0.0 <= hold_s <= even_s


def test_time_away_that_is_not_the_tool_s_is_learned() -> None:
    """An agent that takes 3 s of its own after each tool is waited for 3 s longer than its prediction."""
    driver = learned("continuum")
    for _ in range(12):
        played(driver, "p", 4.0, tool_hint_s=1.0, ran_s=1.0)
    assert 4.0 <= played(driver, "p", 4.0, tool_hint_s=1.0, ran_s=1.0) < 8.0


# ------------------------------------------------------------------------------------------- samples


def counts(driver: Driver) -> dict[str, int]:
    return driver.table.policy.state()["tools"]  # type: ignore[no-any-return]


def test_a_predicted_name_is_no_sample() -> None:
    driver = Driver("continuum")
    played(driver, "p", 1.0, tool="ls", tool_hint="make")
    played(driver, "p", 1.0, tool=None, tool_hint="make")
    played(driver, "p", 1.0)
    assert counts(driver) == {"ls": 1, "(unknown)": 1}


def test_where_the_output_names_no_tool_the_client_s_word_counts_up_to_the_gap() -> None:
    driver = Driver("continuum")
    played(driver, "p", 60.0, tool=None)
    played(driver, "p", 3.0, tool=None, ran="make", ran_s=2.0)
    played(driver, "p", 7.0, tool="ls", ran="make", ran_s=500.0)
    played(driver, "p", 1.0, tool="ls", ran="make", ran_s=0.0)
    found = driver.table.policy.export_statistics()
    assert {name: times["recent_s"] for name, times in found["tools"].items()} == {
        "make (told)": [2.0, 3.0],
        "ls": [7.0],
    }
    assert found["all"]["recent_s"] == [60.0, 3.0, 7.0]


def test_names_that_only_clients_say_push_no_tool_out() -> None:
    driver = Driver("continuum", max_tools=2)
    played(driver, "p", 1.0)
    played(driver, "p", 1.0, tool=None)
    for number in range(5):
        played(driver, "p", 1.0, None, **{"ran": f"tool-{number}", "ran_s": 1.0} if number else {})
    assert set(counts(driver)) == {"ls", "(unknown)"}


# -------------------------------------------------------------------------------------------- wishes

HOLDING = [name for name, policy in POLICIES.items() if policy.holds]


def test_which_policies_hear_wishes() -> None:
    assert sorted(HOLDING) == sorted(
        ("continuum", "continuum-fixed", "continuum-v1", "infercept", "static-ttl", "working-set")
    )


@pytest.mark.parametrize("policy", HOLDING)
def test_a_wish_is_granted_within_the_guards(policy: str) -> None:
    driver = Driver(policy, guards=Guards(max_ttl_s=600.0))
    own_s = played(driver, "own", 0.0)
    assert played(driver, "p", 1.0, ttl_wish_s=77.0) == (77.0 if own_s < 77.0 else pytest.approx(77.0))
    assert played(driver, "q", 1.0, ttl_wish_s=5000.0) <= 600.0
    assert played(Driver(policy), "p", 1.0, ttl_wish_s=0.0) == 0.0


def test_a_policy_that_holds_nothing_hears_no_wish() -> None:
    assert played(Driver("vllm"), "p", 1.0, ttl_wish_s=60.0) == 0.0


def test_who_asks_for_long_holds_and_does_not_return_gets_none() -> None:
    driver = Driver("static-ttl", ttl_s=1.0)
    asked = [played(driver, "p", 500.0, ttl_wish_s=100.0) for _ in range(8)]
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == 100.0
    assert asked[-1] < 20.0
    assert played(driver, "q", 1.0, ttl_wish_s=100.0) < 60.0  # nor do his further programs, at first
    kept = [played(driver, "q", 1.0, ttl_wish_s=100.0) for _ in range(8)]
    assert kept == sorted(kept)
    assert kept[-1] > 80.0


@pytest.mark.parametrize("policy", HOLDING)
def test_wishes_for_too_short_holds_lose_their_weight(policy: str) -> None:
    """Where the policy knows what a rebuild is worth."""
    driver = learned(policy) if policy in ("working-set", "continuum") else Driver(policy)
    own_s = played(driver, "own", 0.0)
    asked = [played(driver, "p", 2.0, ttl_wish_s=0.5) for _ in range(4)]
    assert asked[0] == 0.5
    if policy in ("working-set", "continuum"):
        assert own_s >= 2.0
        assert asked[-1] == pytest.approx(own_s)
        assert played(driver, "q", 2.0, ttl_wish_s=0.5) > 0.5  # the client's other programs have less trust too
    else:
        assert set(asked) == {min(own_s, 0.5)}


@pytest.mark.parametrize("policy", ["working-set", "continuum"])
def test_wishes_for_short_holds_that_save_something_are_granted(policy: str) -> None:
    driver = learned(policy)
    assert {played(driver, "p", 500.0, ttl_wish_s=0.5) for _ in range(8)} == {0.5}


def test_many_wishes_at_once_are_granted_less_each() -> None:
    driver = Driver("static-ttl", ttl_s=0.0)
    asked = [played(driver, f"p{number}", 0.0, ttl_wish_s=60.0) for number in range(10)]
    assert asked[0] == 60.0
    assert sum(asked) < 240.0
    for number in range(10):
        driver.turn(f"p{number}", last=True)
    assert played(driver, "new", 0.0, ttl_wish_s=60.0) > 50.0


def test_a_program_that_ends_breaks_no_promise() -> None:
    driver = Driver("static-ttl", ttl_s=0.0)
    for number in range(10):
        played(driver, f"p{number}", 0.0, ttl_wish_s=60.0)
        driver.table.end_program(driver.table.programs_of(f"p{number}")[0])
    assert played(driver, "new", 0.0, ttl_wish_s=60.0) == 60.0


def test_the_place_of_a_program_lasts_as_long_as_the_hold_it_asked_for() -> None:
    driver = Driver("working-set")
    played(driver, "p", 0.0, ttl_wish_s=300.0)
    inside = driver.table.policy.state
    driver.table.step(Step(299.0, 0))
    assert inside()["programs_inside"] == 1
    driver.table.step(Step(301.0, 0))
    assert inside()["programs_inside"] == 0
