"""The papers' experiments: every file loads and gives legal cells, and one of each kind runs at a tiny size."""

from __future__ import annotations

import json
from math import inf, prod
from pathlib import Path

import pytest
from bench_cli import bench, succeeded
from continuum_analysis.metrics import METRICS, is_overloaded
from continuum_analysis.sweep.plots import Plot
from continuum_bench.figures.play_figure import OF_TRACES
from continuum_bench.figures.spec import figure_names, load_figure
from continuum_bench.sweep.grid import AXES
from continuum_bench.virtual.engine_options import engine_of
from continuum_server.policy.registry import find_policy
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.schema import Program, ToolCall, Turn

PLAYED = [name for name in figure_names() if load_figure(name).kind not in OF_TRACES]
SET = "length_scale=2 kv_blocks=1200 num_programs=6 seeds=1 max_num_seqs=256"
SMALL = [word for axis in SET.split() for word in ("--set", axis)]


@pytest.mark.parametrize("mode", ["quick", "full"])
@pytest.mark.parametrize("name", PLAYED)
def test_every_grid_is_legal(name: str, mode: str) -> None:
    spec = load_figure(name)
    grid = spec.sweep(mode, ())
    assert grid.points
    for point in grid.points:
        assert point.options.one_offs == "fcfs"  # the papers' order
        engine_of(point.options)  # an unknown GPU, a model that does not fit, tiers nobody has
        for arm in point.arms:
            find_policy(arm.policy)
    names = {metric.name for metric in METRICS}
    assert set(grid.plot) <= set(Plot.__dataclass_fields__)
    assert set(grid.plot.get("y", ())) <= names
    assert grid.plot.get("x", "jps") in AXES
    assert spec.minutes["quick"] <= (40 if spec.kind == "goodput" else 15)
    assert spec.minutes["quick"] <= spec.minutes["full"]


@pytest.mark.parametrize("name", PLAYED)
def test_a_users_trace_takes_the_place_of_the_workloads(name: str, trace: Path) -> None:
    grid = load_figure(name).sweep("quick", [trace], ["seeds=1"])
    assert {point.options.traces for point in grid.points} == {trace}
    assert {point.seeds for point in grid.points} == {(0,)}
    points = [tuple(point.axes.items()) for point in grid.points]
    assert len(set(points)) == len(points)


def test_a_figure_from_end_to_end(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("--traces", trace, *SMALL, "--set", "policy=vllm,continuum", "--out", out)
    done = succeeded("figure ablation --set jps=2", *arguments)
    assert "published: vllm is slowest" in done.stderr
    table = (out / "figure.md").read_text()
    (group,) = json.loads((out / "summary.json").read_text())["groups"]
    pressed = group["policies"]
    assert pressed["continuum"]["prefix_hit_ratio"] > pressed["vllm"]["prefix_hit_ratio"]
    assert f"{pressed['continuum']['jct_mean_s']:.1f}" in table
    before = (out / "figure.svg").read_bytes()
    assert all(policy.encode() in before for policy in pressed)
    assert "2 cells, 2 done before, 0 to play" in bench("figure ablation --set jps=2", *arguments).stderr
    assert (out / "figure.svg").read_bytes() == before


def test_a_dry_run_names_every_cell_and_writes_nothing(tmp_path: Path) -> None:
    names = succeeded("figure own-policy --dry-run --out", tmp_path / "out").stdout.splitlines()
    assert len(names) == len(set(names)) == 138
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_ratios_from_end_to_end(trace: Path, tmp_path: Path) -> None:
    out, changes = tmp_path / "out", ("--set", "tool_times=recorded,hang:0.5:50")
    played = "figure own-policy --set jps=2 --set policy=vllm,continuum"
    succeeded(played, "--traces", trace, *SMALL, *changes, "--out", out)
    groups = json.loads((out / "summary.json").read_text())["groups"]
    plain = next(g for g in groups if g["axes"]["tool_times"] == "recorded" and "arrivals" not in g["axes"])["policies"]
    ratio = plain["vllm"]["jct_mean_s"] / plain["continuum"]["jct_mean_s"]
    lines = (out / "figure.md").read_text().splitlines()
    first, *rest, last = [line.strip("| ").split(" | ") for line in lines if "| vllm |" in line]
    assert ratio > 1
    assert (first[1:4], first[-2]) == (["recorded", "vllm", "1"], f"{ratio:.3f}")
    assert last[:2] == ["geometric mean", f"{len(groups)} points"]
    product = prod(float(row[-2]) for row in (first, *rest))
    assert float(last[-2]) == pytest.approx(product ** (1 / len(groups)), abs=2e-3)
    assert "hang:0.5:50" in (out / "figure.svg").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["queueing", "eta-t"])
