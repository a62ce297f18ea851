"""Ratios and differences of policies on the same arrivals, and pairs that are refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from continuum_analysis.compare.intervals import Interval, mean_interval, ratio_interval
from continuum_analysis.compare.runs import load_runs
from continuum_analysis.compare.summary import summarize, summarize_runs
from continuum_analysis.compare.verdict import Outcome, Standing, claim, outcome, verdict
from continuum_analysis.compare.words import arm_table
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.report.page import write_report
from continuum_traces.json_io import write_json
from continuum_traces.records import write_rows
from continuum_traces.records.run_dir import EVENTS, TURNS, read_manifest, write_manifest
from continuum_traces.schema import Engine, Hardware, TurnRecord, Workload
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import write_recorded


def play(folder: Path, seeds: int = 1, **jcts_s: list[float | None]) -> Path:
    """A run of each policy and seed. Programs arrive a second apart and take so long, a tenth longer in each further
    seed; None: the last program never ends."""
    for policy, ends_s in jcts_s.items():
        name, unfinished = policy.replace("_", "-"), ends_s.count(None)
        for seed in range(seeds):
            longer = [(1 + seed / 10) * (end_s or 1.0) for end_s in ends_s]
            write_recorded(folder / f"{name}-seed{seed}", name, seed, longer, gap_s=1.0, unfinished=unfinished)
    return folder


seconds = st.floats(1.0, 100.0)
pairs = st.lists(st.tuples(seconds, seconds), min_size=3, max_size=6)


@given(pairs)
def test_a_ratio_s_interval_is_positive_and_the_same_the_other_way(times: list[tuple[float, float]]) -> None:
    over, under = zip(*times, strict=True)
    ratio, other_way = ratio_interval(over, under), ratio_interval(under, over)
    assert ratio.mean == pytest.approx(np.mean(over) / np.mean(under))
    assert ratio.bounds is not None
    low, high = ratio.bounds
    assert 0 < low <= ratio.mean * (1 + 1e-9)
    assert ratio.mean * (1 - 1e-9) <= high < math.inf
    assert other_way.bounds == pytest.approx((1 / high, 1 / low), rel=1e-6)


def test_a_share_s_interval_stays_between_0_and_1() -> None:
    low, high = mean_interval([0.98, 0.5, 0.86]).bounds or (0.0, 0.0)
    assert low < 0.2
    assert high > 1
    assert mean_interval([0.98, 0.5, 0.86]).within(0.0, 1.0).bounds == (low, 1.0)
    assert mean_interval([0.5]).within(0.0, 1.0) == Interval(0.5)


def test_a_figure_shows_the_interval_or_the_two_seeds() -> None:
    assert mean_interval([1.0, 3.0]).spread == ratio_interval([2.0, 6.0], [2.0, 2.0]).spread == (1.0, 3.0)
    assert mean_interval([1.0, 3.0]).text("{:.0f}".format) == "2 (seeds 1, 3)"
    assert mean_interval([1.0, 2.0, 3.0]).spread == mean_interval([1.0, 2.0, 3.0]).bounds
    assert Interval(2.0).spread == (2.0, 2.0)


VERDICTS = [json.loads(line) for line in Path(__file__).with_name("verdicts.jsonl").read_text().splitlines()]
"""Completion times of each policy's programs, and what is said of them."""


@pytest.mark.parametrize("case", VERDICTS)
def test_what_a_verdict_says(tmp_path: Path, case: dict[str, Any]) -> None:
    assert verdict(summarize(play(tmp_path, case["seeds"], **case["jcts_s"]))) == case["said"]


