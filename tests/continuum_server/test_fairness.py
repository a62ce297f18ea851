"""However other clients choose and reuse their ids, parents, hints and prompts, honest programs get on.

The rows, in virtual time on vLLM's scheduler: 40 clients that send without a pause, 8 honest programs of two turns.
"""

from __future__ import annotations

from functools import cache
from statistics import mean
from typing import Any

import pytest
from continuum_server.policy.catalog import POLICIES
from fairness_bench import honest_times_s
from fairness_rows import FRESH, PROGRAMS, ROWS

NEAR_FRESH = ("working-set", "continuum", "program-fcfs")
"""Policies under which no row may slow honest programs down more than twice as much as fresh ids do."""
BOUND_S = 60.0
"""Under every other policy: an honest program, of 2.1 s alone and 9 s under stock vLLM, is over by then, whatever the
others send. ``thunderagent`` holds a program back for up to its ``patience_s``, here 20 s."""
OPTIONS: dict[str, dict[str, Any]] = {"thunderagent": {"patience_s": 20.0}}
OTHERS = [name for name, policy in POLICIES.items() if policy.label == "policy" and name not in NEAR_FRESH]
REUSING = (
    *("shared-old-id", "child-of-old", "own-old-id", "own-old-id-continued", "chain"),
    *("fresh-id-hints", "own-old-id-hints"),
)
"""Rows that gain by what they say where a policy lets them."""


@cache
def beside_fresh_ids_s(policy: str) -> float:
    times_s = honest_times_s(ROWS[FRESH][0], policy, limit_s=BOUND_S)
    assert len(times_s) == PROGRAMS
    return mean(times_s)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("policy", NEAR_FRESH)
def test_no_row_is_twice_as_slow_as_fresh_ids(policy: str, row: str) -> None:
    fresh_s = beside_fresh_ids_s(policy)
    times_s = honest_times_s(ROWS[row][0], policy, limit_s=3 * fresh_s)
    assert len(times_s) == PROGRAMS, f"{len(times_s)} of {PROGRAMS} over in {3 * fresh_s:.0f} s"
    assert mean(times_s) <= 2 * fresh_s


@pytest.mark.parametrize("row", REUSING)
@pytest.mark.parametrize("policy", OTHERS)
def test_every_honest_program_ends(policy: str, row: str) -> None:
    times_s = honest_times_s(ROWS[row][0], policy, OPTIONS.get(policy), limit_s=BOUND_S)
    assert len(times_s) == PROGRAMS, f"{len(times_s)} of {PROGRAMS} over in {BOUND_S:.0f} s"


def test_equal_runs_are_equal() -> None:
    row = ROWS["own-old-id-continued"][0]
    first, second = (honest_times_s(row, "vllm", limit_s=BOUND_S) for _ in range(2))
    assert len(first) == PROGRAMS
    assert first == second
