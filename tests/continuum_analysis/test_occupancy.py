"""What fills the pool, and where programs spend their time: by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from continuum_analysis.compare.runs import load_runs, read_run_metrics
from continuum_analysis.records.misses import CAUSES
from continuum_analysis.records.occupancy import occupancy
from continuum_analysis.records.reading import add_client_records, order_events
from continuum_analysis.report.figures_cache import RETURN, occupancy_figure, ttl_figure
from continuum_analysis.report.program_timeline import timeline_data
from continuum_traces.records import write_rows
from continuum_traces.records.run_dir import EVENTS as EVENTS_FILE
from continuum_traces.records.run_dir import TURNS
from continuum_traces.schema import SchedulerEvent, TurnRecord
from recorded_runs import served, write_recorded

E = SchedulerEvent
EVENTS = [
    *served("p", 0, 0.0, 100, 20, 1.0, 6.0, output_tokens=50, tool="ls"),
    E(4.0, "preempt", "p", 0),
    E(5.0, "resume", "p", 0, prompt_tokens=100, hit_tokens=0),
    E(7.0, "pin", "p", 0, ttl_s=2.0, tokens=144),
    *served("p", 1, 8.0, 200, 144, 1.0, 1.0, output_tokens=10),
    E(9.0, "unpin", "p", 0, reason="hit", tokens=144),
]
FIRST_TOKENS = [TurnRecord("p", 0, 100.0, 100.0, first_token_s=102.0, finish_s=107.0, gap_s=1.0)]


def test_occupancy_by_hand() -> None:
    programs = add_client_records(order_events(EVENTS), FIRST_TOKENS)
    found = occupancy(programs, instants=21)  # every half second
    at = dict(zip(found.times_s.tolist(), zip(found.running.tolist(), found.pinned.tolist(), strict=True), strict=True))
    assert at[0.5] == (0.0, 0.0)  # in the queue
    assert at[1.5] == (60.0, 0.0)  # half-way from 20 cached to the prompt of 100 at the first token
    assert at[3.0] == (100 + 50 / 5, 0.0)  # a fifth of the output
    assert at[4.5] == (0.0, 0.0)  # preempted
    assert at[8.0] == (0.0, 144.0)  # held while the tool runs, and while its program waits
    assert at[8.5] == (0.0, 144.0)
    assert at[9.5] == (144 + (210 - 144) / 2, 0.0)  # no first token recorded: evenly to the end


def test_the_timeline_covers_a_program_s_time(tmp_path: Path) -> None:
    """Milliseconds: arrival, queue, prefill, decode; 100, 20 and 50 tokens; pin; then the wait after the preemption."""
    write_rows(tmp_path / EVENTS_FILE, EVENTS)
    write_rows(tmp_path / TURNS, FIRST_TOKENS)
    (shown,) = timeline_data({"p": [read_run_metrics(tmp_path)]})["runs"]
    (_, _, arrive, jct, bubble, turns) = shown["programs"][0]
    assert (arrive, jct, bubble, shown["end"]) == (0, 10_000, 3_000, 10_000)
    first, second = turns
    assert first == [0, 1000, 1000, 5000, 100, 20, 50, 1, len(CAUSES), 2000, 2000, [4000, 5000]]
    assert second[:4] == [8000, 1000, -1, 1000]  # no first token recorded


def test_the_figure_of_the_pool_shows_means_and_peaks_of_spans(tmp_path: Path) -> None:
    run = write_recorded(tmp_path / "continuum-seed0", "continuum", 0, [9.0, 5.0], gap_s=2.0, turns=3, pin_s=0.5)
    runs = load_runs(run)
    (panel,) = occupancy_figure({"continuum": runs}, 1000).panels
    running, pinned = panel.areas
    (peak,) = panel.lines
    whole = occupancy(runs[0].metrics.facts.machine)
    for area, tokens in ((running, whole.running), (pinned, whole.pinned)):
        assert len(area.y) == 100
        assert sum(area.y) / 100 == pytest.approx(tokens.mean() / 1000)
    assert max(peak.y) == pytest.approx((whole.running + whole.pinned).max() / 1000)
    assert all(high >= a + b - 1e-9 for high, a, b in zip(peak.y, running.y, pinned.y, strict=True))


def test_ttls_stand_beside_the_time_until_the_return_by_tool(tmp_path: Path) -> None:
    """Every tool takes a second. The TTLs are 0.5 s in the first run, 4 s in the second."""
    for seed, pin_s in enumerate((0.5, 4.0)):
        write_recorded(tmp_path / f"continuum-seed{seed}", "continuum", seed, [9.0], turns=3, pin_s=pin_s)
    figure = ttl_figure({"continuum": load_runs(tmp_path)})
    bars = figure.panels[0].bars
    assert [(bar.group, bar.name) for bar in bars] == [
        (tool, name) for tool in ("all tools", "ls") for name in (RETURN, "continuum")
    ]
    assert [value for bar in bars[:2] for value in (bar.low, bar.y, bar.high)] == [1.0, 1.0, 1.0, 0.5, 2.25, 4.0]
    first, *_ = figure.table.rows
    assert " ".join(first) == "all tools continuum 4 50.0% 0.5 2.2 4.0 1.0 1.0 1.0 0.75"
