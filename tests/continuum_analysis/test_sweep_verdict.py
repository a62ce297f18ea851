"""The sentences over a sweep, from points whose ratios are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from continuum_analysis.compare.intervals import Comparison, Interval
from continuum_analysis.compare.summary import ArmSummary, Summary
from continuum_analysis.compare.verdict import Standing, _cost
from continuum_analysis.sweep.tables import GroupSummary, Sweep
from continuum_analysis.sweep.verdict import sweep_trust, sweep_verdict


def arm(name: str, ratio: Interval | None, ttft_p99_s: float = 1.0, overload: float = 0.0) -> ArmSummary:
    found = ratio and comparison(ratio)
    load = dict.fromkeys(("backlog_growth", "queued_share", "slowdown_mean"), Interval(overload))
    return ArmSummary(name, None, (0, 1, 2), {"ttft_p99_s": Interval(ttft_p99_s), **load}, found)


def comparison(ratio: Interval) -> Comparison:
    sizes = (None, Interval(0.5), 0.5, 1.0, (9, 9), (9, 9))
    of_seeds = replace(ratio, seeds=(ratio.mean,) * (3 if ratio.bounds else 1))
    return Comparison((0, 1, 2), of_seeds, (1.0, 1.0), Interval(1.0), *sizes)


def sweep_of(*points: dict[str, Interval], pairs: dict[tuple[str, str], Interval] | None = None) -> Sweep:
    """The baseline is ``vllm``; ``pairs`` holds at every point."""
    compared = {pair: comparison(ratio) for pair, ratio in (pairs or {}).items()}
    groups = []
    for number, ratios in enumerate(points):
        arms = {"vllm": arm("vllm", None)} | {name: arm(name, ratio) for name, ratio in ratios.items()}
        summary = Summary((0, 1, 2), "vllm", arms, compared, (), {})
        groups.append(GroupSummary(f"g{number}", {"jps": 0.1 * (number + 1)}, 6, summary, ()))
    return Sweep(Path("s"), "s", "virtual", {}, tuple(groups), ("vllm", *points[0]))


def test_the_best_on_average_is_named_and_how_sure_that_is() -> None:
    sweep = sweep_of(
        {"a": Interval(1.0, 0.999, 1.001), "b": Interval(0.9, 0.7, 1.1)},
        {"a": Interval(0.5, 0.4, 0.6), "b": Interval(0.9, 0.8, 0.95)},
        {"a": Interval(0.25, 0.2, 0.3), "b": Interval(2.0, 1.6, 2.4)},
        pairs={("a", "b"): Interval(0.5, 0.4, 0.6)},
    )
    first, then = sweep_verdict(sweep)
    assert first == "a took 0.50 of vllm's time on average over 3 points of the grid, the least of 3 policies."
    counts = "a was faster than vllm at 2, slower at 0, a tie at 1."
    assert then == f"By the 95% intervals of 3 points {counts} It gained most at jps 0.3, least at jps 0.1."
    assert sweep_trust(sweep).startswith("3 seeds at each point; engine virtual: vLLM's scheduler is real")


AHEAD = {"a": Interval(0.54, 0.5, 0.6), "b": Interval(0.61, 0.5, 0.7)}
APART, LEVEL = Interval(0.89, 0.8, 0.95), Interval(0.89, 0.7, 1.1)
SAID: list[tuple[list[dict[str, Interval]], str]] = [
    ([{"a": Interval(1.2, 1.1, 1.3)}], "a took 1.20 of vllm's time."),
    ([{"a": Interval(0.9, 0.7, 1.1)}], "a ties with vllm (no difference shown): 0.90 of its time"),
    ([{"a": Interval(1.02, 1.0, 1.04)}], "a ties with vllm (no difference shown): 1.02 of its time"),
    ([{"a": Interval(0.992, 0.991, 0.993)}], "a took 0.99 of vllm's time."),
    ([{"a": Interval(0.992, 0.7, 1.4)}], "a ties with vllm (no difference shown): 0.99 of its time"),
    (
        [{"a": Interval(1.005)}, {"a": Interval(1.0)}],
        "a took 1.00 of vllm's time on average over 2 points of the grid (one seed: no proof).",
    ),
    (
        [{"a": Interval(2.0)}, {"a": Interval(0.5)}],
        "a took 1.00 of vllm's time on average over 2 points of the grid (one seed: no proof).",
    ),
    ([{"a": Interval(0.98, 0.97, 0.99)}], "a took 0.98 of vllm's time."),
    (
        [{"a": Interval(1.2, 1.1, 1.3), "b": Interval(1.3, 1.2, 1.4)}],
        "a took 1.20, b 1.30 of vllm's time.",
    ),
    ([{"a": Interval(0.7)}], "a took 0.70 of vllm's time (one seed: no proof)."),
    ([{}], "No comparison: no point has two policies"),
    (
        [{"a": Interval(0.1), "b": Interval(0.5)}, {"b": Interval(0.5)}],
        "b took 0.50 of vllm's time on average over 2 points of the grid (one seed: no proof).",
    ),
]


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (APART, "a took 0.54 of vllm's time on average over 2 points of the grid, the least of 3 policies."),
        (
            LEVEL,
            "a took 0.54, b 0.61 of vllm's time on average over 2 points of the grid, a tie.",
        ),
    ],
)
def test_two_policies_are_told_apart_by_the_intervals_of_the_points(pair: Interval, said: str) -> None:
    assert sweep_verdict(sweep_of(AHEAD, AHEAD, pairs={("a", "b"): pair}))[0] == said


def test_who_is_faster_here_and_slower_there_ties() -> None:
    sweep = sweep_of(AHEAD, AHEAD, pairs={("a", "b"): APART})
    turned = {("b", "a"): comparison(APART)}
    summary = sweep.groups[1].summary
    assert summary is not None
    groups = (sweep.groups[0], replace(sweep.groups[1], summary=replace(summary, pairs=turned)))
    assert "a tie" in sweep_verdict(replace(sweep, groups=groups))[0]


def test_a_point_with_too_much_work_is_named() -> None:
    sweep = sweep_of({"a": Interval(0.5, 0.4, 0.6)}, {"a": Interval(0.5, 0.4, 0.6)})
    sweep.groups[1].policies["vllm"] = arm("vllm", None, overload=9.0)  # type: ignore[index]
    said = (
        "At 1 of 2 points more work arrived than vllm could finish; in runs of this length, a took 0.50 of vllm's time"
    )
    assert sweep_verdict(sweep)[0].startswith(said)
    sweep.groups[0].policies["a"] = arm("a", Interval(0.5, 0.4, 0.6), overload=9.0)  # type: ignore[index]
    assert sweep_verdict(sweep)[0].startswith("At 2 of 2 points more work arrived than some policies could finish; in")


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
    assert said.startswith("a took 0.90 of vllm's time on average over 2 points of the grid (one seed: no proof)")
    assert "b is not ranked: it finished fewer programs at 1 point." in then
    assert then.endswith("Under a TTFT P99 was higher than vllm's at 1 of 2 points.")


LATER = "of the programs finished later than under vllm, "


@pytest.mark.parametrize(
    ("later", "worst", "said"),
    [
        (0.0, 1.0, "no program finished later than under vllm."),
        (0.005, 2.0, f"fewer than 1% {LATER}the worst-hit after 2.00 times the time."),
        (0.0099, 1.009, "no program finished more than 1% later than under vllm."),
        (0.01, 1.01, f"1% {LATER}the worst-hit after 1.01 times the time."),
    ],
)
def test_who_pays_for_the_fastest(later: float, worst: float, said: str) -> None:
    summary = sweep_of({"a": Interval(0.5)}).groups[0].summary
    assert summary is not None
    named = Standing("a", Interval(0.5), "faster")
    paid = replace(summary.arms["a"], comparison=replace(comparison(named.ratio), later=later, worst=worst))
    costs = _cost(replace(summary, arms={**summary.arms, "a": paid}), [named])
    assert costs == f"Under a {said} TTFT P99: 1 s against vllm's 1 s."
