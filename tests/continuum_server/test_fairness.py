"""However other clients choose and reuse their ids, parents, hints and prompts, honest programs get on.

The rows, in virtual time on vLLM's scheduler: 40 clients that send without a pause, 8 honest programs of two turns.
"""

from __future__ import annotations

from functools import cache
from statistics import mean
from typing import Any

import pytest
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES
from fairness_bench import honest_times_s
from fairness_rows import FRESH, PROGRAMS, ROWS, invented
from nano import each_policy

NEAR_FRESH = ("working-set", "continuum", "program-fcfs")
"""Policies under which no row may slow honest programs down more than twice as much as fresh ids do."""
BOUND_S = 60.0
"""Under every other policy: an honest program, of 2.1 s alone and 9 s under stock vLLM, is over by then, whatever the
others send. ``thunderagent`` holds a program back for up to its ``patience_s``, here 20 s."""
OPTIONS: dict[str, dict[str, Any]] = {"thunderagent": {"patience_s": 20.0}}
CONTINUED = {"own-old-id-continued", "untagged-continued", "half-prompt", "giant"}
"""Forty conversations, with ids or without, of which one always has a request waiting. Each prompt repeats the whole
prompt before, or half of it. Program order puts them first, so only ``Guards.max_overtake_s`` bounds how long others
wait. ``giant``: one such conversation."""
OTHERS = [name for name, policy in POLICIES.items() if policy.label == "policy" and name not in NEAR_FRESH]
STARVED = "plas"
"""This policy runs the program that was served least. New programs were served nothing, so they come first as long as
new ones arrive; only ``Guards.max_overtake_s`` bounds how long others wait."""
REUSING = (
    *("shared-old-id", "child-of-old", "own-old-id", "chain"),
    *("fresh-id-hints", "own-old-id-hints"),
)
"""Rows that gain by what they say where a policy lets them."""
OTHER_ROWS = sorted(set(ROWS) - CONTINUED - set(REUSING))


@cache
def beside_fresh_ids_s(policy: str) -> float:
    times_s = honest_times_s(ROWS[FRESH][0], policy, limit_s=BOUND_S)
    assert len(times_s) == PROGRAMS
    return mean(times_s)


@pytest.mark.parametrize(
    "row", [*REUSING, 0, 1, *(pytest.param(row, marks=pytest.mark.slow) for row in (*OTHER_ROWS, *range(2, 6)))]
)
@each_policy(NEAR_FRESH)
def test_no_row_is_twice_as_slow_as_fresh_ids(policy: str, row: str | int) -> None:
    """Those with a name, and invented ones by their seed."""
    fresh_s = beside_fresh_ids_s(policy)
    others = invented(row) if isinstance(row, int) else ROWS[row][0]
    times_s = honest_times_s(others, policy, limit_s=3 * fresh_s)
    assert len(times_s) == PROGRAMS, f"{len(times_s)} of {PROGRAMS} over in {3 * fresh_s:.0f} s"
    assert mean(times_s) <= 2 * fresh_s


def test_small_programs_beside_a_giant_pass_honest_ones_only_so_far() -> None:
    """``AHEAD`` bounds it."""
    assert len(honest_times_s(ROWS["giant"][0], "working-set", limit_s=BOUND_S)) == PROGRAMS


@pytest.mark.parametrize("row", REUSING)
@each_policy([name for name in OTHERS if name != STARVED])
def test_every_honest_program_ends(policy: str, row: str) -> None:
    times_s = honest_times_s(ROWS[row][0], policy, OPTIONS.get(policy), limit_s=BOUND_S)
    assert len(times_s) == PROGRAMS, f"{len(times_s)} of {PROGRAMS} over in {BOUND_S:.0f} s"


@pytest.mark.parametrize("row", ["own-old-id-continued", "half-prompt"])
@each_policy([*NEAR_FRESH, *OTHERS])
def test_nobody_is_overtaken_for_longer_than_the_guard_says(policy: str, row: str) -> None:
    """Each of the two turns waits at most 5 s behind requests that came later, then for those that came before."""
    guards = Guards(max_overtake_s=5.0)
    times_s = honest_times_s(ROWS[row][0], policy, OPTIONS.get(policy), limit_s=BOUND_S, guards=guards)
    assert len(times_s) == PROGRAMS
    assert max(times_s) <= 2 * (5.0 + 10.0)  # stock vLLM, which serves in order of arrival, takes 9 s for both
