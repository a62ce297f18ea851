"""How many agents keep a service level: the bracket, what is lost beyond, and the answer in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_cli import refused
from continuum_analysis.records.timeline import AnalysisError
from continuum_analysis.sweep.capacity import Bracket, PolicyCapacity, bracket_of, capacity_of
from continuum_analysis.sweep.plots import read_plot, sweep_panels
from continuum_analysis.sweep.report import write_sweep_report, write_tables
from continuum_analysis.sweep.tables import read_sweep
from continuum_traces.json_io import read_json, write_json
from recorded_runs import verdict_in, write_recorded


@pytest.mark.parametrize(
    ("kept", "low", "high", "text"),
    [
        ({1: True, 2: True, 4: True}, 4, None, "4 or more"),
        ({1: False}, 0, 1, "0"),
        ({1: True, 2: True, 4: False}, 2, 4, "2 to 3"),
        ({1: True, 2: True, 3: False, 4: False}, 2, 3, "2"),
        ({1: True, 2: False, 4: True}, 1, 2, "1"),  # what breaks the level is assumed to break it at larger numbers
        ({32: True, 34: False}, 32, 34, "32"),
        ({31: True, 33: False}, 31, 33, "31 to 32"),
    ],
)
def test_brackets(kept: dict[int, bool], low: int, high: int | None, text: str) -> None:
    bracket = bracket_of(kept)
    assert bracket == Bracket(low, high)
    assert bracket.text == text


def write_curve(
    path: Path,
    ttft_s: dict[tuple[str, int, int], float],
    level: str,
    ends_s: dict[int, list[float]] | None = None,
    synthetic: bool = True,
    programs: int | None = None,
) -> Path:
    """Write a sweep over agents at a time whose runs have these first tokens, by policy, number and seed."""
    groups = []
    for number in dict.fromkeys(number for _, number, _ in ttft_s):
        cells = [(policy, seed) for policy, at, seed in ttft_s if at == number]
        for policy, seed in cells:
            ends = (ends_s or {}).get(number, [6.0, 4.0])
            folder = path / f"w-{number}" / f"{policy}-seed{seed}"
            loop = {"arrivals": f"concurrency:{number}", "jps": None, "synthetic": synthetic}
            loop |= {} if programs is None else {"more": {"distinct_programs": programs}}
            write_recorded(folder, policy, seed, ends, ttft_s[policy, number, seed], **loop)
        names = [{"name": f"{policy}-seed{seed}", "policy": policy, "seed": seed} for policy, seed in cells]
        groups.append({"folder": f"w-{number}", "axes": {"workload": "w", "concurrency": number}, "cells": names})
    plot = {"x": "concurrency", "y": ["throughput_jobs_per_s", "ttft_p95_s"], "panels": [], "slo": level}
    head = {"schema": "continuum-sweep", "version": 1, "name": "w", "engine": "virtual", "command": ["c"]}
    write_json(path / "sweep.json", {**head, "plot": plot, "groups": groups})
    return path


@pytest.mark.parametrize(
    ("programs", "said"), [(1, "1 different program played"), (8, "8 different programs"), (20, "")]
)
def test_an_answer_that_rests_on_few_programs_says_so(tmp_path: Path, programs: int, said: str) -> None:
    times = {("vllm", number, 0): 1.0 for number in (1, 2)}
    capacity = capacity_of(read_sweep(write_curve(tmp_path / "c", times, "ttft_p95=5", programs=programs)))
    assert capacity is not None
    assert (f"Only {said}" in capacity.answer[1]) == bool(said)
    assert ("Only" in capacity.answer[1]) == bool(said)


def test_an_answer_has_the_agents_the_loss_and_the_newcomers(tmp_path: Path) -> None:
    """Eight programs arrive over 700 s and take 6 or 4 s; with 4 at a time they take 400 s more."""
    times = {("vllm", 1, 0): 1.0, ("vllm", 2, 0): 5.0, ("vllm", 4, 0): 5.1}
    times |= {("working-set", number, 0): 0.5 for number in (1, 2, 4)}
    ends = {4: [6.0, 4.0] * 4, 1: [6.0, 4.0] * 4, 2: [6.0, 4.0] * 4}
    ends[4][-1] = 404.0
    sweep = read_sweep(write_curve(tmp_path / "c", times, "ttft_p95=5", ends))
    capacity = capacity_of(sweep)
    assert capacity is not None
    head, rest = capacity.answer
    assert (
        head
        == "Agents at a time within TTFT P95 <= 5 s: 2 to 3 under vllm and 4 or more under working-set (m on 2 x g)."
    )
    loss = 1 - 704 / 1104
    assert f"With 4 vllm finishes 0.0072 programs/s, {loss:.0%} less than with 1 (0.0114)." in rest
    assert "in the median, 5.1 s (P95: 5.1 s) under vllm and 0.5 s (P95: 0.5 s) under working-set." in rest
    assert rest.endswith("One seed: other arrivals give other numbers.")
    table = capacity.table()
    assert [row[:2] for row in table.rows] == [[n, p] for n in ("1", "2", "4") for p in ("vllm", "working-set")]
    assert [row[-1] for row in table.rows] == ["yes", "yes", "yes", "yes", "no", "yes"]
    page = write_sweep_report(sweep).read_text()
    assert verdict_in(page) == f"{head} {rest}"
    write_tables(sweep)
    written = read_json(tmp_path / "c/summary.json")["capacity"]
    assert written["agents"]["vllm"] == {
        "by_seed": {"0": [2, 4]}, "agents": 2.0, "interval": None, "best": 1, "loss": pytest.approx(loss),
    }  # fmt: skip
    (throughput, first_tokens) = sweep_panels(sweep, read_plot(sweep.plot, sweep))
    assert (throughput.level, first_tokens.level) == (None, 5.0)
    assert [stem.x for stem in first_tokens.stems] == [2.0, 4.0]


def test_of_recorded_agents_the_tokens_are_counted(tmp_path: Path) -> None:
    """Two programs of 11 tokens over 104 s, or over 504 s."""
    times = {("vllm", number, 0): 1.0 for number in (1, 2)}
    capacity = capacity_of(read_sweep(write_curve(tmp_path / "c", times, "ttft_p95=5", {2: [6.0, 404.0]}, False)))
    assert capacity is not None
    assert "With 2 vllm generates 0 tokens/s, 79% less than with 1 (0)." in capacity.answer[1]


def test_seeds_have_brackets_of_their_own(tmp_path: Path) -> None:
    times = {("vllm", number, seed): 1.0 + seed * number for number in (1, 2, 3) for seed in range(3)}
    capacity = capacity_of(read_sweep(write_curve(tmp_path / "c", times, "ttft_p95=4")))
    assert capacity is not None
    (vllm,) = capacity.policies
    assert [bracket.text for bracket in vllm.by_seed.values()] == ["3 or more", "3 or more", "1"]
    assert vllm.text == "3 or more and 1 (by seed)"
    assert [row[-1] for row in capacity.table().rows] == ["yes", "2 of 3 seeds", "2 of 3 seeds"]
    capacity = capacity_of(read_sweep(tmp_path / "c", level="ttft_p95=2"))
    assert capacity is not None
    assert capacity.policies[0].text == "3 or more, 1 and 0 (by seed)"
    assert capacity.answer[1].endswith("3 seeds.")


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ([{8: True, 9: False}, {8: True, 9: True, 10: False}, {8: True, 9: True, 10: False}], "8.7 (7.2 to 10.1)"),
        ([{8: True, 12: False}, {8: True, 9: False}, {8: True, 9: False}], "8 to 11 and 8 (by seed)"),
        ([{8: True, 12: False}] * 3, "8 to 11"),
        ([{8: True, 9: False}] * 3, "8"),
        ([{8: True, 9: False}, {8: True, 9: True, 10: False}], "8 and 9 (by seed)"),
    ],
)
def test_an_interval_needs_three_seeds_that_know_their_numbers(kept: list[dict[int, bool]], text: str) -> None:
    brackets = {seed: bracket_of(each) for seed, each in enumerate(kept)}
    assert PolicyCapacity("vllm", brackets, {}).text == text


def test_a_level_that_nobody_keeps_and_one_that_all_keep(tmp_path: Path) -> None:
    times = {(policy, number, 0): 1.0 for policy in ("vllm", "continuum") for number in (1, 2)}
    sweep = read_sweep(write_curve(tmp_path / "c", times, "ttft_p95=0.5"))
    capacity = capacity_of(sweep)
    assert capacity is not None
    assert "0 under vllm and 0 under continuum" in capacity.answer[0]
    assert not capacity.stems()
    assert "With 2 vllm and continuum lose no throughput." in capacity.answer[1]
    every = capacity_of(read_sweep(tmp_path / "c", level="ttft_p95=1"))
    assert every is not None
    assert "2 or more under vllm and 2 or more under continuum" in every.answer[0]


def test_only_the_number_may_vary(tmp_path: Path) -> None:
    path = write_curve(tmp_path / "c", {("vllm", 1, 0): 1.0, ("vllm", 2, 0): 1.0}, "ttft_p95=1")
    plan = read_json(path / "sweep.json")
    plan["groups"][1]["axes"]["chunk_tokens"] = 512
    write_json(path / "sweep.json", plan)
    with pytest.raises(AnalysisError, match="plot: slo: chunk_tokens: only concurrency may vary"):
        capacity_of(read_sweep(path))


def test_compare_names_the_command_that_shows_a_sweep(tmp_path: Path) -> None:
    times = {("vllm", number, 0): 1.0 for number in (1, 2)}
    path = write_curve(tmp_path / "c", times, "ttft_p95=5")
    sweep = json.loads((path / "sweep.json").read_text())
    del sweep["plot"]["slo"]
    write_json(path / "sweep.json", sweep)
    assert f"points of one sweep, which `continuum-bench report {path}` shows" in refused("compare", path)
