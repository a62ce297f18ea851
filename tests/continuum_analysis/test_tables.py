"""Tables for other programs and papers, effect sizes, images: what goes in comes out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from continuum_analysis.compare.intervals import resampled_ratio, share_sooner, standardized_difference
from continuum_analysis.compare.runs import Run, by_load, load_all, load_runs
from continuum_analysis.compare.summary import Summary, summarize, summarize_runs
from continuum_analysis.compare.words import verdict
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.report.page import write_joint_report
from continuum_analysis.tables import TABLES, summary_table, summary_words, table_text, write_table
from continuum_traces.run_dir import EVENTS, TURNS, read_events, write_json, write_manifest, write_rows
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord

E = SchedulerEvent


def write_run(
    path: Path,
    policy: str,
    seed: int,
    jcts_s: list[float],
    jps: float = 1.0,
    sha256: str = "a" * 64,
    **engine_options: object,
) -> Path:
    """Two-turn programs: half their time each, a pin and one second of a tool between."""
    path.mkdir(parents=True)
    manifest = Manifest(
        policy=policy,
        seed=seed,
        engine="virtual",
        workload={"sha256": sha256, "jps": jps},
        engine_options={"block_size": 1, **engine_options},
    )
    write_manifest(path, manifest)
    events, records = [], []
    for number, jct_s in enumerate(jcts_s):
        name, t, half = f"p_{number}", float(number), (jct_s - 1) / 2
        for index, arrive_s in enumerate((t, t + half + 1)):
            hit = 8 * index
            events.append(E(arrive_s, "arrive", name, index, prompt_tokens=16 + index))
            events.append(E(arrive_s, "start", name, index, prompt_tokens=16 + index, hit_tokens=hit))
            events.append(E(arrive_s + half, "finish", name, index, output_tokens=2, status="stop", tool="ls"))
            records.append(TurnRecord(name, index, arrive_s, arrive_s, is_last=index == 1))
        events.append(E(t + half, "pin", name, 0, ttl_s=0.5, tokens=16))
        events.append(E(t + half + 0.5, "unpin", name, 0, reason="expired"))
    write_rows(path / EVENTS, events)
    write_rows(path / TURNS, records)
    write_json(path / "engine.json", {})
    return path


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    for seed in range(3):
        write_run(tmp_path / f"vllm-{seed}", "vllm", seed, [10.0 + seed, 20.0, 40.0])
        write_run(tmp_path / f"continuum-{seed}", "continuum", seed, [6.0 + seed, 9.0, 20.0])
    return tmp_path


def test_every_form_holds_the_same_numbers(experiment: Path, tmp_path: Path) -> None:
    table = summary_table({1.0: summarize(experiment)})
    jct = table.set_index("policy").loc["continuum", "jct_mean_s"]
    assert jct == pytest.approx(np.mean([[6, 9, 20], [7, 9, 20], [8, 9, 20]]))
    assert write_table(table, "parquet", tmp_path / "t.parquet") == ""
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), table)
    write_table(table, "csv", tmp_path / "t.csv")
    assert pd.read_csv(tmp_path / "t.csv").loc[1, "jct_mean_s"] == pytest.approx(jct, rel=1e-5)
    assert json.loads(table_text(table, "json"))[1]["jct_mean_s"] == pytest.approx(jct)


def test_words_for_papers(experiment: Path) -> None:
    words = summary_words({1.0: summarize(experiment)})
    latex = table_text(words, "latex")
    assert latex.startswith("\\begin{tabular}{llrrr")
    assert "12.0 (11.2 to 12.8)" in latex  # mean of 35/3, 36/3, 37/3 over three seeds, t interval
    assert "0.0\\%" in latex  # the pins' hit ratio, escaped
    assert "program-fcfs" not in latex
    markdown = table_text(words, "markdown")
    assert markdown.splitlines()[0].startswith("| JPS")
    assert "12.0 (11.2 to 12.8)" in markdown
    assert "nan" not in latex + markdown


@pytest.mark.parametrize(("name", "rows"), [("runs", 6), ("misses", 6), ("programs", 18), ("turns", 36), ("pins", 18)])
def test_tables_of_runs(experiment: Path, name: str, rows: int) -> None:
    table = TABLES[name](load_runs(experiment))
    assert len(table) == rows
    assert {"jps", "policy", "seed"} <= set(table.columns)
    for form in ("csv", "json", "latex", "markdown"):
        assert table_text(table, form)


def test_a_turn_says_why_and_a_pin_what_it_was_for(experiment: Path) -> None:
    runs = load_runs(experiment)
    turns = TABLES["turns"](runs)
    assert set(turns["cause"]) == {"first sight", "expired"}
    late = turns[turns["cause"] == "expired"]
    assert np.allclose(late["late_s"].astype(float), 0.5)
    assert (late["lost_tokens"] == 8).all()  # 16 were there before, 8 were found
    pins = TABLES["pins"](runs)
    assert np.allclose(pins["tool_s"], 1.0)
    assert set(pins["reason"]) == {"expired"}


def test_mistakes_are_named(experiment: Path, tmp_path: Path) -> None:
    table = TABLES["runs"](load_runs(experiment))
    with pytest.raises(AnalysisError, match="--format xls: there are csv, parquet"):
        write_table(table, "xls", None)
    with pytest.raises(AnalysisError, match="name a file with --out"):
        write_table(table, "parquet", None)


def test_directories_merge_into_more_seeds(experiment: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    write_run(more / "v", "vllm", 3, [10.0, 20.0, 40.0])
    write_run(more / "c", "continuum", 3, [6.0, 9.0, 20.0])
    summary = summarize_runs(None, load_all([experiment, more]))
    assert summary.seeds == (0, 1, 2, 3)
    assert summary.to_json()["policies"]["continuum"]["paired_seeds"] == [0, 1, 2, 3]


def test_loads_are_kept_apart_and_other_programs_refused(experiment: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "fast" / "v", "vllm", 0, [30.0], jps=2.0)
    loads = by_load(load_all([experiment, tmp_path / "fast"]))
    assert {jps: len(runs) for jps, runs in loads.items()} == {1.0: 6, 2.0: 1}
    write_run(tmp_path / "other" / "v", "vllm", 0, [30.0], jps=2.0, sha256="b" * 64)
    with pytest.raises(AnalysisError, match=r"they played different workloads \(sha256 a{12} against b{12}\)"):
        by_load(load_all([experiment, tmp_path / "other"]))


def write_routed(path: Path, router: str, faster: float, replicas: int = 4) -> Path:
    """``vllm`` and ``continuum`` of two seeds behind a router, ``continuum`` twice as fast."""
    for seed in (0, 1):
        jcts = [20.0 / faster + seed, 40.0 / faster]
        options = {"router": router, "replicas": replicas, "block_size": 16}
        write_run(path / f"vllm-seed{seed}", "vllm", seed, jcts, **options)
        write_run(path / f"continuum-seed{seed}", "continuum", seed, [jct / 2 for jct in jcts], **options)
    return path


def test_routers_are_arms_of_one_comparison(tmp_path: Path) -> None:
    paths = [write_routed(tmp_path / "r", "round-robin", 1.0), write_routed(tmp_path / "a", "affinity", 1.25)]
    runs = load_all(paths)
    summary = summarize_runs(None, runs)
    arms = ["vllm@round-robin", "continuum@round-robin", "vllm@affinity", "continuum@affinity"]
    assert (list(summary.arms), summary.baseline) == (arms, arms[0])
    rows = [summary.to_json()["policies"][arm] for arm in arms]
    means = [(20 + 21 + 40 + 40) / 4, (16 + 17 + 32 + 32) / 4]
    assert [row["jct_mean_ratio"] for row in rows] == pytest.approx(
        [1, 0.5, means[1] / means[0], means[1] / means[0] / 2]
    )
    assert [(row["policy"], row["router"]) for row in rows[1:3]] == [("continuum", "round-robin"), ("vllm", "affinity")]
    said = verdict(summary)
    assert said.startswith("continuum@affinity: its programs took 0.40 times as long as under vllm@round-robin")
    assert "The next best was continuum@round-robin" in said
    table = summary_words(by_load_summaries(runs))
    assert list(table["policy"]) == arms
    assert "JCT to vllm@round-robin" in table.columns
    assert set(TABLES["runs"](runs)["policy"]) == set(arms)
    html = write_joint_report(paths, tmp_path / "report.html").read_text()
    assert all(arm in html for arm in arms)
    assert all(f"<td>{router}</td>" in html for router in ("round-robin", "affinity"))
    assert "JCT to vllm@round-robin: this policy" in html


def by_load_summaries(runs: list[Run]) -> dict[float | None, Summary]:
    return {jps: summarize_runs(None, group) for jps, group in by_load(runs).items()}


def test_one_router_is_not_named(tmp_path: Path) -> None:
    path = write_routed(tmp_path / "a", "affinity", 1.0)
    summary = summarize(path)
    assert (list(summary.arms), summary.baseline) == (["vllm", "continuum"], "vllm")


def test_runs_that_differ_in_more_than_the_router_are_refused(tmp_path: Path) -> None:
    four = write_routed(tmp_path / "r", "round-robin", 1.0)
    two = write_routed(tmp_path / "a", "affinity", 1.0, replicas=2)
    with pytest.raises(AnalysisError, match=r"engine_options\.replicas differs: 4 against 2"):
        summarize_runs(None, load_all([four, two]))
    with pytest.raises(AnalysisError, match="are both policy continuum, seed 0"):
        summarize_runs(None, load_all([four, write_routed(tmp_path / "again", "round-robin", 1.0)]))


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


def test_effect_sizes_by_hand(experiment: Path) -> None:
    assert standardized_difference([5.0, 6.0, 7.0], [4.0, 4.0, 4.0]) == pytest.approx(2.0 / 1.0 * (1 - 3 / 7))
    assert standardized_difference([5.0], [4.0]) is None
    assert standardized_difference([5.0, 6.0], [4.0, 5.0]) is None  # never varies: no size to give
    assert share_sooner([3.0, 3.0, 3.0, 3.0], [2.0, 3.0, 4.0, 1.0]) == (2 + 0.5) / 4
    row = summarize(experiment).to_json()["policies"]["continuum"]
    assert row["sooner_than_vllm_share"] == 1.0
    assert row["paired_programs"] == [9, 9]


def test_resampling_one_pair_gives_no_interval() -> None:
    assert resampled_ratio([2.0], [1.0]).low is None