AHEAD = {"working-set": Interval(0.54, 0.5, 0.58), "continuum": Interval(0.61, 0.55, 0.66)}
NEAR = {"working-set": Interval(0.97, 0.9, 1.05), "continuum": Interval(1.02, 0.95, 1.1)}
CLAIMS = [
    ({"working-set": Interval(0.54, 0.5, 0.58)}, "", "working-set took 0.54 of vllm's time"),
    (AHEAD, "", "working-set took 0.54 of vllm's time, the least of 3 policies"),
    (AHEAD, "continuum", "working-set took 0.54, continuum 0.61 of vllm's time, a tie"),
    (
        AHEAD | {"static-ttl": Interval(0.7, 0.6, 0.8)},
        "continuum",
        "working-set took 0.54, continuum 0.61 of vllm's time, a tie, the least of 4 policies",
    ),
    (
        AHEAD | {"static-ttl": Interval(0.8, 0.5, 1.2)},
        "static-ttl",
        "working-set took 0.54 of vllm's time; static-ttl ties with working-set",
    ),
    (
        {"static-ttl": Interval(0.5, 0.2, 1.3), "continuum": Interval(0.8, 0.75, 0.85)},
        "static-ttl",
        "continuum took 0.80 of vllm's time; static-ttl ties with continuum",
    ),
    (NEAR, "", "working-set and continuum tie with vllm (no difference shown): 0.97 and 1.02 of its time"),
    (
        NEAR | {"static-ttl": Interval(1.3, 1.2, 1.4)},
        "",
        "working-set and continuum tie with vllm (no difference shown): 0.97 and 1.02 of its time",
    ),
    (
        {"static-ttl": Interval(1.3, 1.2, 1.4), "continuum": Interval(1.5, 1.4, 1.6)},
        "",
        "static-ttl took 1.30, continuum 1.50 of vllm's time",
    ),
    (
        {"continuum": Interval(1.0, 0.995, 1.005)},
        "",
        "continuum ties with vllm (no difference shown): 1.00 of its time",
    ),
]
"""Ratios to vllm, the policies that tie with the first that is faster than vllm, and what is said."""


@pytest.mark.parametrize(("ratios", "level", "said"), CLAIMS)
def test_a_sentence_claims_what_the_intervals_show(ratios: dict[str, Interval], level: str, said: str) -> None:
    def beside(one: str, other: str) -> Outcome:
        return "tie" if other in level.split() else "faster"

    standings = [Standing(name, ratio, outcome(ratio)) for name, ratio in ratios.items()]
    assert claim(standings, "vllm", 5, beside)[0] == said


def test_every_two_policies_are_compared_on_the_same_arrivals(tmp_path: Path) -> None:
    """In one seed ``continuum`` is the faster one, in the other two ``static-ttl``."""
    for seed, times in enumerate(((4.0, 5.0), (4.0, 5.5), (6.0, 4.5))):
        for policy, jct_s in zip(("static-ttl", "continuum"), times, strict=True):
            write_recorded(tmp_path / f"{policy}-seed{seed}", policy, seed, [jct_s])
        write_recorded(tmp_path / f"vllm-seed{seed}", "vllm", seed, [10.0])
    summary = summarize(tmp_path)
    (pair,) = summary.pairs
    assert pair == ("static-ttl", "continuum")
    assert summary.pairs[pair].jct_ratio == ratio_interval([4.0, 4.0, 6.0], [5.0, 5.5, 4.5])
    assert verdict(summary).startswith(
        "static-ttl took 0.47, continuum 0.50 of vllm's time, a tie. 95% intervals over 3 seeds: "
    )


@pytest.mark.parametrize(
    ("ratio", "result"),
    [
        (Interval(1.0, 0.991, 1.009), "tie"),
        (Interval(0.995, 0.991, 0.999), "faster"),
        (Interval(0.98, 0.96, 1.0), "tie"),
        (Interval(0.98, 0.96, 0.9999), "faster"),
        (Interval(1.02, 1.0, 1.04), "tie"),
        (Interval(1.02, 1.0001, 1.04), "slower"),
        (Interval(0.9801), "tie"),
        (Interval(0.9799), "faster"),
        (Interval(1.0199), "tie"),
        (Interval(1.0201), "slower"),
    ],
)
def test_what_an_interval_shows(ratio: Interval, result: str) -> None:
    assert outcome(ratio) == result


def test_the_baseline_is_vllm_s_scheduler_or_the_one_asked_for(tmp_path: Path) -> None:
    runs = load_runs(play(tmp_path, continuum=[5.0, 10.0], stock=[10.0, 20.0], static_ttl=[4.0, 8.0]))
    assert summarize(tmp_path).baseline == "stock"
    against = summarize_runs(None, runs, "static-ttl").to_json()["policies"]
    assert against["stock"]["jct_mean_ratio"] == pytest.approx(2.5)
    assert summarize_runs(None, [run for run in runs if run.manifest.policy != "stock"]).baseline == "continuum"
    with pytest.raises(AnalysisError, match="--baseline vllm: no run of it; there are stock, continuum, static-ttl"):
        summarize_runs(None, runs, "vllm")


