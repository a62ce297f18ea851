"""Workloads of several kinds of programs: synthesised, replayed, and compared by kind."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from bench_cli import succeeded
from continuum_analysis.records.reading import read_run
from continuum_traces.programs.jsonl import read_programs
from recorded_runs import write_recorded


def test_a_mixture_is_played_and_compared_by_kind(tmp_path: Path) -> None:
    trace, runs = tmp_path / "mixed.jsonl", tmp_path / "runs"
    succeeded("traces synth --mix chat:0.8,swebench:0.2 -n 20", trace)
    programs = list(read_programs(trace))
    kinds = {program.program_id: program.metadata["kind"] for program in programs}  # type: ignore[index]
    assert Counter(kinds.values()) == {"chat": 16, "swebench": 4}
    assert [program.tagged for program in programs] == [kinds[p.program_id] != "chat" for p in programs]
    succeeded("replay --jps 2 --policy vllm,working-set", trace, "--out", runs)
    for program in read_run(runs / "working-set-seed0"):  # untagged requests have their programs' names again
        assert program.metadata == {"kind": kinds[program.program_id]}
        assert program.finished
    first, second = json.loads(succeeded("compare --by kind --json", runs).stdout)
    whole = json.loads(succeeded("compare --json", runs).stdout)
    assert [first["group"], second["group"]] == ["kind chat", "kind swebench"]
    counts = [each["policies"]["vllm"]["programs"] for each in (first, second, whole)]
    assert counts == [16, 4, 20]
    jcts = [each["policies"]["vllm"]["jct_mean_s"] for each in (first, second, whole)]
    assert (16 * jcts[0] + 4 * jcts[1]) / 20 == pytest.approx(jcts[2])
    assert "first-prompt below 1K" in succeeded("compare --by first-prompt", runs).stdout


def test_a_server_s_record_is_compared_by_api_key(tmp_path: Path) -> None:
    names = ("1" * 16 + ":p{}", "2" * 16 + ":p{}", "untagged-{}")
    for seed, name in enumerate(names):
        write_recorded(tmp_path / f"server-{seed}", "vllm", seed, [2.0, 3.0], names=name)
    groups = json.loads(succeeded("compare --by key --json", tmp_path).stdout)
    assert [each["group"] for each in groups] == [f"key {name}" for name in ("1" * 16, "2" * 16, "other")]
