"""The papers' policies and their baselines against arithmetic by hand."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import pytest
from continuum_server.policy.estimate import Moments
from continuum_server.policy.facts import PrefillCurve, TurnFinish
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES, make_policy
from continuum_server.policy.rules.papers.continuum_v1 import bernstein_bound
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import MACHINE, Driver


@given(st.lists(st.floats(0, 1e6), max_size=50))
def test_moments_are_those_of_all_values(values: list[float]) -> None:
    moments = Moments()
    for value in values:
        moments.add(value)
    assert moments.count == len(values)
    assert moments.mean == pytest.approx(statistics.fmean(values or [0.0]), rel=1e-9, abs=1e-9)
    variance = statistics.variance(values) if len(values) > 1 else 0.0
    assert moments.variance == pytest.approx(variance, rel=1e-6, abs=1e-6)


def test_bernstein_by_hand() -> None:
    moments = Moments()
    for value in (1.0, 3.0):
        moments.add(value)
    log = math.log(3 / 0.1)
    assert bernstein_bound(moments, 0.1, 5.0) == pytest.approx(2 + math.sqrt(2 * 2 * log / 2) + 3 * 5 * log / 2)
    assert bernstein_bound(Moments(), 0.1, 5.0) == 0.0


def test_v1_takes_the_tools_own_bound_once_it_has_enough() -> None:
    driver = Driver("continuum-v1", min_samples=3, longest_tool_s=0.0, turn_weight=0.0)
    driver.gaps("slow", 8.0, 8.0, 8.0)
    assert driver.policy.bound_s("slow") == pytest.approx(8.0)
    assert driver.turn("a", "slow") == pytest.approx(4.0 / 8.0)
    driver.gaps("fast", 0.5, 0.5)
    pooled = Moments()
    for value in (8.0, 8.0, 8.0, 0.5, 0.5):
        pooled.add(value)
    assert driver.policy.bound_s("fast") == pytest.approx(bernstein_bound(pooled, 0.05, 0.0))  # two are too few: pooled


def test_v1_is_longer_where_programs_have_many_turns() -> None:
    driver = Driver("continuum-v1", turn_weight=0.5)
    driver.gaps("ls", 1.0, 1.0, 1.0)  # a program of four turns
    driver.gaps("ls", 1.0)  # and one of two
    assert driver.turn("a") == pytest.approx(2.0 * (1 + 0.5 * 3))


def test_v1_starts_with_the_default_and_without_any_time_seen_is_held_to_the_cap() -> None:
    assert Driver("continuum-v1", default_ttl_s=3.0).turn("a") == 3.0  # T^2 / T, no program finished yet
    driver = Driver("continuum-v1", min_samples=1, longest_tool_s=0.0)
    driver.gaps("ls", 0.0, 0.0)
    assert driver.turn("a") == 1e9  # a bound of 0 s: the guard's cap


def test_fixed_holds_two_seconds_or_not_at_all() -> None:
    driver = Driver("continuum-fixed")
    assert driver.turn("a", None) == 0.0
    assert driver.turn("a", "never seen") == 2.0
    driver.gaps("edge", 1.0, 3.0)
    assert driver.turn("b", "edge") == 2.0  # a mean of exactly 2 s still counts
    driver.gaps("slow", 2.1)
    assert driver.turn("c", "slow") == 0.0
    assert driver.turn("d", "never seen") == 2.0
    driver.gaps("cat", *[0.1] * 9, 100.0)  # a mean, no distribution: one stall of a fast tool ends its holding
    assert driver.turn("e", "cat") == 0.0


def tiered(policy: str, token_s: float | None) -> Driver:
    return Driver(policy, replace(MACHINE, prefill=PrefillCurve(0.0, 2e-3, 0.0), swap_token_s=token_s))


@pytest.mark.parametrize(
    ("tool_s", "token_s", "holds"),
    [
        (1.9, None, True),  # 1,000 tokens are computed in 2 s
        (2.0, None, False),
        (0.9, 1e-3, True),  # and reloaded in 1 s
        (1.0, 1e-3, False),
    ],
)
def test_infercept_as_v4_has_it_decides_once_by_the_tools_mean_time(
    tool_s: float, token_s: float | None, holds: bool
) -> None:
    driver = tiered("infercept-v4", token_s)
    assert driver.turn("a") == 0.0  # no time is known
    driver.gaps("ls", tool_s - 0.5, tool_s + 0.5)
    assert driver.turn("b", "ls") == (1e9 if holds else 0.0)
    assert driver.turn("c", "new") == (1e9 if holds else 0.0)  # a tool without times: those of all tools
    assert driver.policy.stock_order


def test_plas_orders_by_the_time_that_programs_were_served() -> None:
    driver = Driver("plas")
    long, short = driver.arrive("long"), driver.arrive("short")
    for turn, seconds in ((long, 5.0), (short, 1.0)):
        driver.start(turn)
        driver.now_s += seconds
        driver.finish(turn)
    back = [driver.arrive("long"), driver.arrive("short"), driver.arrive("new")]
    ranks = sorted(back, key=driver.policy.rank)
    assert [turn.program.name for turn in ranks] == ["new", "short", "long"]


def test_the_papers_preset_takes_back_our_choices() -> None:
    paper, ours = POLICIES["continuum-paper"], POLICIES["continuum"]
    assert (paper.first_words, paper.one_offs_first, paper.pins_yield_to) == (True, False, "never")
    assert (ours.first_words, ours.one_offs_first) == (False, True)
    table = Driver("continuum-paper", guards=Guards(max_ttl_s=1e9, one_offs="first")).table
    assert not table.one_offs.first(None)
    finish = TurnFinish(Driver("continuum").arrive("a"), 0.0, 1000, 10, "ls", return_share=0.25)
    shares = [make_policy(name, {}, MACHINE).return_share(finish) for name in ("continuum", "continuum-paper")]  # type: ignore[attr-defined]
    assert shares == [0.25, 1.0]
