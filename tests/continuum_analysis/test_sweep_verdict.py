"""The sentences over a sweep, from points whose ratios are given."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_analysis.compare.intervals import Comparison, Interval
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.sweep.tables import GroupSummary, Sweep
from continuum_analysis.sweep.verdict import sweep_trust, sweep_verdict


def arm(name: str, ratio: Interval | None) -> ArmSummary:
    found = None
    if ratio is not None:
        found = Comparison((0, 1, 2), ratio, Interval(1.0), None, None, None, Interval(0.5), 0.5, 1.0, (9, 9))
    return ArmSummary(name, None, (0, 1, 2), {}, found)


def sweep_of(*points: dict[str, Interval]) -> Sweep:
    groups = []
    for number, ratios in enumerate(points):
        arms = {"vllm": arm("vllm", None)} | {name: arm(name, ratio) for name, ratio in ratios.items()}
        summary = Summary((0, 1, 2), "vllm", arms, None, (), {})
        groups.append(GroupSummary(f"g{number}", {"jps": 0.1 * (number + 1)}, 6, summary, ()))
    return Sweep(Path("s"), "s", "virtual", {}, tuple(groups), ("vllm", *points[0]))


def test_the_best_on_average_is_named_and_how_sure_that_is() -> None:
    sweep = sweep_of(
        {"a": Interval(1.0, 0.999, 1.001), "b": Interval(1.1, 0.9, 1.3)},
        {"a": Interval(2.0, 1.5, 2.5), "b": Interval(1.1, 1.05, 1.2)},
        {"a": Interval(4.0, 3.0, 5.0), "b": Interval(0.5, 0.4, 0.6)},
    )
    first, then = sweep_verdict(sweep)
    assert first == ("a was the fastest on average: 2.00x vllm's speed over 3 points (geometric mean, 1.00x to 4.00x).")
    assert "faster at 2, slower at 0 and not told apart at 1 of them" in then
    assert "gained most at jps 0.3, least at jps 0.1" in then
    assert sweep_trust(sweep).startswith("3 seeds at each point; engine virtual: vLLM's scheduler is real")


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([{"a": Interval(0.8, 0.7, 0.9)}], "No policy was faster than vllm on average; the best, a, had 0.80x"),
        ([{"a": Interval(1.5)}], "No point has several seeds, so that nothing is proved"),
        ([{}], "No comparison: no point has two policies"),
        ([{"a": Interval(9.0), "b": Interval(2.0)}, {"b": Interval(2.0)}], "b was the fastest on average: 2.00x"),
    ],
)
def test_what_is_not_shown_is_not_claimed(points: list[dict[str, Interval]], said: str) -> None:
    assert said in " ".join(sweep_verdict(sweep_of(*points)))
