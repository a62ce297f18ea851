"""Tables for other programs and papers, effect sizes, images: what goes in comes out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
from continuum_analysis.compare import by_load, load_all, load_runs, summarize, summarize_runs
from continuum_analysis.images import write_images
from continuum_analysis.pairing import resampled_ratio, share_sooner, standardized_difference
from continuum_analysis.tables import TABLES, summary_table, summary_words, table_text, write_table
from continuum_analysis.timeline import AnalysisError
from continuum_traces.run_dir import EVENTS, TURNS, write_json, write_manifest, write_rows
from continuum_traces.schema import Manifest, SchedulerEvent, TurnRecord

E = SchedulerEvent


def write_run(
    path: Path, policy: str, seed: int, jcts_s: list[float], jps: float = 1.0, sha256: str = "a" * 64
) -> Path:
    """Two-turn programs: half their time each, a pin and one second of a tool between."""
    path.mkdir(parents=True)
    workload = {"sha256": sha256, "jps": jps}
    write_manifest(path, Manifest(policy=policy, seed=seed, engine="virtual", workload=workload))
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
    assert summary["seeds"] == [0, 1, 2, 3]
    assert summary["policies"]["continuum"]["paired_seeds"] == [0, 1, 2, 3]


def test_loads_are_kept_apart_and_other_programs_refused(experiment: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "fast" / "v", "vllm", 0, [30.0], jps=2.0)
    loads = by_load(load_all([experiment, tmp_path / "fast"]))
    assert {jps: len(runs) for jps, runs in loads.items()} == {1.0: 6, 2.0: 1}
    write_run(tmp_path / "other" / "v", "vllm", 0, [30.0], jps=2.0, sha256="b" * 64)
    with pytest.raises(AnalysisError, match=r"they played different workloads \(sha256 a{12} against b{12}\)"):
        by_load(load_all([experiment, tmp_path / "other"]))


def test_effect_sizes_by_hand(experiment: Path) -> None:
    assert standardized_difference([5.0, 6.0, 7.0], [4.0, 4.0, 4.0]) == pytest.approx(2.0 / 1.0 * (1 - 3 / 7))
    assert standardized_difference([5.0], [4.0]) is None
    assert standardized_difference([5.0, 6.0], [4.0, 5.0]) is None  # never varies: no size to give
    assert share_sooner([3.0, 3.0, 3.0, 3.0], [2.0, 3.0, 4.0, 1.0]) == (2 + 0.5) / 4
    row = summarize(experiment)["policies"]["continuum"]
    assert row["sooner_than_vllm_share"] == 1.0
    assert row["paired_programs"] == [9, 9]
    low, high = row["ratio_to_vllm_bootstrap_interval"]
    assert low <= row["ratio_to_vllm"] <= high


def test_resampling_one_pair_gives_no_interval() -> None:
    assert resampled_ratio([2.0], [1.0]).low is None


def test_images_are_the_same_every_time(tmp_path: Path) -> None:
    plot = go.Figure()
    plot.add_scatter(x=[1, 2, 3], y=[1.0, 4.0, 9.0], name="steps", mode="lines", line={"shape": "hv", "dash": "dash"})
    plot.add_scatter(
        x=[1, 2],
        y=[3.0, 2.0],
        name="with <b>errors</b>",
        mode="lines+markers",
        error_y={"array": [1, 1], "arrayminus": [0, 1]},
    )
    plot.add_bar(y=[1, 2], x=[1.0, 0.5], base=[0.0, 1.0], orientation="h", offset=-0.25, width=0.5, name="rows")
    plot.update_xaxes(title="x", type="log")
    first = write_images(plot, tmp_path / "one")
    again = write_images(plot, tmp_path / "two")
    assert [file.name for file in first] == ["one.png", "one.svg"]
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]
    svg = first[1].read_text()
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert "steps" in svg  # words stay words
    assert "rows" in svg
