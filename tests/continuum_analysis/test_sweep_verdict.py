"""The sentences over a sweep, from points whose ratios are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from continuum_analysis.compare.intervals import Comparison, Interval
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.compare.words import _cost
from continuum_analysis.sweep.tables import GroupSummary, Sweep
from continuum_analysis.sweep.verdict import sweep_trust, sweep_verdict


def arm(name: str, ratio: Interval | None, ttft_p99_s: float = 1.0) -> ArmSummary:
    sizes = (None, Interval(0.5), 0.5, 1.0, (9, 9), (9, 9))
    found = ratio and Comparison((0, 1, 2), ratio, (1.0, 1.0), Interval(1.0), *sizes)
    return ArmSummary(name, None, (0, 1, 2), {"ttft_p99_s": Interval(ttft_p99_s)}, found)


def sweep_of(*points: dict[str, Interval]) -> Sweep:
    groups = []
    for number, ratios in enumerate(points):
        arms = {"vllm": arm("vllm", None)} | {name: arm(name, ratio) for name, ratio in ratios.items()}
        summary = Summary((0, 1, 2), "vllm", arms, None, (), {})
        groups.append(GroupSummary(f"g{number}", {"jps": 0.1 * (number + 1)}, 6, summary, ()))
    return Sweep(Path("s"), "s", "virtual", {}, tuple(groups), ("vllm", *points[0]))


def test_the_best_on_average_is_named_and_how_sure_that_is() -> None:
    sweep = sweep_of(
        {"a": Interval(1.0, 0.999, 1.001), "b": Interval(0.9, 0.7, 1.1)},
        {"a": Interval(0.5, 0.4, 0.6), "b": Interval(0.9, 0.8, 0.95)},
        {"a": Interval(0.25, 0.2, 0.3), "b": Interval(2.0, 1.6, 2.4)},
    )
    first, then = sweep_verdict(sweep)
    facts = "mean JCT 0.50 times vllm's over 3 points (geometric mean, 0.25 to 1.00 by point)"
    assert first == f"a was the fastest of 3 on average: {facts}."
    assert "faster at 2, slower at 0 and not told apart at 1 of them" in then
    assert "gained most at jps 0.3, least at jps 0.1" in then
    assert sweep_trust(sweep).startswith("3 seeds at each point; engine virtual: vLLM's scheduler is real")


SAID: list[tuple[list[dict[str, Interval]], str]] = [
    ([{"a": Interval(1.2, 1.1, 1.3)}], "a was slower than vllm on average: mean JCT 1.20"),
    ([{"a": Interval(1.02, 1.0, 1.04)}], "a and vllm cannot be told apart on average: mean JCT 1.02"),
    ([{"a": Interval(0.992, 0.991, 0.993)}], "a and vllm are equal to within 1% on average: mean JCT 0.99"),
    ([{"a": Interval(0.992, 0.7, 1.4)}], "a and vllm cannot be told apart on average: mean JCT 0.99"),
    ([{"a": Interval(1.005)}, {"a": Interval(1.0)}], "a and vllm are equal to within 1% on average: mean JCT 1.00"),
    ([{"a": Interval(2.0)}, {"a": Interval(0.5)}], "a and vllm cannot be told apart on average: mean JCT 1.00"),
    ([{"a": Interval(0.98, 0.97, 0.99)}], "a was faster than vllm on average: mean JCT 0.98"),
    ([{"a": Interval(0.9, 0.7, 1.1)}], "a and vllm cannot be told apart on average: mean"),
    (
        [{"a": Interval(1.2, 1.1, 1.3), "b": Interval(1.3, 1.2, 1.4)}],
        "No policy was faster than vllm on average; the best of 3 was a: mean JCT 1.20",
    ),
    ([{"a": Interval(0.7)}], "No point has enough seeds for an interval, so that nothing is proved"),
    ([{}], "No comparison: no point has two policies"),
    (
        [{"a": Interval(0.1), "b": Interval(0.5)}, {"b": Interval(0.5)}],
        "b was the fastest of 3 on average: mean JCT 0.50",
    ),
]


@pytest.mark.parametrize(("points", "said"), SAID)
def test_what_is_not_shown_is_not_claimed(points: list[dict[str, Interval]], said: str) -> None:
    assert said in " ".join(sweep_verdict(sweep_of(*points)))


def test_a_policy_that_finished_fewer_programs_somewhere_is_not_ranked() -> None:
    sweep = sweep_of({"a": Interval(0.9), "b": Interval(0.5)}, {"a": Interval(0.9), "b": Interval(0.5)})
    arms = sweep.groups[1].policies
    arms["a"] = arm("a", Interval(0.9), 2.0)  # type: ignore[index]
    failing = arms["b"].comparison
    assert failing is not None
    arms["b"] = replace(arms["b"], comparison=replace(failing, finished=(4, 9)))  # type: ignore[index]
    said, then = sweep_verdict(sweep)
    assert then.endswith("Its TTFT P99 was higher than vllm's at 1 of 2 points.")
    assert said.startswith("b is not ranked: it finished fewer programs at 1 point. a was the fastest of 3 on average")


LATER = "of the programs finished later than under vllm, "


@pytest.mark.parametrize(
    ("later", "worst", "said"),
    [
        (0.0, 1.0, "No program finished later than under vllm."),
        (0.005, 2.0, f"Fewer than 1% {LATER}the worst-hit after 2.00 times the time."),
        (0.0099, 1.009, f"Fewer than 1% {LATER}none by more than 1%."),
        (0.01, 1.01, f"1% {LATER}the worst-hit after 1.01 times the time."),
    ],
)
def test_who_pays_for_the_fastest(later: float, worst: float, said: str) -> None:
    summary = sweep_of({"a": Interval(0.5)}).groups[0].summary
    assert summary is not None
    comparison = summary.arms["a"].comparison
    assert comparison is not None
    assert _cost(summary, replace(comparison, later=later, worst=worst)) == said
