"""``--replicas``: what a user gets, and what is said of mistakes."""

from __future__ import annotations

import json
from pathlib import Path

from bench_cli import succeeded
from continuum_analysis.compare.runs import load_runs
from continuum_analysis.records.reading import read_run
from continuum_traces.records import read_events


def test_two_replicas_side_by_side(trace: Path, tmp_path: Path) -> None:
    command = "replay --jps 4 --kv-blocks 1200 --no-report --replicas 2 --router round-robin --policy vllm,continuum"
    done = succeeded(command, trace, "--out", tmp_path / "out")
    assert "2 replicas (round-robin) of 1 x h100-80gb" in done.stdout
    folder = tmp_path / "out" / "continuum-seed0"
    assert {event.replica for event in read_events(folder)} == {0, 1}
    for program in read_run(folder):
        assert [turn.index for turn in program.turns] == [0, 1, 2]
    engine = json.loads((folder / "engine.json").read_text())
    assert len(engine["replicas"]) == 2
    assert engine["decode_tokens"] == sum(one["decode_tokens"] for one in engine["replicas"])
    assert engine["blocks_leaked"] == 0
    (run,) = (run for run in load_runs(tmp_path / "out") if run.manifest.policy == "continuum")
    assert run.metrics.facts.gpus == 2
