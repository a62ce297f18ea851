"""The TTL model against arithmetic by hand and brute force (v4, section 4)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from continuum_server.policy.estimate import Memoryfulness, QueueDelay, RecentMean, RecentShare, cold_start_ttl
from continuum_server.policy.tool_statistics import ToolStatistics
from hypothesis import given
from hypothesis import strategies as st


def test_cold_start_ladder() -> None:
    tools = ToolStatistics(cold_samples=2, window=100)
    for seconds in (1.0, 2.0):
        tools.add("ls", seconds)
    assert tools.is_cold  # |S| = K
    tools.add("cat", 9.0)
    assert not tools.is_cold
    assert len(tools.times_for("ls").recent()) == 3  # |S[ls]| = K: all tools pooled
    tools.add("ls", 3.0)
    assert len(tools.times_for("ls").recent()) == 3  # its own
    assert len(tools.times_for("never seen").recent()) == 4
    assert tools.counts() == {"ls": 3, "cat": 1}


def test_cold_start_value() -> None:
    assert cold_start_ttl(1.0) == 0.0
    assert cold_start_ttl(0.2) == 0.0
    assert cold_start_ttl(math.e) == pytest.approx(1.0)
    grid = np.linspace(0, 20, 200_001)  # argmax of (1 - exp(-tau)) * gain - tau
    assert cold_start_ttl(7.0) == pytest.approx(float(grid[np.argmax((1 - np.exp(-grid)) * 7.0 - grid)]), abs=1e-3)


def test_averages_of_the_latest_values() -> None:
    """The mean of the last two delays; averages in which a new value counts a half; shares that lose a quarter."""
    delay, mean, share = QueueDelay(2), RecentMean(2), RecentShare(4, trials=4.0, successes=4.0)
    assert (delay.mean_s, mean.value) == (0.0, 0.0)
    found = []
    for value in (1.0, 3.0, 8.0):
        delay.add(value)
        mean.add(value)
        found.append((delay.mean_s, mean.value))
    assert found == [(1.0, 1.0), (2.0, 2.0), (5.5, 5.0)]
    for trial, success in ((True, False), (True, True), (False, True)):
        share.add(trial, success)
    assert (share.trials, share.successes) == (0.75 * (0.75 * 4 + 1) + 1, 0.75 * (0.75 * 4) + 2)


@given(st.lists(st.integers(1, 40), max_size=30))
def test_eta_is_the_correlation(lengths: list[int]) -> None:
    memory = Memoryfulness()
    for turns in lengths:
        memory.add(turns)
    k = np.array([i for n in lengths for i in range(1, n + 1)], dtype=float)
    rest = np.array([n - i for n in lengths for i in range(1, n + 1)], dtype=float)
    if not lengths or k.std() == 0 or rest.std() == 0:
        assert memory.eta == 1.0
    else:
        assert memory.eta == pytest.approx(-np.corrcoef(k, rest)[0, 1], abs=1e-9)
