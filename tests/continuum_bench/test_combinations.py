"""Options together: whatever two or three a user gives, a replay ends with a table that other commands read again, or
with one line before anything is played. ``make fuzz`` draws hundreds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_cli import bench
from combinations import assert_all_drawn, assert_one_line, assert_read_again, folder, words_of
from continuum_bench.errors import OptionError
from continuum_bench.options.run import ReplayOptions, RunOptions
from continuum_bench.sweep.grid import Arm
from continuum_bench.sweep.plan import _check_caching
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records.run_dir import EVENTS, TURNS
from continuum_traces.schema import Program, ToolCall, Turn
from hypothesis import HealthCheck, given, settings

CALL = (ToolCall("ls", 0.5),)
LONG = (Turn(2500, 40, tool_calls=CALL), Turn(600, 30, tool_calls=CALL), Turn(10, 5))
SHORT = (Turn(1500, 9, tool_calls=CALL), Turn(9, 9))
PROGRAMS = (
    *(Program(f"p{number}", LONG) for number in range(4)),
    Program("child", (Turn(700, 20, tool_calls=CALL), Turn(80, 9)), parent_id="p0", parent_turn=0, parent_gap_s=0.1),
    Program("grandchild", (Turn(300, 20),), parent_id="child", parent_turn=0),
    *(Program(f"s{number}", SHORT, shared_prefix_id="head", shared_prefix_tokens=900) for number in range(2)),
    Program("once", (Turn(500, 12),)),
    Program("other", (Turn(400, 12, tool_calls=CALL), Turn(90, 9)), model="another"),
)
"""Sub-agents, a shared prefix, a one-off, two models and recorded arrivals, which together need more than the pool."""
VALUES: dict[str, tuple[str, ...]] = {
    "--num-programs": ("3", "14"),
    "--tokens-reading": ("context", "new"),
    "--turn-scale": ("2",),
    "--length-scale": ("0.5", "1.5"),
    "--shared-prefix": ("300",),
    "--compact-at": ("2000",),
    "--max-think-s": ("0.1",),
    "--skip-invalid": ("",),
    "--jps": ("2", "30"),
    "--arrivals": ("poisson", "uniform", "recorded", "recorded:0.5", "concurrency:3", "steps:2", "gamma:2"),
    "--concurrency": ("1", "4"),
    "--tool-times": ("recorded", "lognormal", "x2"),
    "--hints": ("none", "tool_s", "kv_ttl:60", "all"),
    "--hint-error": ("0.5",),
    "--tags": ("full", "none", "ids"),
    "--time-limit-s": ("3", "1000"),
    "--warm-up": ("2", "1s"),
    "--cool-down": ("2",),
    "--policy": ("vllm", "working-set", "continuum,program-fcfs", "static-ttl,vllm", "none"),
    "--policy-option": ("ttl_s=3", "continuum.ttl_s=1", "nonsense=1"),
    "--seed": ("0", "7"),
    "--seeds": ("2",),
    "--slo": ("ttft=2s", "itl=1s", "jct=10x,tpot=50ms"),
    "--jobs": ("1",),
    "--gpu": ("a100-80gb",),
    "--model": ("qwen2.5-0.5b", "llama-3.1-70b"),
    "--tp": ("1", "2"),
    "--pp": ("1", "2"),
    "--step-overhead-ms": ("0", "3"),
    "--step-times": ("low", "high"),
    "--max-num-seqs": ("1", "2"),
    "--chunk-tokens": ("256", "4000"),
    "--kv-blocks": ("250", "400"),
    "--gpu-memory-utilization": ("0.5",),
    "--block-size": ("16", "32"),
    "--pins-yield-to": ("policy", "any"),
    "--one-offs": ("first", "order"),
    "--recognise": ("ids", "prompts", "none"),
    "--first-token-s": ("0.5",),
    "--max-ttl-s": ("0", "3"),
    "--no-prefix-caching": ("",),
    "--vllm": ("0.32.0",),
    "--offload": ("dram-1", "dram-1+ssd-2"),
    "--replicas": ("2", "3"),
    "--router": ("affinity", "round-robin"),
    "--token-times": ("",),
    "--max-idle-all-s": ("0.05", "1"),
    "--no-report": ("",),
    "--json": ("",),
    "--quiet": ("",),
}
ELSEWHERE = "--out --format --print-config --how-many --until --profile "
ELSEWHERE += "--max-idle-s --scenario --speculative --start-within"
"""What is not drawn: where the runs go, what another format would be, what plays nothing or many runs, and a file."""


def test_every_option_of_a_replay_is_drawn() -> None:
    assert_all_drawn(ReplayOptions, VALUES, ELSEWHERE)


def replay(words: list[str]) -> None:
    with folder() as here:
        arrivals = (replace(program, arrival_s=0.3 * number) for number, program in enumerate(PROGRAMS))
        write_programs(here / "t.jsonl", list(arrivals))
        rate = [] if {"--jps", "--arrivals", "--concurrency"} & {*words} else ["--jps", "8"]
        pool = [] if "--kv-blocks" in words else ["--kv-blocks", "300"]
        policies = [] if "--policy" in words else ["--policy", "vllm,working-set"]
        given = [*rate, *pool, *policies, *words]
        done = bench("replay", here / "t.jsonl", *given, "--out", here / "out")
        if done.exit_code == 2:
            assert_one_line(done, given)
            played = [path for name in (TURNS, EVENTS) for path in here.rglob(name) if path.stat().st_size]
            assert played == [], done.output
            return
        assert done.exit_code == 0, repr(done.exception) + done.output
        assert_read_again(here / "out", "compare", "analyze", "report")


@pytest.mark.slow
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(words_of(VALUES))
def test_options_together(words: list[str]) -> None:
    replay(words)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        "--no-prefix-caching --policy vllm,working-set",
        "--no-prefix-caching --policy vllm",
        "--arrivals recorded --replicas 2",
        "--policy vllm,program-fcfs,working-set --jps 5",
    ],
)
def test_options_that_did_not_go_together(words: str) -> None:
    replay(words.split())


def test_only_vllm_runs_without_a_prefix_cache() -> None:
    arms = [Arm(name, name) for name in ("vllm", "vllm+offload", "working-set")]
    _check_caching(RunOptions(), arms)
    _check_caching(RunOptions(no_prefix_caching=True), arms[:2])
    with pytest.raises(OptionError, match=r"^--no-prefix-caching: policy working-set .* only vllm can run$"):
        _check_caching(RunOptions(no_prefix_caching=True), arms)
