"""Arms behind routers, turns among replicas, effect sizes. tests/golden has the tables for other programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from continuum_analysis.compare.intervals import sooner_equal_later, standardized_difference
from continuum_analysis.compare.runs import load_all, load_runs
from continuum_analysis.compare.summary import summarize, summarize_runs
from continuum_analysis.compare.verdict import verdict
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.report.page import write_joint_report
from continuum_analysis.tables import TABLES, chosen, summary_numbers, summary_table, summary_words, table_text
from continuum_traces.records import read_events, write_rows
from continuum_traces.records.run_dir import EVENTS
from continuum_traces.schema import Engine
from recorded_runs import write_recorded


def write_run(path: Path, policy: str, seed: int, jcts_s: list[float], jps: float = 1.0, **engine: Any) -> Path:
    """Two-turn programs: half their time each, a pin and one second of a tool between."""
    options = Engine(**{"block_size": 1, **engine})
    return write_recorded(
        path, policy, seed, jcts_s, gap_s=1.0, turns=2, hit_tokens=8, pin_s=0.5, engine=options, jps=jps
    )


def write_routed(path: Path, router: str, faster: float) -> Path:
    """``vllm`` and ``continuum`` of two seeds behind a router, ``continuum`` twice as fast."""
    for seed in (0, 1):
        jcts = [20.0 / faster + seed, 40.0 / faster]
        for policy, times in (("vllm", jcts), ("continuum", [jct / 2 for jct in jcts])):
            write_run(path / f"{policy}-seed{seed}", policy, seed, times, router=router, replicas=4)
    return path


def test_routers_are_arms_of_one_comparison(tmp_path: Path) -> None:
    paths = [write_routed(tmp_path / "r", "round-robin", 1.0), write_routed(tmp_path / "a", "affinity", 1.25)]
    runs = load_all(paths)
    summary = summarize_runs(None, runs)
    arms = ["vllm@round-robin", "continuum@round-robin", "vllm@affinity", "continuum@affinity"]
    assert (list(summary.arms), summary.baseline) == (arms, arms[0])
    assert summary.arms[arms[0]].pins_by_ending == {"expired": 4}
    rows = [summary.to_json()["policies"][arm] for arm in arms]
    ratio = (16 + 17 + 32 + 32) / (20 + 21 + 40 + 40)
    assert [row["jct_mean_ratio"] for row in rows] == pytest.approx([1, 0.5, ratio, ratio / 2])
    assert [(row["policy"], row["router"]) for row in rows[1:3]] == [("continuum", "round-robin"), ("vllm", "affinity")]
    said = verdict(summary)
    assert said.startswith(
        "continuum@affinity took 0.40, continuum@round-robin 0.50, vllm@affinity 0.80 of vllm@round-robin's time "
        "(2 seeds: no proof). Five seeds give an interval."
    )
    table = summary_words({1.0: summary})
    assert list(table["policy"]) == arms
    assert "JCT to vllm@round-robin" in table.columns
    assert set(TABLES["runs"](runs)["policy"]) == set(arms)
    html = write_joint_report(paths, tmp_path / "report.html").read_text()
    assert all(arm in html for arm in arms)
    assert all(f"<td>{router}</td>" in html for router in ("round-robin", "affinity"))
    assert list(summarize(paths[1]).arms) == ["vllm", "continuum"]  # one router is not named


def test_latex_has_numbers_in_columns_of_numbers(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"vllm-seed{seed}", "vllm", seed, [20.0 + seed, 40.0])
        write_run(tmp_path / f"continuum-seed{seed}", "continuum", seed, [10.0, 20.0 + seed])
    summaries = {1.0: summarize(tmp_path)}
    start, _, headings, _, vllm, continuum, *_ = table_text(summary_numbers(summaries), "latex").splitlines()
    assert start == r"\begin{tabular}{rl" + "r" * 14 + "l}"
    shown = "JPS & policy & JCT mean, s & low & high & P50 & P90 & P95 & P99 & finished/s & bubble, s & prefix hit, \\%"
    assert headings.startswith(shown)
    assert vllm.startswith("1 & vllm & 30.5 & 29.3 & 31.7 & ")
    assert continuum.endswith(" & measured \\\\")
    some = table_text(chosen(summary_table(summaries), ["policy", "jct_mean_s", "jct_mean_s_low"]), "latex")
    assert some.splitlines()[0] == r"\begin{tabular}{lrr}"
    with pytest.raises(AnalysisError, match=r"--columns nothing: the first line of --format csv"):
        chosen(summary_table(summaries), ["nothing"])


def test_where_turns_went_among_replicas(tmp_path: Path) -> None:
    """Two programs of two turns at four replicas: one comes back to where it was, nobody goes to the last two."""
    path = write_run(tmp_path / "r", "vllm", 0, [10.0, 20.0], replicas=4)
    places = iter((0, 0, 0, 1))
    place = {(e.program_id, e.turn): next(places) for e in read_events(path) if e.event == "arrive"}
    events = [replace(event, replica=place[event.program_id, event.turn]) for event in read_events(path)]
    (path / EVENTS).unlink()
    write_rows(path / EVENTS, events)
    (run,) = load_runs(path)
    assert run.metrics.values["returns_elsewhere_share"] == 0.5
    assert run.metrics.values["replica_busiest"] == 3 / (4 / 4)


def test_effect_sizes_by_hand() -> None:
    assert standardized_difference([5.0, 6.0, 7.0], [4.0, 4.0, 4.0]) == pytest.approx(2.0 / 1.0 * (1 - 3 / 7))
    assert standardized_difference([5.0], [4.0]) is None
    assert standardized_difference([5.0, 6.0], [4.0, 5.0]) is None  # never varies: no size to give
    assert sooner_equal_later([3.0, 3.0, 3.0, 3.0], [2.0, 3.0, 4.0, 1.0]) == (2, 1, 1)
    gains = [0.0009, 0.0011, -0.0009, -0.0011]  # to 1 ms equal
    assert sooner_equal_later(gains, [0.0] * 4) == (1, 2, 1)
