"""``--replicas``: what a user gets, and what is said of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_cli import bench
from click.testing import Result
from continuum_analysis.compare.runs import load_runs
from continuum_analysis.records.reading import read_run
from continuum_traces.run_dir import read_events, read_manifest


def replay(trace: Path, *more: object) -> Result:
    return bench("replay", trace, "--jps", 4, "--kv-blocks", 1200, "--no-report", *more)


def test_two_replicas_side_by_side(trace: Path, tmp_path: Path) -> None:
    done = replay(
        trace, "--replicas", 2, "--router", "round-robin", "--policy", "vllm,continuum", "--out", tmp_path / "out"
    )
    assert done.exit_code == 0, done.output
    assert "2 replicas (round-robin) of 1 x h100-80gb" in done.stdout
    folder = tmp_path / "out" / "continuum-seed0"
    options = read_manifest(folder).engine_options
    assert (options.replicas, options.router) == (2, "round-robin")
    assert {event.replica for event in read_events(folder)} == {0, 1}
    for program in read_run(folder):
        assert program.finished
        assert [turn.index for turn in program.turns] == [0, 1, 2]
    engine = json.loads((folder / "engine.json").read_text())
    assert len(engine["replicas"]) == 2
    assert engine["decode_tokens"] == sum(one["decode_tokens"] for one in engine["replicas"])
    assert engine["blocks_leaked"] == 0
    (run,) = (run for run in load_runs(tmp_path / "out") if run.manifest.policy == "continuum")
    assert run.metrics.facts.gpus == 2


@pytest.mark.slow
def test_routers_side_by_side(trace: Path, tmp_path: Path) -> None:
    """A router under which no program comes back to its replica but by chance, and one under which each does."""
    for router, name in (("round_robin", "round-robin"), ("sticky", "sticky")):  # the first as vllm-router calls it
        out = tmp_path / name
        done = replay(trace, "--replicas", 2, "--router", router, "--policy", "vllm,continuum", "--out", out)
        assert done.exit_code == 0, done.output
    folders = [str(tmp_path / name) for name in ("sticky", "round-robin")]
    summary = json.loads(bench("compare", *folders, "--json").stdout)
    arms = ["vllm@sticky", "continuum@sticky", "vllm@round-robin", "continuum@round-robin"]
    assert (list(summary["policies"]), summary["baseline"]) == (arms, arms[0])
    elsewhere = [row["returns_elsewhere_share"] for row in summary["policies"].values()]
    assert elsewhere[:2] == [0.0, 0.0]
    assert min(elsewhere[2:]) > 0.2
    printed = bench("compare", *folders).stdout
    assert all(arm in printed for arm in arms)
    assert all(heading in printed for heading in ("elsewhere", "busiest", "JCT to vllm@sticky"))
