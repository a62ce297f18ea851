"""``continuum-v1`` and ``continuum-fixed`` against arithmetic by hand."""

from __future__ import annotations

import math
import statistics

import pytest
from continuum_server.policy.estimate import Moments
from continuum_server.policy.rules.continuum_v1 import bernstein_bound
from hypothesis import given
from hypothesis import strategies as st
from policy_driver import Driver


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
