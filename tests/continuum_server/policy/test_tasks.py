"""Sizes of tasks: what is forecast of a program, how that changes as it goes on, and what is kept."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import astuple

import pytest
from continuum_server.policy.tasks import ENOUGH, Forecast, Size, Tasks, merge_tasks, survivor_mean
from hypothesis import given
from hypothesis import strategies as st

SIZES = st.builds(Size, st.floats(1e-3, 1e5), st.integers(1, 1000).map(float), st.integers(16, 10**6).map(float))
NAMES = st.sampled_from("abcdefgh")
RUNS = st.lists(st.tuples(NAMES, SIZES), max_size=40)


def learned(runs: list[tuple[str, Size]], limit: int = 100) -> Tasks:
    tasks = Tasks(limit)
    for name, size in runs:
        tasks.add(name, size)
    return tasks


def alike(rng: random.Random, runs: int, spread: float, names: int = 60) -> list[tuple[str, Size]]:
    """Runs of tasks of 1 to 100 s; the runs of a task differ by ``spread`` in the logarithm."""
    found = []
    for number in range(names):
        typical = 10 ** rng.uniform(0.0, 2.0)
        found += [(f"t{number}", Size(typical * math.exp(rng.gauss(0.0, spread)), 10.0, 1000.0)) for _ in range(runs)]
    return found


def test_nothing_is_forecast_of_a_task_that_was_never_run() -> None:
    tasks = learned([("a", Size(5.0, 3, 500))] * 10)
    assert tasks.of("b") is None
    assert tasks.of(None) is None
    assert learned([("a", Size(5.0, 3, 500))] * (ENOUGH - 1)).of("a") is None


def test_a_task_whose_runs_are_alike_is_believed_and_others_are_not() -> None:
    rng = random.Random(1)
    same, mixed = learned(alike(rng, 4, 0.05)), learned(alike(rng, 4, 3.0))
    for name, believed in ((same, True), (mixed, False)):
        name.add("short", Size(1.0, 10, 1000))
        name.add("long", Size(100.0, 10, 1000))
        short, long = name.of("short"), name.of("long")
        assert short is not None
        assert long is not None
        assert (long.work_s() / short.work_s() > 30.0) is believed
        assert long.work_s() > short.work_s()


def test_more_runs_count_for_more() -> None:
    tasks = learned(alike(random.Random(2), 2, 0.8))
    forecasts = []
    for _ in range(5):
        tasks.add("short", Size(0.1, 10, 1000))
        forecast = tasks.of("short")
        assert forecast is not None
        forecasts.append(forecast.work_s())
    assert forecasts == sorted(forecasts, reverse=True)


@given(RUNS, SIZES)
def test_a_forecast_lies_between_the_task_and_everybody(runs: list[tuple[str, Size]], size: Size) -> None:
    tasks = learned([*runs, ("x", size)])
    forecast, everybody = tasks.of("x"), tasks.everybody()
    if forecast is None or everybody is None:
        return
    for index, own in enumerate(astuple(size)):
        low, high = sorted((everybody.log_mean[index], math.log(own)))
        assert low - 1e-6 <= forecast.log_mean[index] <= high + 1e-6
        assert forecast.log_std[index] <= everybody.log_std[index] + 1.0 or forecast.log_std[index] < 10.0


@given(st.floats(-5.0, 10.0), st.floats(0.0, 3.0), st.lists(st.floats(0.0, 1e7), min_size=2, max_size=20))
def test_who_outgrows_its_forecast_is_expected_to_go_on(log_mean: float, log_std: float, done: list[float]) -> None:
    expected = [survivor_mean(log_mean, log_std, value) for value in sorted(done)]
    assert all(math.isfinite(value) for value in expected)
    assert all(value >= done_s for value, done_s in zip(expected, sorted(done), strict=True))
    for before, after in itertools.pairwise(expected):
        assert after >= before * (1.0 - 1e-9)


def test_the_mean_of_survivors_is_that_of_drawn_values() -> None:
    rng = random.Random(3)
    values = [math.exp(rng.gauss(1.0, 0.7)) for _ in range(100_000)]
    for beyond in (0.0, 1.0, 3.0, 9.0):
        above = [value for value in values if value > beyond]
        assert survivor_mean(1.0, 0.7, beyond) == pytest.approx(sum(above) / len(above), rel=0.02)


@given(RUNS, st.integers(0, 5))
def test_memory_is_bounded_and_the_longest_unused_task_goes_first(runs: list[tuple[str, Size]], limit: int) -> None:
    tasks = learned(runs, limit)
    latest = list(dict.fromkeys(name for name, _ in reversed(runs)))
    known = {name for name in latest if tasks.of(name) is not None}
    assert len(tasks) == min(limit, len(latest))
    assert known == (set(latest[:limit]) if len(runs) >= ENOUGH else set())


@given(RUNS)
def test_kept_over_a_restart(runs: list[tuple[str, Size]]) -> None:
    tasks, again = learned(runs), Tasks(100)
    again.from_json(json.loads(json.dumps(tasks.to_json())))
    assert len(again) == len(tasks)
    for name, _ in runs:
        before, after = tasks.of(name), again.of(name)
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert after.log_mean == pytest.approx(before.log_mean, abs=1e-3)


def test_what_two_servers_learned_is_merged() -> None:
    a, b = learned([("x", Size(1.0, 1, 100))] * 5), learned([("x", Size(math.e**2, 1, 100)), ("y", Size())] * 5)
    merged = merge_tasks([a.to_json(), b.to_json()])
    (x, y) = merged["tasks"]
    assert x[:3] == ["x", 8, pytest.approx(1.0)]
    assert y[:2] == ["y", 5]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"everybody": [], "tasks": []},
        {"everybody": [[0, 0, 0, 0]] * 3, "tasks": [[1, 0, 0, 0, 0]]},
        {"everybody": [[0, 0, 0, 0]] * 3, "tasks": [["a", 1, 2, 3]]},
        {"everybody": [[0, 0, 0, 0]] * 3, "tasks": [["a", -1, 0, 0, 0]]},
        {"everybody": [[0, 0, 0, 0]] * 3, "tasks": [["a", 1, 0, 0, float("nan")]]},
        {"everybody": [[0, 0, 0, True]] * 3, "tasks": []},
    ],
)
def test_another_form_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="tasks"):
        Tasks(10).from_json(data)


def test_a_forecast_names_its_parts() -> None:
    forecast = Forecast((math.log(2.0), math.log(3.0), math.log(4.0)), (0.0, 0.0, 0.0))
    assert (forecast.work_s(), forecast.turns(), forecast.tokens(9.0)) == pytest.approx((2.0, 3.0, 9.0))
