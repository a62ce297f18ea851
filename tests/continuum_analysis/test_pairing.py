"""Ratios and differences of policies on the same arrivals, and pairs that are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from continuum_analysis.compare.intervals import Interval, mean_interval, ratio_interval, resampled_ratio
from continuum_analysis.compare.runs import load_runs
from continuum_analysis.compare.summary import summarize, summarize_runs
from continuum_analysis.compare.words import columns, summary_rows, verdict
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.report.page import write_report
from continuum_traces.run_dir import EVENTS, TURNS, write_json, write_manifest, write_rows
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord
from hypothesis import given
from hypothesis import strategies as st


def write_one_turn_programs(path: Path, policy: str, seed: int, jcts_s: list[float], **manifest: object) -> Path:
    """Programs p0, p1 ... that arrive a second apart and take so long; None as a time: never finishes."""
    path.mkdir(parents=True)
    write_manifest(path, Manifest(policy=policy, seed=seed, engine="virtual", **manifest))  # type: ignore[arg-type]
    events, records = [], []
    for number, jct_s in enumerate(jcts_s):
        name, t = f"p{number}", float(number)
        events.append(SchedulerEvent(t, "arrive", name, 0, prompt_tokens=8))
        events.append(SchedulerEvent(t, "start", name, 0, prompt_tokens=8, hit_tokens=0))
        records.append(TurnRecord(name, 0, t, t, is_last=True))
        if jct_s is not None:
            events.append(SchedulerEvent(t + jct_s, "finish", name, 0, output_tokens=2, status="stop"))
    write_rows(path / EVENTS, events)
    write_rows(path / TURNS, records)
    write_json(path / "engine.json", {})
    return path


seconds = st.floats(1.0, 100.0)
pairs = st.lists(st.tuples(seconds, seconds), min_size=3, max_size=6)


@given(pairs)
def test_a_ratio_s_interval_is_positive_and_the_same_the_other_way(times: list[tuple[float, float]]) -> None:
    over, under = [a for a, _ in times], [b for _, b in times]
    ratio, other_way = ratio_interval(over, under), ratio_interval(under, over)
    assert ratio.mean == pytest.approx(np.mean(over) / np.mean(under))
    assert ratio.bounds is not None
    assert other_way.bounds is not None
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


def test_ratio_interval_covers_the_truth_as_often_as_it_says() -> None:
    """400 made-up experiments of five seeds with true ratio 2: about 95% of the intervals hold it."""
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(400):
        load = generator.normal(100, 15, 5)
        found = ratio_interval(2 * load + generator.normal(0, 10, 5), load + generator.normal(0, 10, 5))
        held += found.low is not None and found.high is not None and found.low <= 2 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_resampled_ratio_is_repeatable_and_holds_its_estimate() -> None:
    over, under = [10.0, 30.0, 20.0, 50.0], [5.0, 16.0, 8.0, 30.0]
    first = resampled_ratio(over, under)
    assert first == resampled_ratio(over, under)
    assert first.mean == 110 / 59
    assert first.low is not None
    assert first.high is not None
    assert 30 / 18 <= first.low < first.mean < first.high <= 20 / 8  # no draw leaves the programs' own ratios


def test_one_seed_speaks_of_its_own_arrivals_only(tmp_path: Path) -> None:
    write_one_turn_programs(tmp_path / "vllm-seed0", "vllm", 0, [10.0, 20.0, 40.0])
    write_one_turn_programs(tmp_path / "continuum-seed0", "continuum", 0, [6.0, 9.0, 20.0])
    summary = summarize(tmp_path)
    found = summary.arms["continuum"].comparison
    assert found is not None
    assert found.jct_ratio.mean == pytest.approx(35 / 70)
    assert found.jct_ratio.bounds is None
    assert found.jct_ratio_within is not None
    assert found.jct_ratio_within.bounds is not None
    low, high = found.jct_ratio_within.bounds
    assert low < 0.5 < high
    assert "within this one arrival sequence only. One seed proves nothing" in verdict(summary)


def test_a_better_policy_is_not_passed_over(tmp_path: Path) -> None:
    for seed, extra in enumerate((0.0, 1.0, 2.0)):
        for policy, factor in (("vllm", 1.0), ("continuum", 0.5), ("static-ttl", 0.4)):
            jcts = [factor * (t + extra) for t in (10.0, 20.0, 40.0)]
            write_one_turn_programs(tmp_path / f"{policy}-seed{seed}", policy, seed, jcts)
    said = verdict(summarize(tmp_path))
    assert said.startswith("static-ttl was the fastest: its programs took 0.40 times as long as under vllm")
    assert said.endswith(
        "Its programs took 0.80 times as long as under the next best, continuum (0.80 to 0.80). "
        "No program finished later than under vllm."
    )


def test_the_winner_s_cost_is_named(tmp_path: Path) -> None:
    """One program of three waits twice as long, in each of three seeds."""
    for seed, extra in enumerate((0.0, 1.0, 2.0)):
        write_one_turn_programs(tmp_path / f"v{seed}", "vllm", seed, [10.0, 20.0, 40.0 + extra])
        write_one_turn_programs(tmp_path / f"c{seed}", "continuum", seed, [20.0, 10.0, 20.0 + extra])
    said = verdict(summarize(tmp_path))
    assert said.endswith("33% of the programs finished later than under vllm, the worst-hit after 2.00 times the time.")
    assert summarize(tmp_path).to_json()["policies"]["continuum"]["worst_slowdown_to_vllm"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("jcts", "said"),
    [
        ([10.0, 20.0, 40.0005], "No program finished later than under vllm."),
        ([10.0, 20.0, 20.0], "No program finished later than under vllm."),
        (
            [10.0, 10.0, 44.0],
            "33% of the programs finished later than under vllm, the worst-hit after 1.10 times the time.",
        ),
        ([10.0, 10.0, 40.2], "33% of the programs finished later than under vllm, none by more than 1%."),
    ],
)
def test_a_program_that_finished_at_the_same_time_did_not_finish_later(
    jcts: list[float], said: str, tmp_path: Path
) -> None:
    write_one_turn_programs(tmp_path / "v", "vllm", 0, [10.0, 20.0, 40.0])
    write_one_turn_programs(tmp_path / "c", "continuum", 0, jcts)
    assert verdict(summarize(tmp_path)).endswith(f" {said}")


def test_the_baseline_is_vllm_s_scheduler_or_the_one_asked_for(tmp_path: Path) -> None:
    for policy, factor in (("continuum", 0.5), ("stock", 1.0), ("static-ttl", 0.4)):
        write_one_turn_programs(tmp_path / policy, policy, 0, [factor * 10.0, factor * 20.0])
    runs = load_runs(tmp_path)
    assert summarize(tmp_path).baseline == "stock"
    against = summarize_runs(None, runs, "static-ttl").to_json()["policies"]
    assert against["stock"]["jct_mean_ratio"] == pytest.approx(2.5)
    assert summarize_runs(None, [run for run in runs if run.manifest.policy != "stock"]).baseline == "continuum"
    with pytest.raises(AnalysisError, match="--baseline vllm: no run of it; there are stock, continuum, static-ttl"):
        summarize_runs(None, runs, "vllm")


def test_a_slower_policy_is_called_slower(tmp_path: Path) -> None:
    for seed, extra in enumerate((0.0, 1.0, 2.0)):
        write_one_turn_programs(tmp_path / f"v{seed}", "vllm", seed, [10.0 + extra, 30.0])
        write_one_turn_programs(tmp_path / f"c{seed}", "continuum", seed, [20.0 + 2 * extra, 60.0])
    assert verdict(summarize(tmp_path)).startswith(
        "continuum was slower than vllm: its programs took 2.00 times as long as under vllm (95% interval 2.00"
    )


def test_unfinished_programs_leave_the_pair_together(tmp_path: Path) -> None:
    """The policy that never finished its slowest program gains nothing by it."""
    write_one_turn_programs(tmp_path / "a", "vllm", 0, [10.0, 10.0, 100.0])
    write_one_turn_programs(tmp_path / "b", "continuum", 0, [10.0, 10.0, None])  # type: ignore[list-item]
    summary = summarize(tmp_path)
    arm = summary.arms["continuum"]
    assert arm.mean("jct_mean_s") == 10.0
    assert arm.jct_ratio is None
    assert arm.comparison is not None
    assert (arm.comparison.jct_ratio.mean, arm.comparison.jct_means_s) == (1.0, (10.0, 10.0))  # not 10 / 40
    assert arm.unfinished == ("p2",)
    assert summary.warnings == (
        "continuum, seed 0: 1 of 3 programs did not finish; its times leave them out, the ratio uses programs that "
        "finished under both policies",
    )
    assert verdict(summary).startswith("Programs that finished: vllm 3 of 3, continuum 2 of 3. Fewer finished under")


def test_a_resumed_run_says_so(tmp_path: Path) -> None:
    write_one_turn_programs(
        tmp_path / "a", "stock", 0, [10.0], notes=("another note", "resumed 2026-01-01: 3 of 9 ...")
    )
    assert summarize(tmp_path).warnings == ("stock, seed 0: resumed 2026-01-01: 3 of 9 ...",)


def test_who_finished_fewer_programs_is_not_the_fastest(tmp_path: Path) -> None:
    for seed, extra in enumerate((0.0, 1.0, 2.0)):
        write_one_turn_programs(tmp_path / f"v{seed}", "vllm", seed, [20.0 + extra, 30.0])
        write_one_turn_programs(tmp_path / f"s{seed}", "static-ttl", seed, [18.0 + extra, 27.0])
        write_one_turn_programs(tmp_path / f"c{seed}", "continuum", seed, [5.0 + extra, None])  # type: ignore[list-item]
    summary = summarize(tmp_path)
    assert summary.ranked == ["static-ttl", "vllm"]
    said = verdict(summary)
    assert said.startswith(
        "Programs that finished: vllm 6 of 6, continuum 3 of 6, static-ttl 6 of 6. Fewer finished under"
    )
    assert "under continuum: not ranked. static-ttl was the fastest: its programs took 0.90 times" in said
    assert "mean JCT 23 s against 26 s" in said
    rows = {row[0]: row[1:] for row in summary_rows(summary, columns([summary]))}
    assert (rows["continuum"][0], rows["continuum"][-1]) == ("50%", "-")


def test_every_policy_of_a_table_has_the_same_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_one_turn_programs(tmp_path / f"v{seed}", "vllm", seed, [10.0, 12.0 + 10 * seed])
    write_one_turn_programs(tmp_path / "c0", "continuum", 0, [5.0, 6.0])
    summary = summarize(tmp_path)
    assert summary.warnings == ("seed 1 is left out: no finished run of continuum",)
    assert (summary.seeds, summary.arms["vllm"].seeds, summary.arms["vllm"].mean("jct_mean_s")) == ((0,), (0,), 11.0)
    write_one_turn_programs(tmp_path / "s", "static-ttl", 7, [1.0, 1.0])
    assert summarize(tmp_path).warnings[0].startswith("the policies have no seed in common")


@pytest.mark.parametrize(
    ("field", "theirs", "message"),
    [
        ("workload", {"sha256": "b"}, r"they played different workloads \(sha256 a against b\); only runs of the same"),
        ("workload", {"sha256": "a", "jps": 1}, r"workload\.jps differs: None against 1"),
        ("hardware", {"gpu": "h100"}, r"hardware\.gpu differs: 'a100' against 'h100'"),
        ("engine_options", {"chunk_tokens": 512}, r"engine_options\.chunk_tokens differs: 2048 against 512"),
    ],
)
def test_refusals_name_the_field(tmp_path: Path, field: str, theirs: dict[str, object], message: str) -> None:
    same = {"workload": {"sha256": "a"}, "hardware": {"gpu": "a100"}, "engine_options": {"chunk_tokens": 2048}}
    write_one_turn_programs(tmp_path / "a", "vllm", 0, [1.0], **same)
    write_one_turn_programs(tmp_path / "b", "continuum", 0, [1.0], **{**same, field: theirs})
    with pytest.raises(AnalysisError, match=message):
        summarize(tmp_path)


def test_other_programs_are_refused(tmp_path: Path) -> None:
    write_one_turn_programs(tmp_path / "a", "vllm", 0, [1.0, 1.0])
    write_one_turn_programs(tmp_path / "b", "continuum", 0, [1.0])
    with pytest.raises(AnalysisError, match="program 'p1' is in one of them only"):
        summarize(tmp_path)


def test_other_instants_are_refused_and_other_clocks_are_not(tmp_path: Path) -> None:
    write_one_turn_programs(tmp_path / "a", "vllm", 0, [1.0, 1.0])
    other = write_one_turn_programs(tmp_path / "b", "continuum", 0, [1.0, 1.0])
    late = [TurnRecord("p0", 0, 500.0, 500.0, is_last=True), TurnRecord("p1", 0, 501.0, 501.0, is_last=True)]
    (other / TURNS).unlink()
    write_rows(other / TURNS, late)
    assert summarize(tmp_path).arms["continuum"].jct_ratio == Interval(1.0)
    (other / TURNS).unlink()
    write_rows(other / TURNS, [late[0], replace(late[1], due_s=503.0)])
    with pytest.raises(AnalysisError, match=r"program 'p1' arrives 1\.000 s after the first one in one and 3\.000 s"):
        summarize(tmp_path)


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        write_one_turn_programs(tmp_path / name, "vllm", 0, [1.0])
    with pytest.raises(AnalysisError, match="are both policy vllm, seed 0"):
        summarize(tmp_path)


def test_two_settings_of_a_policy_are_not_averaged(tmp_path: Path) -> None:
    for seed, ttl_s in enumerate((2.0, 5.0)):
        options = {"policy_options": {"ttl_s": ttl_s}}
        write_one_turn_programs(tmp_path / f"s{seed}", "static-ttl", seed, [1.0], **options)
    with pytest.raises(AnalysisError, match=r"policy_options\.ttl_s differs: 2\.0 against 5\.0"):
        summarize(tmp_path)


def test_report_of_a_thousand_programs_stays_small(tmp_path: Path) -> None:
    for policy in ("vllm", "continuum"):
        write_one_turn_programs(tmp_path / policy, policy, 0, [1.0 + n % 97 for n in range(1000)])
    assert write_report(tmp_path).stat().st_size < 1_500_000


def test_report_of_one_bare_run_and_of_hostile_names(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    write_one_turn_programs(tmp_path / "x", name, 0, [1.0, None], notes=(name,))  # type: ignore[list-item]
    html = write_report(tmp_path).read_text()
    assert name not in html
    assert "No comparison" in html
    assert "Programs that did not finish" in html
    assert "p1" in html
