"""The worst TTFT of a program, its slowdown and its wait to be admitted, and where they are unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from continuum_analysis.compare.runs import load_runs, read_run_metrics
from continuum_analysis.metrics import analyze_run, completion_times
from continuum_analysis.report.figures_latency import distributions
from continuum_analysis.tables import programs_table
from continuum_traces.json_io import write_json
from continuum_traces.records import rows_of, write_rows
from continuum_traces.records.run_dir import EVENTS, TURNS
from continuum_traces.schema import SchedulerEvent, TurnRecord

from tests.continuum_bench.recorded_runs import write_recorded

RECORDS = [
    TurnRecord("p", 0, 0.0, 0.0, 1.0, 2.0, 100, 5, gap_s=4.0, alone_s=1.5),
    TurnRecord("p", 1, 6.0, 6.0, 9.0, 10.0, 200, 5, is_last=True, alone_s=2.5),
    TurnRecord("q", 0, 0.0, 0.0, 0.5, 2.0, 100, 5, is_last=True, alone_s=2.0),
]
"""By hand: p takes 10 s, 8 alone, and its worst TTFT is 3 s; q takes 2 s, 2 alone, and 0.5 s."""


def folder(path: Path, records: list[TurnRecord]) -> Path:
    path.mkdir()
    write_rows(path / TURNS, records)
    return path


def test_worst_ttft_and_slowdown(tmp_path: Path) -> None:
    run = folder(tmp_path / "virtual", RECORDS)
    values = analyze_run(run).values
    assert values["ttft_worst_mean_s"] == 1.75
    assert values["ttft_worst_p95_s"] == pytest.approx(2.875)
    assert values["slowdown_mean"] == 1.125
    assert values["slowdown_p95"] == pytest.approx(1.2375)
    rows = programs_table([read_run_metrics(run)]).set_index("program_id")
    assert list(rows.loc["p", ["worst_ttft_s", "alone_s", "slowdown"]]) == [3.0, 8.0, 1.25]


def test_what_is_unknown_has_no_slowdown_and_no_worst_ttft(tmp_path: Path) -> None:
    """A live run needs a reference. This one holds p alone, in 5 s; q is not in it."""
    live = [replace(record, alone_s=None, first_token_s=None) for record in RECORDS]
    names = ("slowdown_mean", "ttft_worst_mean_s")
    values = analyze_run(folder(tmp_path / "live", live)).values
    assert [values[name] for name in names] == [None, None]
    alone = folder(tmp_path / "alone", [TurnRecord("p", 0, 0.0, 0.0, 1.0, 5.0, 100, 5, is_last=True)])
    values = analyze_run(tmp_path / "live", completion_times(alone)).values
    assert values["slowdown_mean"] == 2.0
    values = analyze_run(folder(tmp_path / "half", [RECORDS[0], live[1], RECORDS[2]])).values  # of p one turn
    assert [values[name] for name in names] == [1.0, 0.5]


def test_the_wait_to_be_admitted_counts_programs_that_were_never_scheduled(tmp_path: Path) -> None:
    run = write_recorded(tmp_path / "vllm-seed0", "vllm", 0, [2.0, 4.0, 8.0], queued=0.5)
    write_rows(run / EVENTS, [SchedulerEvent(900.0, "arrive", "waits", 0, prompt_tokens=64)])
    write_json(run / "engine.json", rows_of(run))
    figure = next(each for each in distributions({"vllm": load_runs(run)}) if each.name == "admission")
    (line,) = figure.panels[0].lines
    assert (line.x[-3:], line.y[-3:]) == ([1.0, 2.0, 4.0], [0.25, 0.5, 0.75])
    assert figure.table.rows == [("vllm", "1.0", "1.0", "2.0", "4.0", "-", "-", "-")]
