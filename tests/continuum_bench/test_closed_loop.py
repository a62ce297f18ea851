"""Closed loops in virtual time: who starts when, what stops a run, and which turns count."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from bench_cli import succeeded
from continuum_analysis.metrics import analyze_run
from continuum_bench.live.processes import _share
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.workload import load_workload
from continuum_traces.playing.closed_loop import ClosedLoop, Lanes
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_arrivals, read_turns
from continuum_traces.schema import Program, Turn, TurnRecord

SMALL = "swebench --length-scale 0.1 --policy working-set --no-report"


def run(out: Path, options: str) -> Path:
    succeeded(f"{SMALL} --num-programs 7 {options} --out", out)
    return out / "working-set-seed0"


@pytest.fixture(scope="module")
def three_at_once(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[float, float]]:
    return spans(run(tmp_path_factory.mktemp("three") / "run", "--arrivals concurrency:3"))


def spans(path: Path) -> list[tuple[float, float]]:
    """When each program starts and ends, in the order in which they start."""
    turns: dict[str, list[TurnRecord]] = {}
    for turn in read_turns(path):
        turns.setdefault(turn.program_id, []).append(turn)
    return sorted((min(t.due_s for t in each), max(t.finish_s or 0.0 for t in each)) for each in turns.values())


def test_the_loop() -> None:
    lanes = ClosedLoop("abcde", Lanes(2, ramp_s=4.0))
    assert lanes.begin() == [("a", 0.0), ("b", 2.0)]
    assert [lanes.ended(at_s) for at_s in (5.0, 6.0, 7.0, 8.0)] == [[("c", 5.0)], [("d", 6.0)], [("e", 7.0)], []]
    steps = ClosedLoop("abcde", Lanes(2, in_steps=True, pause_s=1.0))
    assert steps.begin() == [("a", 0.0), ("b", 0.0)]
    ends = [steps.ended(at_s) for at_s in (9.0, 5.0, 12.0, 13.0, 20.0)]  # told in any order
    assert ends == [[], [("c", 10.0), ("d", 10.0)], [], [("e", 14.0)], []]


def test_a_program_starts_when_another_ends(three_at_once: list[tuple[float, float]], tmp_path: Path) -> None:
    for found in (three_at_once, spans(run(tmp_path / "run", "--concurrency 3 --replicas 2"))):
        assert [start for start, _ in found[:3]] == [0.0] * 3
        ends = sorted(end for _, end in found)
        assert [start for start, _ in found[3:]] == pytest.approx(ends[:4])


def test_a_step_starts_when_all_of_the_one_before_have_ended(tmp_path: Path) -> None:
    found = spans(run(tmp_path / "run", "--arrivals steps:3:10"))
    steps = [found[:3], found[3:6], found[6:]]
    for before, after in pairwise(steps):
        assert [start for start, _ in after] == pytest.approx([max(end for _, end in before) + 10.0] * len(after))


def test_a_limit_stops_the_run_and_edges_leave_turns_out(
    three_at_once: list[tuple[float, float]], tmp_path: Path
) -> None:
    limit_s = three_at_once[4][0] + 1.0  # five have started
    path = run(tmp_path / "cut", f"--arrivals concurrency:3 --time-limit-s {limit_s} --warm-up 5s --cool-down 2s")
    assert len(list(read_arrivals(path))) == 5
    turns = list(read_turns(path))
    assert any(turn.error == "stopped: the run ended" for turn in turns)
    facts = analyze_run(path).facts
    assert facts.window_s == pytest.approx((5.0, limit_s - 2.0))
    counted = [turn for turn in turns if turn.error is None and 5.0 <= turn.due_s < limit_s - 2.0]
    assert 0 < len(facts.turns) == len(counted) < len(turns)


def test_think_time_is_cut(tmp_path: Path) -> None:
    trace = tmp_path / "chat.jsonl"
    write_programs(trace, [Program("p", (Turn(100, 5, gap_overhead_s=50.0),) * 3)])
    options = TraceOptions(traces=trace, max_think_s=7.0)
    (job,) = load_workload("trace", options, ArrivalOptions(1.0)).jobs(0)
    assert [turn.gap_s for turn in job.program.turns[:-1]] == [7.0, 7.0]


@pytest.mark.parametrize(("number", "shares"), [(6, [2, 2, 2]), (7, [3, 2, 2]), (8, [3, 3, 2])])
def test_load_processes_divide_the_programs_at_a_time(number: int, shares: list[int]) -> None:
    lanes = [_share(Lanes(number, ramp_s=4.0), index, 3) for index in range(3)]
    assert lanes == [Lanes(share, ramp_s=4.0) for share in shares]
