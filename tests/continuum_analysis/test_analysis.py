"""Metrics against arithmetic one can follow, comparisons, and the report."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from continuum_analysis.compare.runs import load_runs
from continuum_analysis.compare.summary import summarize, write_summary
from continuum_analysis.compare.verdict import verdict
from continuum_analysis.metrics import METRICS, analyze_run, group_of, measure
from continuum_analysis.records.demand import demand
from continuum_analysis.records.facts import facts_of
from continuum_analysis.records.generator import lateness_warning
from continuum_analysis.records.reading import add_client_records, client_events, order_events
from continuum_analysis.records.timeline import ProgramTimes
from continuum_analysis.report.page import write_report
from continuum_traces.json_io import RunDirError, write_json
from continuum_traces.records import write_rows
from continuum_traces.records.run_dir import EVENTS, TURNS, read_manifest, write_manifest
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord
from recorded_runs import flags_in, served, write_recorded

# Program a: two turns, one second in the queue, a pin that is hit; program b: one turn, preempted once.
EVENTS_BY_HAND = [
    *served("a", 0, 0.0, 100, output_tokens=20, tool="ls"),
    SchedulerEvent(3.0, "pin", "a", 0, ttl_s=2.0, tokens=112),
    *served("a", 1, 4.5, 200, 112, 0.0, 1.5, output_tokens=30),
    SchedulerEvent(4.5, "unpin", "a", 0, reason="hit", tokens=112),
    *served("b", 0, 4.0, 50, 0, 0.0, 4.0, status="length", output_tokens=10),
    SchedulerEvent(5.0, "preempt", "b", 0),
    SchedulerEvent(5.5, "resume", "b", 0, prompt_tokens=50, hit_tokens=48),
    SchedulerEvent(6.0, "arrive", "c", 0, prompt_tokens=7),  # in the queue until the last event, at 8.0
]
# The client's clock reads 100 at the scheduler's 0: no metric may mix the two.
TURNS_BY_HAND = [
    TurnRecord("a", 0, 100.0, 100.0, 101.5, 103.0, output_tokens=20, gap_s=1.5),
    TurnRecord("a", 1, 104.5, 104.5, None, 106.0, is_last=True),
    TurnRecord("b", 0, 104.0, 104.2, 104.25, 108.0, output_tokens=10, is_last=True, failed_tries=("http-429",)),
]  # the last one was sent late
UNKNOWN = """
jct_p90_s jct_p95_s jct_p99_s backlog_growth itl_p50_s itl_p90_s itl_p95_s itl_p99_s slowdown_mean slowdown_p95
turn_slowdown_p50 turn_slowdown_p95
throughput_output_tokens_per_s_per_gpu jobs_per_h_per_gpu prefix_hit_ratio_in_theory
returns_elsewhere_share replica_busiest
tool_time_slowest_tenth_share
"""
"""No percentile above those that finished, no gaps between tokens, no reference, no manifest, one replica, no reload,
one gap has no slowest
tenth, and two programs show no growth."""
FASTER, SLOWER = (3.0 - 1.5) / 19, (8.0 - 4.25) / 9
"""TPOT, in seconds, of the first turn of program a and of program b."""
EXPECTED = {
    "jct_mean_s": (6.0 + 4.0) / 2,
    "jct_p50_s": 6.0,  # 4, 6 and one that never finished
    "jct_min_s": 4.0,
    "jct_max_s": 6.0,
    "turn_mean_s": (3.0 + 1.5 + 4.0 + 2.0) / 4,
    "turn_p50_s": 2.5,  # turns of 1.5, 3 and 4 s, and the 2 s of c
    **{f"turn_p{q}_s": 3.0 + (3 * q / 100 - 2) * 1.0 for q in (90, 95, 99)},
    "programs": 3,
    "programs_finished": 2,
    "programs_finished_share": 2 / 3,
    "programs_failed": 0,
    "turns_failed": 0,
    "wall_s": 8.0,  # the client's: it recorded nothing of c
    "throughput_jobs_per_s": 2 / 8,
    "throughput_steps_per_min": 60 * 3 / 8,
    "throughput_output_tokens_per_s": 60 / 8,
    "throughput_input_tokens_per_s": (100 + 200 + 50) / 8,
    "throughput_requests_per_s": 3 / 8,
    "jobs_per_h_per_agent": 3600 * 2 / (6.0 + 4.0 + 2.0),
    "effective_concurrency": (3.0 + 1.5 + 4.0) / 8,
    "turns_waiting": 1,
    "longest_waiting_s": 2.0,
    "queued_share": (1.0 + 0.5 + 2.0) / (6.0 + 4.0 + 2.0),
    "bubble_mean_s": (1.0 + 0.5 + 2.0) / 3,
    "bubble_per_turn_s": (1.0 + 2.0) / 4,
    "queue_wait_p95_s": 1.85,  # waits 0, 0, 1, 2: 95% lies 85 hundredths of the way from the third to the fourth
    **{f"admit_wait_p{q}_s": q / 100 * 2.0 for q in (50, 90, 95, 99)},  # waits of first turns: 1, 0, 2
    "admit_wait_mean_s": (1.0 + 0.0 + 2.0) / 3,
    "requeue_mean_s": 0.5 / 3,
    "prefix_hit_ratio": 112 / 350,
    **{"program_hit_ratio_mean": 56 / 300, "program_hit_ratio_p25": 28 / 300, "program_hit_ratio_p50": 56 / 300},
    "prefill_repeated_tokens": 0,
    "pin_hit_ratio": 1.0,
    "pin_duration_mean_s": 1.5,
    "preemptions": 1,
    "reloads": 0,
    "ttft_mean_s": (1.5 + 0.25 + 2.0) / 3,
    **{f"ttft_p{q}_s": 1.5 + (2 * q / 100 - 1) * 0.5 for q in (50, 90, 95, 99)},  # of 0.25, 1.5 and 2
    **{"newcomer_ttft_p50_s": 1.5, "newcomer_ttft_p95_s": 1.95},  # of 0.25, 1.5 and 2
    "ttft_worst_mean_s": (0.25 + 2.0) / 2,  # b's and c's; of a's second turn no first token is known
    "ttft_worst_p95_s": 0.25 + 0.95 * 1.75,
    "output_tokens_s_mean": (1 / FASTER + 1 / SLOWER) / 2,
    **{f"output_tokens_s_p{q}": 1 / SLOWER + q / 100 * (1 / FASTER - 1 / SLOWER) for q in (25, 50)},
    "interactivity_tokens_per_s": (19 + 9) / ((3.0 - 1.5) + (8.0 - 4.25)),
    "jain_index": (50 / 4.5 + 10 / 4) ** 2 / (3 * ((50 / 4.5) ** 2 + (10 / 4) ** 2)),  # c has got nothing in its 2 s
    "tpot_mean_s": (FASTER + SLOWER) / 2,
    **{f"tpot_p{q}_s": FASTER + q / 100 * (SLOWER - FASTER) for q in (50, 90, 95, 99)},
    **dict.fromkeys(UNKNOWN.split()),
    "itl_mean_s": ((3.0 - 1.5) + (8.0 - 4.25)) / (19 + 9),
    "send_lateness_p99_s": 0.98 * 0.2,  # of 0, 0, 0.2
    "scheduler_time_per_call_s": 0.25 / 1000,
}


def test_every_metric_by_hand(tmp_path: Path) -> None:
    write_rows(tmp_path / EVENTS, EVENTS_BY_HAND)
    write_rows(tmp_path / TURNS, TURNS_BY_HAND)
    write_json(tmp_path / "scheduler_time.json", {"calls": 1000, "total_s": 0.25, "longest_s": 0.004})
    run = analyze_run(tmp_path)
    for name, value in EXPECTED.items():
        assert run.values[name] == pytest.approx(value), name
    assert set(EXPECTED) == set(run.values) == {metric.name for metric in METRICS}
    assert run.pins_by_ending == {"hit": 1}
    assert run.facts.unfinished == ("c",)
    assert run.errors_by_kind == {"http-429": 1}
    late = lateness_warning(run.facts)
    assert late is not None
    assert "sent 196 ms late at the 99th percentile, 22.4% of the mean TTFT" in late


def test_scheduler_time_is_read_where_it_was_measured(tmp_path: Path) -> None:
    write_rows(tmp_path / EVENTS, EVENTS_BY_HAND)
    assert analyze_run(tmp_path).values["scheduler_time_per_call_s"] is None
    write_json(tmp_path / "scheduler_time.json", {"calls": 1000, "total_s": "long"})
    with pytest.raises(RunDirError, match=r"scheduler_time\.json: total_s: 'long' is not a number"):
        analyze_run(tmp_path)


def test_lateness_is_a_load_generator_s_and_none_runs_in_virtual_time(tmp_path: Path) -> None:
    for engine, late in (("http://localhost:8000/v1", True), ("virtual", False)):
        folder = tmp_path / str(late)
        folder.mkdir()
        write_manifest(folder, Manifest(policy="vllm", engine=engine))
        write_rows(folder / TURNS, TURNS_BY_HAND)
        write_json(folder / "engine.json", {})
        assert any("ms late" in text for text in summarize(folder).warnings) == late
        assert (analyze_run(folder).values["send_lateness_p99_s"] is not None) == late


def test_ratio_and_interval_over_seeds(tmp_path: Path) -> None:
    for seed, stretch in enumerate((0.5, 0.25, 0.4)):
        write_recorded(tmp_path / f"vllm-seed{seed}", "vllm", seed, [6.0, 4.0])
        write_recorded(tmp_path / f"continuum-seed{seed}", "continuum", seed, [6.0 * stretch, 4.0 * stretch])
    summary = write_summary(tmp_path, load_runs(tmp_path))
    written = summary.to_json()
    row = written["policies"]["continuum"]
    # Mean JCT 5 s; stretched 2.5, 1.25 and 2 s. vllm does not vary, so the logarithm's deviation is s / mean / sqrt(n).
    mean = (2.5 + 1.25 + 2.0) / 3
    assert row["jct_mean_ratio"] == pytest.approx(mean / 5) == pytest.approx(row["jct_mean_s"] / 5)
    half = 4.302653 * 0.629153 / 3**0.5  # t(0.975, 2) * s / sqrt(n)
    factor = math.exp(half / mean)
    assert row["jct_mean_ratio_interval"] == pytest.approx([mean / 5 / factor, mean / 5 * factor], rel=1e-4)
    assert row["difference_to_vllm_s"] == pytest.approx(5 - mean)
    assert row["difference_to_vllm_interval_s"] == pytest.approx([5 - mean - half, 5 - mean + half], rel=1e-4)
    assert row["intervals"]["jct_mean_s"] == pytest.approx([mean - half, mean + half], rel=1e-4)
    assert written["policies"]["vllm"]["jct_mean_ratio"] == 1.0
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(json.dumps(written))
    with (tmp_path / "summary.csv").open() as lines:
        rows = {line["policy"]: line for line in csv.DictReader(lines)}
    bounds = [float(rows["continuum"][f"jct_mean_ratio{name}"]) for name in ("", "_interval_low", "_interval_high")]
    assert bounds == pytest.approx([row["jct_mean_ratio"], *row["jct_mean_ratio_interval"]])
    assert verdict(summary).startswith("continuum took 0.38 of vllm's time. 95% interval over 3 seeds: 0.17 to 0.87.")


def test_a_policy_against_itself_is_no_difference(tmp_path: Path) -> None:
    for seed, stretch in enumerate((0.9, 1.1, 1.0)):
        write_recorded(tmp_path / f"vllm-seed{seed}", "vllm", seed, [5.0])
        write_recorded(tmp_path / f"continuum-seed{seed}", "continuum", seed, [5.0 * stretch])
    assert "continuum ties with vllm" in verdict(summarize(tmp_path))


@pytest.mark.parametrize(
    ("tokens", "group"),
    [
        *((999, "below 1K"), (1_000, "1K to 8K"), (7_999, "1K to 8K"), (8_000, "8K to 64K")),
        *((63_999, "8K to 64K"), (64_000, "64K and more")),
    ],
)
def test_groups_of_first_prompts_and_of_keys(tokens: int, group: str) -> None:
    key = "0123456789abcdef"
    (program,) = order_events([*served(f"{key}:p", 0, 0.0, tokens), *served(f"{key}:p", 1, 9.0, 64_000)])
    assert [group_of(program, by) for by in ("first-prompt", "key", "team")] == [group, key, "other"]
    assert group_of(ProgramTimes("p"), "key") == "other"


@pytest.mark.parametrize(("late_s", "warns"), [(0.0099, False), (0.0101, True)])
def test_a_load_generator_is_late_from_ten_milliseconds_on(late_s: float, warns: bool) -> None:
    """A failed try is one error, though the turn has the same: the last of its tries."""
    failed = {"finish_s": 3.0, "error": "http-500: no", "failed_tries": ("http-429", "http-500")}
    records = [TurnRecord(name, 0, 0.0, late_s, is_last=True, **failed) for name in "ab"]  # type: ignore[arg-type]
    run = measure(facts_of(add_client_records(order_events(client_events(records)), records)))
    assert (lateness_warning(run.facts) is not None) == warns
    assert run.errors_by_kind == {"http-429": 2, "http-500": 2}


def test_demand_by_hand() -> None:
    need = demand(order_events(e for e in EVENTS_BY_HAND if e.program_id == "a"))
    assert need.times_s == (0.0, 3.0, 4.5, 6.0)
    assert need.tokens == (100, 120, 200, 0)  # the last turn's 30 come and go with its finish
    assert need.mean_tokens == pytest.approx((3 * 100 + 1.5 * 120 + 1.5 * 200) / 6)
    assert need.peak_tokens == 200
    assert need.share_of_time_above(110) == 0.5


def test_a_report_stands_alone(tmp_path: Path) -> None:
    for policy, ends_s in (("vllm", [6.0, 4.0]), ("continuum", [3.0, 2.0])):
        path = write_recorded(tmp_path / f"{policy}-seed0", policy, 0, ends_s, turns=2, pin_s=0.5)
        write_manifest(path, replace(read_manifest(path), modelled=("time",)))
    report = write_report(tmp_path)
    html = report.read_text()
    assert "continuum took 0.50 of vllm" in html
    pairs = html.partition('id="pairs"')[2].partition("</table>")[0]
    assert (pairs.count("<td>0.50</td>"), "JCT to vllm" in html) == (1, False)  # each ratio stands once
    assert flags_in(html) == []
    assert "<h1>w, programs at 1/s, m on 2 x g</h1>" in html
    assert not [tag for tag in ("<script src", "<link", "<img") if tag in html]
    figures = html.count('class="figure" role="img"')
    assert figures == html.count("As a table</summary>") + 1 == 12  # the first chart's numbers are in the summary table
    assert "prefers-color-scheme: dark" in html
    assert "one seed: no proof" in html
    assert all(metric.name in html for metric in METRICS)
    assert "Modelled, not measured" in html
    order = ["<h1>", 'class="verdict"', 'class="trust"', "Modelled, not measured", 'id="jct-by-policy"', 'id="pairs"']
    order += ['id="film"', 'id="why"', 'id="load-against-memory"', 'id="kv-occupancy"', 'id="misses"']
    order += ['id="waits-by-turn"', 'id="pin-endings"', 'id="ttl-against-tool-time"', 'id="programs"', 'id="numbers"']
    places = [html.index(each) for each in [*order, 'id="run"']]
    assert places == sorted(places)
    assert report.stat().st_size < 200_000
