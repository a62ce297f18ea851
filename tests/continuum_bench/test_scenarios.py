"""Scenarios by name: starts inside sessions, the windows that count, idle caps, and whether a result is comparable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_cli import bench, succeeded
from continuum_analysis.compare.runs import load_all
from continuum_analysis.compare.scenario import longest_idle_s, scenario_line, scenario_of
from continuum_analysis.records.facts import facts_of
from continuum_bench.options.run import ReplayOptions, RunOptions
from continuum_bench.workload.load import load_trace
from continuum_bench.workload.started import from_turn, under_way
from continuum_bench.workload.workload import load_workload
from continuum_traces.json_io import read_json
from continuum_traces.playing.conversation import Job
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.schema import Program, ToolCall, Turn, Workload
from fake_server import FakeServer, good
from recorded_runs import write_recorded

TURNS = tuple(Turn(100, 10, tool_calls=(ToolCall("ls", 2.0),)) for _ in range(4))


def test_a_program_goes_on_from_a_turn_with_its_whole_context() -> None:
    program = Program("p", TURNS, shared_prefix_id="s", shared_prefix_tokens=50)
    later = from_turn(program, 2)
    assert [turn.new_input_tokens for turn in later.turns] == [320, 100]
    assert later.prompt_tokens() == program.prompt_tokens()[2:]
    assert later.shared_prefix_tokens == 50


@pytest.mark.parametrize(
    ("shares", "turns"), [("0:0", {4}), ("0.25:0.25", {3}), ("0.99:0.99", {1}), ("1:1", {1}), ("0.25:0.75", {3, 2})]
)
def test_the_first_programs_of_a_loop_start_inside(shares: str, turns: set[int]) -> None:
    jobs = [Job(Program(f"p{n}", TURNS), 0.0) for n in range(40)]
    started = under_way(jobs, 30, shares, seed=7)
    assert {len(job.program.turns) for job in started[:30]} == turns
    assert [job.program for job in started[30:]] == [job.program for job in jobs[30:]]
    assert started == under_way(jobs, 30, shares, seed=7)


def test_sub_programs_of_turns_that_were_before_are_not_played() -> None:
    """The parent starts at its second turn: the child of the first turn, and its child, are over."""
    parent = Program("p", TURNS)
    children = [
        Program("a", TURNS, parent_id="p", parent_turn=0),
        Program("b", TURNS, parent_id="p", parent_turn=1),
        Program("a/c", TURNS, parent_id="a", parent_turn=3),
        Program("b/c", TURNS, parent_id="b", parent_turn=3),
    ]
    jobs = under_way([Job(each, 0.0) for each in (parent, *children)], 1, "0.25:0.25", 0)
    assert [(job.program.program_id, job.program.parent_turn) for job in jobs] == [("p", None), ("b", 0), ("b/c", 3)]


def test_idle_times_are_shortened_unless_a_sub_agent_runs_in_them(tmp_path: Path) -> None:
    turns = (Turn(100, 10, tool_calls=(ToolCall("ls", 30.0, 10.0),), gap_overhead_s=40.0), *TURNS)
    child = Program("p/a", TURNS, parent_id="p", parent_turn=1)
    write_programs(tmp_path / "t.jsonl", [Program("p", turns), child])
    capped = load_trace("t", ReplayOptions(traces=tmp_path / "t.jsonl", max_idle_s=1.0))
    assert [turn.gap_s for turn in capped.programs[0].turns] == pytest.approx([1.0, 2.0, 1.0, 1.0, 1.0])
    (call,) = capped.programs[0].turns[0].tool_calls
    assert (call.start_s, call.duration_s) == pytest.approx((10 / 80, 30 / 80))


@pytest.mark.parametrize(
    ("edges", "window"),
    [
        ({"warm_up": "1r"}, (1.0, 7.0)),  # two lanes: after the second answer
        ({"warm_up": "2r"}, (3.0, 7.0)),
        ({"cool_down": "lanes"}, (0.0, 6.0)),  # six programs, two lanes: the fifth end is followed by no start
        ({"warm_up": "1r", "cool_down": "lanes"}, (1.0, 6.0)),
        ({"warm_up": "1r", "time_limit_s": 50.0}, (1.0, 7.0)),  # all had ended before the limit
    ],
)
def test_windows_of_requests_and_lanes(tmp_path: Path, edges: dict[str, object], window: tuple[float, float]) -> None:
    """Programs of one turn end at 1, 1, 2, 3, 6 and 7 s."""
    ends = [1.0, 1.0, 2.0, 3.0, 6.0, 7.0]
    write_recorded(tmp_path / "r", "vllm", 0, ends, gap_s=0.0, ttft_s=0.1, arrivals="concurrency:2", **edges)
    (run,) = load_all([tmp_path / "r"])
    assert run.metrics.facts.window_s == window


def test_a_scenario_gives_options_that_the_user_did_not() -> None:
    given = RunOptions(scenario="agentx", concurrency=4, time_limit_s=1200.0)
    assert (given.start_within, given.warm_up) == ("0.25:0.75", "11r")
    assert (given.max_idle_s, given.max_idle_all_s) == (300.0, 10.0)
    assert given.time_limit_s == 1200.0
    assert RunOptions(scenario="mlperf-agentic", concurrency=4).cool_down == "lanes"


def test_what_breaks_a_scenario_s_rules_is_said(tmp_path: Path) -> None:
    write_programs(tmp_path / "t.jsonl", [Program(f"p{n}", TURNS) for n in range(3)])

    def broken(**options: object) -> object:
        given = ReplayOptions(traces=tmp_path / "t.jsonl", concurrency=2, **options)  # type: ignore[arg-type]
        return load_workload("replay", given, given).facts.rules_broken

    assert broken(scenario="agentx") == ()
    assert broken(scenario="agentx", start_within="0.1:0.2", max_idle_s=2.0) == (
        "--start-within is not 0.25:0.75",
        "--max-idle-s is not 300",
    )
    assert broken(scenario="mlperf-agentic", num_programs=4) == (
        "not a multiple of the trace's programs",
        "the accuracy of answers is not measured",
    )


@pytest.mark.parametrize(
    ("ends", "unfinished", "reasons"),
    [
        ([900.0], 0, []),
        ([899.0], 0, ["only 899 s were measured, 900 s are the least"]),
        ([100.0, 990.0], 0, []),  # the second begins 10 s after the end of the first
        ([99.9, 990.0], 0, []),  # as late as a timer may be
        ([99.8, 990.0], 0, ["no request ran for 10 s; the benchmark's client shortens that to 10 s"]),
        ([99.0, 991.0], 0, ["no request ran for 11 s; the benchmark's client shortens that to 10 s"]),
    ],
)
def test_bounds_of_agentx(tmp_path: Path, ends: list[float], unfinished: int, reasons: list[str]) -> None:
    write_recorded(tmp_path / "r", "vllm", 0, ends, gap_s=110.0, more={"scenario": "agentx", "rules_broken": []})
    scenario = scenario_of(load_all([tmp_path / "r"]))
    assert scenario == {"name": "agentx", "comparable": not reasons, "reasons": reasons}
    assert scenario_line(scenario).startswith(f"scenario agentx: comparable: {str(not reasons).lower()}")


@pytest.mark.parametrize(
    ("served_s", "reasons"),
    [(950.0, []), (949.0, ["no token came in the last 51 s"]), (0.0, ["only 0 s were measured"])],
)
def test_tokens_must_come_until_nearly_the_end(tmp_path: Path, served_s: float, reasons: list[str]) -> None:
    """The first program ends after 1 s, with which the warm-up is over; the last is in the queue at 1,001 s. If
    nothing ended, the warm-up never did."""
    more = {"scenario": "agentx", "rules_broken": []}
    loop = {"arrivals": "concurrency:1", "warm_up": "1r", "time_limit_s": 1001.0, "ttft_s": 0.1}
    ends = [1.0, served_s, 5000.0] if served_s else [5000.0]
    write_recorded(tmp_path / "r", "vllm", 0, ends, gap_s=1.0, unfinished=1, more=more, **loop)
    scenario = scenario_of(load_all([tmp_path / "r"]))
    assert scenario is not None
    assert [reason.partition(",")[0] for reason in scenario["reasons"]] == reasons


def test_runs_without_a_scenario_have_none(tmp_path: Path) -> None:
    write_recorded(tmp_path / "r", "vllm", 0, [1.0])
    assert scenario_of(load_all([tmp_path / "r"])) is None
    assert facts_of([]).window_s is None
    assert Workload().more == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ((), None),
        (("--time-limit-s", 800), "s were measured, 900 s are the least"),
        (("--num-programs", 4), "s were measured, 900 s are the least"),
        (("--max-idle-all-s", 20), "--max-idle-all-s is not 10"),
    ],
)
def test_a_scenario_from_end_to_end(more: tuple[object, ...], reason: str | None, tmp_path: Path) -> None:
    """Four sessions of 40 s, two at a time. They are played again until the time is over."""
    write_programs(tmp_path / "t.jsonl", [Program(f"p{n}", TURNS * 5) for n in range(4)])
    arguments = ["replay", tmp_path / "t.jsonl", "--scenario", "agentx", "--concurrency", 2, "--policy", "vllm"]
    out = bench(*map(str, (*arguments, *more)), "--out", str(tmp_path / "out"), "--json")
    assert out.exit_code == 0, out.output
    scenario = json.loads(out.stdout)["scenario"]
    assert (scenario["name"], scenario["comparable"]) == ("agentx", reason is None)
    assert [each for each in scenario["reasons"] if reason is None or reason not in each] == []


def test_sessions_are_repeated_until_the_time_limit_with_their_sub_agents(tmp_path: Path) -> None:
    """A session takes at least 8.04 s, and its sub-agent runs meanwhile: two lanes play 2 x 80 s of them."""
    sessions = [Program("p", TURNS), Program("p/a", TURNS, parent_id="p", parent_turn=1)]
    write_programs(tmp_path / "t.jsonl", sessions)
    options = {"traces": tmp_path / "t.jsonl", "concurrency": 2, "scenario": "agentx", "time_limit_s": 80.0}
    for given, programs in (({}, 2 * 22), ({"num_programs": 6}, 6), ({"scenario": "mlperf-agentic"}, 2)):
        replay = ReplayOptions(**{**options, **given})  # type: ignore[arg-type]
        assert load_workload("replay", replay, replay).facts.programs == programs


def test_pauses_are_shortened_if_no_request_is_open_on_a_server(tmp_path: Path) -> None:
    """Three programs, two at a time, with tools of an hour: each pause is the allowed one."""
    turns = tuple(Turn(100, 5, tool_calls=(ToolCall("make", 3600.0),)) for _ in range(3))
    write_programs(tmp_path / "t.jsonl", [Program(f"p{n}", turns) for n in range(3)])
    with FakeServer("vllm", handler=good) as server:
        words = ["--concurrency", 2, "--max-idle-all-s", 0.2, "--out", tmp_path / "out", "--no-report"]
        done = bench("replay", tmp_path / "t.jsonl", "--base-url", server.url, *words)
    assert done.exit_code == 0, done.output
    (run,) = load_all([tmp_path / "out" / "vllm-seed0"])
    assert 0.2 <= longest_idle_s(run.metrics.facts) < 3600.0
    assert run.metrics.values["programs_finished"] == 3
    engine = read_json(tmp_path / "out" / "vllm-seed0" / "engine.json")
    assert engine["skipped_s"] > 3 * 3600.0
    assert engine["notes"] == [f"{engine['skipped_s']:.0f} s without any request were skipped (--max-idle-all-s)"]


def test_pauses_are_shortened_in_virtual_time(tmp_path: Path) -> None:
    turns = tuple(Turn(100, 5, tool_calls=(ToolCall("make", 3600.0),)) for _ in range(3))
    write_programs(tmp_path / "t.jsonl", [Program(f"p{n}", turns) for n in range(3)])
    words = ["--concurrency", 2, "--max-idle-all-s", 10, "--policy", "vllm", "--out", tmp_path / "out", "--no-report"]
    succeeded("replay", tmp_path / "t.jsonl", *words)
    (run,) = load_all([tmp_path / "out" / "vllm-seed0"])
    assert longest_idle_s(run.metrics.facts) == pytest.approx(10.0)
    assert all(program.alone_s <= program.jct_s + 1e-6 for program in run.metrics.facts.programs)
    assert "were skipped (--max-idle-all-s)" in read_json(tmp_path / "out" / "vllm-seed0" / "engine.json")["notes"][0]
