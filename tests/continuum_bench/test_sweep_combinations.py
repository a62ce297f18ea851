"""Axes and options of ``sweep`` together: it ends with a table that other commands read again, or with one line before
anything is played. A cell whose turns do not fit the KV pool is named. ``make fuzz`` draws hundreds."""

from __future__ import annotations

import pytest
from bench_cli import bench
from combinations import assert_all_drawn, assert_one_line, assert_read_again, folder, words_of
from continuum_bench.options.sweep import SweepOptions
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records.run_dir import EVENTS, TURNS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_combinations import PROGRAMS
from test_combinations import VALUES as REPLAYED

OPTIONS = {
    "--jobs": ("1", "0"),
    "--quiet": ("",),
    "--no-report": ("",),
    "--json": ("",),
    "--predict": ("",),
    "--dry-run": ("",),
}
ELSEWHERE = "--set --out --ray-address"
NOT_AXES = ("--no-report", "--json", "--quiet", "--jobs")
AXES = {option[2:].replace("-", "_"): values for option, values in REPLAYED.items() if option not in NOT_AXES}
AXES |= {"engine": ("virtual", "nonsense"), "nonsense": ("1",), "policy": (*REPLAYED["--policy"], "vllm,vllm")}
BASE = {"workload": "t.jsonl", "jps": "8", "kv_blocks": "300", "policy": "vllm,working-set"}


def sweep(words: list[str], axes: list[str]) -> None:
    given_axes = {axis: value or "true" for axis, value in zip(axes[::2], axes[1::2], strict=True)}
    rate = {"arrivals", "concurrency"} & {*given_axes}
    base = {axis: value for axis, value in BASE.items() if axis not in given_axes and not (rate and axis == "jps")}
    with folder() as here, pytest.MonkeyPatch.context() as patched:
        patched.chdir(here)
        write_programs(here / "t.jsonl", list(PROGRAMS))
        sets = [word for axis, value in {**base, **given_axes}.items() for word in ("--set", f"{axis}={value}")]
        jobs = [] if "--jobs" in words else ["--jobs", "1"]
        done = bench("sweep", *sets, *jobs, *words, "--out", here / "out")
        played = [path for name in (TURNS, EVENTS) for path in here.rglob(name) if path.stat().st_size]
        if done.exit_code == 2:
            assert_one_line(
                done, [*words, *jobs, "--set", *(f"--{axis.replace('_', '-')}" for axis in {**base, **given_axes})]
            )
            assert played == [], done.output
            return
        unplayed = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert done.exit_code == bool(unplayed), repr(done.exception) + done.output
        assert all("tokens do not fit" in line for line in unplayed), done.output
        if unplayed:  # such a cell is named, and the others are played
            return
        assert bool(played) != ("--dry-run" in words)
        if played:
            assert_read_again(here / "out", "compare", "report")


def test_every_option_of_a_sweep_is_drawn() -> None:
    assert_all_drawn(SweepOptions, OPTIONS, ELSEWHERE)


def axes_of(most: int) -> st.SearchStrategy[list[str]]:
    axis = st.sampled_from(sorted(AXES)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(AXES[name])))
    return st.lists(axis, min_size=1, max_size=most, unique_by=lambda pair: pair[0]).map(
        lambda pairs: [word for pair in pairs for word in pair]
    )


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.just([]) | words_of(OPTIONS, 2), axes_of(3))
def test_axes_of_a_sweep_together(words: list[str], axes: list[str]) -> None:
    sweep(words, axes)
