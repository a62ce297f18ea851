"""Workloads of several kinds of programs: synthesised, replayed, and compared by kind."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from continuum_analysis.records.reading import read_run
from continuum_bench.cli import app
from continuum_traces.jsonl import read_programs
from typer.testing import CliRunner

runner = CliRunner()


def bench(*arguments: object) -> str:
    done = runner.invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_a_mixture_is_played_and_compared_by_kind(tmp_path: Path) -> None:
    trace, runs = tmp_path / "mixed.jsonl", tmp_path / "runs"
    bench("traces", "synth", "--mix", "chat:0.8,swebench:0.2", "-n", 20, trace)
    programs = list(read_programs(trace))
    kinds = {program.program_id: program.metadata["kind"] for program in programs}  # type: ignore[index]
    assert Counter(kinds.values()) == {"chat": 16, "swebench": 4}
    assert [program.tagged for program in programs] == [kinds[p.program_id] != "chat" for p in programs]
    bench("replay", trace, "--jps", 2, "--policy", "vllm,working-set", "--seeds", 1, "--out", runs)
    for program in read_run(runs / "working-set-seed0"):  # untagged requests have their programs' names again
        assert program.metadata == {"kind": kinds[program.program_id]}
        assert program.finished
    first, second = json.loads(bench("compare", runs, "--by", "kind", "--json"))
    whole = json.loads(bench("compare", runs, "--json"))
    assert [first["group"], second["group"]] == ["kind chat", "kind swebench"]
    counts = [each["policies"]["vllm"]["programs"] for each in (first, second, whole)]
    assert counts == [16, 4, 20]
    jcts = [each["policies"]["vllm"]["jct_mean_s"] for each in (first, second, whole)]
    assert (16 * jcts[0] + 4 * jcts[1]) / 20 == pytest.approx(jcts[2])
    assert "first-prompt below 1K" in bench("compare", runs, "--by", "first-prompt")