def test_unfinished_programs_leave_the_pair_together(tmp_path: Path) -> None:
    """The policy that never finished its slowest program gains nothing by it, and is never called the fastest."""
    summary = summarize(play(tmp_path, vllm=[10.0, 10.0, 100.0], continuum=[10.0, 10.0, None]))
    arm = summary.arms["continuum"]
    assert arm.comparison is not None
    assert (arm.comparison.jct_ratio.mean, arm.comparison.jct_means_s) == (1.0, (10.0, 10.0))  # not 10 / 40
    assert (arm.mean("jct_mean_s"), arm.jct_ratio, arm.unfinished, summary.ranked) == (10.0, None, ("p2",), ["vllm"])
    assert summary.warnings == (
        "continuum, seed 0: 1 of 3 programs did not finish; its times leave them out, the ratio uses programs that "
        "finished under both policies",
    )
    rows = {row[0]: row[1:] for row in arm_table({None: summary}).rows}
    assert (rows["continuum"][0], rows["continuum"][-1]) == ("67%", "-")


def test_every_policy_of_a_table_has_the_same_seeds(tmp_path: Path) -> None:
    play(tmp_path, 2, vllm=[10.0, 12.0])
    summary = summarize(play(tmp_path, continuum=[5.0, 6.0]))
    assert summary.warnings == ("seed 1 is left out: no finished run of continuum",)
    assert (summary.seeds, summary.arms["vllm"].seeds, summary.arms["vllm"].mean("jct_mean_s")) == ((0,), (0,), 11.0)
    write_recorded(tmp_path / "s", "static-ttl", 7, [1.0, 1.0], gap_s=1.0)
    assert summarize(tmp_path).warnings[0].startswith("the policies have no seed in common")


PAIRS = [
    ("continuum", [1.0], {"workload": Workload(sha256="b")}, r"different workloads \(sha256 a+ against b\); only"),
    ("continuum", [1.0], {"workload": Workload("w", sha256="a" * 64)}, r"workload\.jps differs: 1\.0 against None"),
    ("continuum", [1.0], {"hardware": Hardware(gpu="h100")}, r"hardware\.gpu differs: 'g' against 'h100'"),
    ("continuum", [1.0], {"engine_options": Engine(chunk_tokens=512)}, r"chunk_tokens differs: None against 512"),
    ("continuum", [1.0, 2.0], {}, "program 'p1' is in one of them only"),
    ("vllm", [1.0], {}, "are both policy vllm, seed 0"),
    ("vllm", [1.0], {"seed": 1, "policy_options": {"ttl_s": 5.0}}, r"policy_options\.ttl_s differs: None against 5\.0"),
]


@pytest.mark.parametrize(("policy", "ends_s", "theirs", "message"), PAIRS)
def test_pairs_that_are_refused(
    tmp_path: Path, policy: str, ends_s: list[float], theirs: dict[str, Any], message: str
) -> None:
    write_recorded(tmp_path / "a", "vllm", 0, [1.0])
    other = write_recorded(tmp_path / "b", policy, 0, ends_s)
    write_manifest(other, replace(read_manifest(other), **theirs))
    with pytest.raises(AnalysisError, match=message):
        summarize(tmp_path)


def test_other_instants_are_refused_and_other_clocks_are_not(tmp_path: Path) -> None:
    other = play(tmp_path, vllm=[1.0, 1.0], continuum=[1.0, 1.0]) / "continuum-seed0"

    def moved(second_s: float) -> Path:
        (other / TURNS).unlink()
        instants = enumerate((500.0, second_s))
        write_rows(other / TURNS, [TurnRecord(f"p{n}", 0, t, t, t, t + 1, is_last=True) for n, t in instants])
        return tmp_path

    assert summarize(moved(501.0)).arms["continuum"].jct_ratio == Interval(1.0)
    with pytest.raises(AnalysisError, match=r"program 'p1' arrives 1\.000 s after the first one in one and 3\.000 s"):
        summarize(moved(503.0))


def test_clocks_are_not_mixed(tmp_path: Path) -> None:
    play(tmp_path, vllm=[1.0], continuum=[1.0])
    for name, lost in (("vllm", TURNS), ("continuum", EVENTS)):
        (tmp_path / f"{name}-seed0" / lost).unlink()
        write_json(tmp_path / f"{name}-seed0" / "engine.json", {})
    with pytest.raises(AnalysisError, match=r"the times of one are the client's, of the other the scheduler's; only"):
        summarize(tmp_path)


def test_report_of_a_thousand_programs_and_of_hostile_names_stays_small_and_whole(tmp_path: Path) -> None:
    name, jcts = "<script>alert(1)</script>", [1.0 + n % 97 for n in range(1000)]
    path = write_recorded(tmp_path / "x", name, 0, jcts, gap_s=1.0, unfinished=1)
    write_manifest(path, replace(read_manifest(path), notes=(name,)))
    page = write_report(tmp_path)
    assert page.stat().st_size < 1_500_000
    html = page.read_text()
    assert name not in html
    assert all(said in html for said in ("no other policy was played", "Programs that did not finish", "p999"))
