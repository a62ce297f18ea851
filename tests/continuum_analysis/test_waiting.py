"""Requests that wait when a run ends, or that waited when its warm-up ended, are in the numbers: by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from continuum_analysis.compare.summary import summarize
from continuum_analysis.compare.verdict import verdict
from continuum_analysis.compare.words import arm_table
from continuum_analysis.metrics import RunMetrics, measure
from continuum_analysis.records.facts import facts_of
from continuum_analysis.records.reading import add_arrivals, add_client_records, client_events, order_events
from continuum_analysis.report.page import write_report
from continuum_traces.json_io import write_json
from continuum_traces.records import rows_of, write_rows
from continuum_traces.records.run_dir import EVENTS, TURNS, write_manifest
from continuum_traces.schema import ArrivalRecord, Manifest, SchedulerEvent, TurnRecord, Workload
from recorded_runs import served

E = SchedulerEvent
STOPPED = "stopped: the run ended"
# Four sessions until 30 s. The client's clock reads 100 at the scheduler's 0.
RECORDS = [
    TurnRecord("quick", 0, 100.0, 100.0, 101.0, 103.0, 100, 5, is_last=True, alone_s=1.0),
    TurnRecord("never", 0, 105.0, 105.0, error=STOPPED, alone_s=2.0),
    TurnRecord("back", 0, 100.0, 100.0, 102.0, 104.0, 100, 5, gap_s=6.0, alone_s=2.0),
    TurnRecord("back", 1, 110.0, 110.0, error=STOPPED, alone_s=2.0),
    TurnRecord("talks", 0, 110.0, 110.0, 114.0, error=STOPPED, alone_s=3.0),
    TurnRecord("late", 0, 126.0, 126.0, 129.0, 130.0, 100, 5, is_last=True, alone_s=4.0),
]
SERVED = [
    *served("quick", 0, 0.0, 100, wait_s=0.5, run_s=2.5),
    E(5.0, "arrive", "never", 0, prompt_tokens=10),
    *served("back", 0, 0.0, 100, wait_s=1.0, run_s=3.0),
    E(10.0, "arrive", "back", 1, prompt_tokens=10),
    *served("talks", 0, 10.0, 100, wait_s=3.0)[:2],
    *served("late", 0, 26.0, 100, wait_s=2.0, run_s=2.0),
]


def measured(
    records: list[TurnRecord] = RECORDS, events: list[SchedulerEvent] | None = SERVED, workload: Workload | None = None
) -> RunMetrics:
    order = order_events(client_events(records) if events is None else sorted(events, key=lambda event: event.t))
    return measure(facts_of(add_client_records(order, records), Manifest(workload=workload or Workload())))


def values_of(run: RunMetrics, *names: str) -> list[object]:
    return [pytest.approx(value) if (value := run.values[name]) is not None else None for name in names]


def test_who_waits_counts_with_the_wait_so_far() -> None:
    run = measured()
    ttfts = (1.0, 25.0, 2.0, 20.0, 4.0, 3.0)  # never since 105, back since 110; talks decodes
    assert run.values["ttft_mean_s"] == pytest.approx((sum(ttfts)) / 6)
    assert run.values["turn_mean_s"] == pytest.approx((3.0 + 25.0 + 4.0 + 20.0 + 4.0) / 5)
    assert values_of(run, "turns_waiting", "longest_waiting_s", "turns_failed") == [2, 25.0, 0]
    assert run.values["bubble_per_turn_s"] == pytest.approx((0.5 + 25.0 + 1.0 + 20.0 + 3.0 + 2.0) / 6)
    assert run.values["admit_wait_mean_s"] == pytest.approx((0.5 + 25.0 + 1.0 + 3.0 + 2.0) / 5)
    # never: 25 s of 2 alone; back: 30 s of 2 + 6 + 2 alone; talks, which decodes, is no bound of anything
    assert run.values["slowdown_mean"] == pytest.approx((3.0 / 1.0 + 25.0 / 2.0 + 30.0 / 10.0 + 4.0 / 4.0) / 4)
    assert run.values["turn_slowdown_p95"] == pytest.approx(12.0, abs=0.6)
    assert run.values["ttft_worst_mean_s"] == pytest.approx((1.0 + 25.0 + 20.0 + 4.0 + 3.0) / 5)
    assert run.values["jct_mean_s"] == pytest.approx((3.0 + 4.0) / 2)  # completion times stay those of who finished


def test_the_clients_records_alone_count_them_too() -> None:
    run = measured(events=None)
    assert values_of(run, "ttft_mean_s", "turns_waiting") == values_of(measured(), "ttft_mean_s", "turns_waiting")
    assert values_of(run, "bubble_per_turn_s", "admit_wait_mean_s", "queued_share") == [None, None, None]


def test_a_turn_whose_first_token_the_client_did_not_record_waited_at_least_in_the_queue() -> None:
    """``talks`` was scheduled after 3 s; when its first token came is not known."""
    records = [replace(each, first_token_s=None) if each.program_id == "talks" else each for each in RECORDS]
    run = measured(records)
    assert run.values["turns_waiting"] == 3
    assert run.values["ttft_mean_s"] == pytest.approx((1.0 + 25.0 + 2.0 + 20.0 + 3.0 + 3.0) / 6)


def test_the_schedulers_records_alone_know_waits_and_no_first_tokens() -> None:
    run = measured([])
    assert values_of(run, "ttft_mean_s", "turns_waiting", "longest_waiting_s") == [None, 2, 25.0]


@pytest.mark.parametrize(
    ("due_s", "first_token_s", "counts"),
    [
        (9.0, 9.9, False),  # served before the warm-up ended
        (9.0, 10.0, True),
        (9.0, 500.0, True),
        (9.0, None, True),
        (10.0, 11.0, True),
        (29.9, 40.0, True),
        (30.0, 31.0, False),
        (29.9, None, True),
        (30.0, None, False),
    ],
)
def test_a_turn_that_was_due_in_the_warm_up_counts_if_it_still_waits(
    due_s: float, first_token_s: float | None, counts: bool
) -> None:
    """Seconds 10 to 30 count."""
    workload = Workload(arrivals="concurrency:2", time_limit_s=600.0, warm_up="10s", cool_down="570s")
    left = None if first_token_s else STOPPED
    finish_s = None if first_token_s is None else first_token_s + 0.5
    record = TurnRecord("p", 0, due_s, due_s, first_token_s, finish_s, 10, 5, is_last=True, error=left)
    other = TurnRecord("q", 0, 5.0, 5.0, 6.0, 600.0, 10, 5, is_last=True)
    run = measured([record, other], None, workload)
    assert run.values["ttft_mean_s"] == (
        (600.0 if first_token_s is None else first_token_s) - due_s if counts else None
    )
    assert run.values["turns_waiting"] == (first_token_s is None and counts)


def test_programs_of_a_warm_up_are_in_no_wait() -> None:
    programs = add_client_records(order_events(sorted(SERVED, key=lambda event: event.t)), RECORDS)
    arrivals = [ArrivalRecord(name, n, 0.0, counted=name != "never") for n, name in enumerate(("never", "back"))]
    values = measure(facts_of(add_arrivals(programs, arrivals))).values
    assert (values["turns_waiting"], values["longest_waiting_s"]) == (1, 20.0)


def test_groups_of_programs_wait_until_the_end_of_the_run() -> None:
    facts = measured().facts
    (alone,) = [program for program in facts.everyone if program.program_id == "never"]
    assert measure(facts_of([alone])).values["longest_waiting_s"] == 25.0


def test_tables_verdict_and_report_say_who_waits(tmp_path: Path) -> None:
    workload = Workload(name="w", sha256="a" * 64, arrivals="concurrency:4", thinking=True)
    for policy in ("vllm", "working-set"):
        path = tmp_path / f"{policy}-0"
        path.mkdir()
        write_manifest(path, Manifest(policy=policy, engine="virtual", modelled=("time",), workload=workload))
        records = RECORDS if policy == "working-set" else [each for each in RECORDS if each.error is None]
        events = [e for e in SERVED if policy == "working-set" or e.program_id in ("quick", "late")]
        write_rows(path / EVENTS, sorted(events, key=lambda event: event.t))
        write_rows(path / TURNS, records)
        write_json(path / "engine.json", rows_of(path))
    summary = summarize(tmp_path)
    table = arm_table({None: summary})
    columns = {heading: cells for heading, *cells in zip(table.headings, *table.rows, strict=True)}
    assert (columns["policy"], columns["waiting"], columns["longest, s"]) == (
        ["vllm", "working-set"],
        ["0", "2"],
        ["-", "25.0"],
    )
    waits = "Requests without a first token at the end, which count with their wait so far: "
    waits += "working-set 2 (the longest for 25 s)."
    said = "Requests still waited for a first token at the end; "
    turns = "a turn took 3.50 s under vllm and 11.20 s under working-set in the mean (one seed: no proof)."
    assert verdict(summary) == f"{said}{turns} {waits}"
    warning = "working-set, seed 0: 2 of 3 unfinished programs waited for a first token when the run ended, the longest"
    assert any(text.startswith(warning) for text in summary.warnings)
    html = write_report(tmp_path).read_text()
    assert waits in html
    assert warning in html