def test_figures_of_single_runs(name: str, trace: Path, tmp_path: Path) -> None:
    succeeded("figure", name, "--traces", trace, *SMALL, "--set", "jps=2", "--out", tmp_path)
    assert "continuum" in (tmp_path / "figure.svg").read_text()
    assert len((tmp_path / "figure.md").read_text().splitlines()) > 4


@pytest.mark.slow
def test_goodput_finds_rates_on_either_side_of_the_limits(trace: Path, tmp_path: Path) -> None:
    searched = "figure goodput --set policy=vllm,continuum --set jps=2 --set warm_up=0 --set cool_down=0"
    succeeded(searched, "--traces", trace, *SMALL, "--set", "num_programs=12", "--out", tmp_path)
    rows = json.loads((tmp_path / "goodput.json").read_text(), parse_constant=pytest.fail)
    groups = json.loads((tmp_path / "summary.json").read_text())["groups"]
    assert [(row["axes"]["limit"], row["policy"]) for row in rows] == [
        (limit, policy) for limit in (None, 5) for policy in ("vllm", "continuum")
    ]
    for row in rows:
        played = [(g["axes"]["jps"], g["policies"][row["policy"]]) for g in groups if row["policy"] in g["policies"]]
        kept = {
            jps: not is_overloaded(arm) and arm["slowdown_p95"] <= (row["axes"]["limit"] or inf) for jps, arm in played
        }
        (found,) = row["by_seed"]
        assert kept[found]
        assert any(found < jps <= found * 1.126 and not each for jps, each in kept.items())
    assert rows[3]["to_vllm"]["mean"] >= 1.0


def test_tool_times_of_the_bundled_sets(tmp_path: Path) -> None:
    succeeded("figure", "tool-times", "--out", tmp_path)
    rows = [line.split(" | ") for line in (tmp_path / "figure.md").read_text().splitlines() if "fetch_url" in line]
    assert len(rows) == 1
    assert 0.4 < float(rows[0][-1].rstrip("% |")) / 100 < 0.65  # the paper: 52.5%


def test_turns_left_and_running_means_by_hand(tmp_path: Path) -> None:
    calls = [ToolCall("ls", seconds) for seconds in (1.0, 2.0, 3.0)]
    turns = [Turn(10, 1, tool_calls=(call,)) for call in calls]
    write_programs(tmp_path / "two.jsonl", [Program("a", (turns[0],)), Program("b", tuple(turns))])
    for name, row in (("remaining", "two | 1.0 | 1.0 | - | - | -"), ("tool-means", "two | ls | 4 | 1.75 | - | - | -")):
        succeeded("figure", name, "--traces", tmp_path / "two.jsonl", "--out", tmp_path / name)
        assert row in (tmp_path / name / "figure.md").read_text()
    write_programs(tmp_path / "none.jsonl", [Program("a", (Turn(10, 1),))])
    done = bench("figure tool-means --traces", tmp_path / "none.jsonl", "--out", tmp_path / "none")
    assert (done.exit_code, "the traces hold no tool times" in done.stderr) == (2, True)
