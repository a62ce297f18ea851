"""The gauge ``programs_fitting`` beside numbers that are computed by hand."""

from __future__ import annotations

import pytest
from continuum_server.policy.fitting import LONGEST_S, Fitting
from continuum_server.policy.holds import Holds
from policy_driver import POOL, Driver

EVEN_S = Holds(POOL).break_even_s(100)
"""The break-even time of 100 tokens in a pool of 1,000: a longer hold costs more than computing them again."""


def test_as_many_programs_fit_as_fill_the_pool_while_they_need_it() -> None:
    fitting = Fitting(POOL)
    assert fitting.programs is None
    fitting.ran(100, 2.0)
    fitting.ran(300, 4.0)
    assert fitting.programs == 5.0  # of 200 tokens each
    fitting.returned(100, EVEN_S / 2)
    assert fitting.programs == pytest.approx(5.0)  # the KV is needed until then
    fitting.returned(100, EVEN_S * 1.5)
    served_s, gap_s, needed_s = 3.0, EVEN_S, EVEN_S * 0.75
    assert fitting.programs == pytest.approx(5.0 * (served_s + gap_s) / (served_s + needed_s))


def test_who_comes_back_after_hours_counts_as_somebody_who_comes_after_minutes() -> None:
    minutes, hours = Fitting(POOL), Fitting(POOL)
    for fitting, gap_s in ((minutes, LONGEST_S), (hours, 60 * LONGEST_S)):
        fitting.ran(100, 1.0)
        fitting.returned(100, gap_s)
    assert hours.programs == minutes.programs


def test_what_the_table_counts() -> None:
    """What a program shares with earlier ones takes no memory, a one-off is no program, and a retry ends no tool."""
    driver, even_s = Driver("vllm", POOL), Holds(POOL).break_even_s(364)

    def play(name: str, prompt: int, hits: int = 0, **facts: bool) -> None:
        turn = driver.start(driver.arrive(name, prompt, **facts), hits * 16)
        driver.now_s += 2.0
        driver.finish(turn, context=prompt)

    play("a", 100)
    play("b", 364, hits=4)  # 300 of its own
    play("one-off", 1, tagged=False)
    assert driver.table.fitting.programs == pytest.approx(5.0)
    driver.now_s += 3 * even_s - 2.0
    play("b", 764)  # 700 of its own
    mean_tokens = (100 + 300 + 700) / 3
    assert driver.table.fitting.programs == pytest.approx(1000 / mean_tokens * (2.0 + 3 * even_s) / (2.0 + even_s))
