"""Sub-programs start when their parent's turn has ended, whatever plays them; only root programs arrive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_cli import bench, succeeded
from continuum_bench.options.run import ArrivalOptions, TraceOptions
from continuum_bench.workload.workload import load_workload
from continuum_traces.playing.sub_programs import parents_of
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_turns, write_rows
from continuum_traces.schema import Program, ToolCall, Turn, TurnRecord
from fake_server import FakeServer, good
from small_replays import replay, run_of

TURNS = (Turn(200, 8, tool_calls=(ToolCall("Task", 0.3),)), Turn(40, 8), Turn(40, 8))
FAMILY = (
    Program("root", TURNS),
    Program("child", TURNS[:2], parent_id="root", parent_turn=0, parent_gap_s=0.125),
    Program("grandchild", TURNS[:1], parent_id="child", parent_turn=1),
    Program("late", TURNS[:1], parent_id="root", parent_turn=2, parent_gap_s=0.25),
    Program("alone", TURNS),
)
LATER = [(each.program_id, each.parent_id, each.parent_turn, each.parent_gap_s) for each in FAMILY[1:4]]


def family(folder: Path) -> Path:
    write_programs(folder / "family.jsonl", FAMILY)
    return folder / "family.jsonl"


def check_starts(run: Path, copies: int) -> dict[tuple[str, int], TurnRecord]:
    turns = {(turn.program_id, turn.turn): turn for turn in read_turns(run)}
    assert len(turns) == copies * sum(len(each.turns) for each in FAMILY)
    for salt in ("", "#1")[:copies]:
        for name, parent, turn, gap_s in LATER:
            ended = turns[f"{parent}{salt}", turn or 0].finish_s
            assert ended is not None
            assert turns[f"{name}{salt}", 0].due_s == pytest.approx(ended + gap_s)
    return turns


def check_one_family_at_a_time(turns: dict[tuple[str, int], TurnRecord]) -> None:
    """The next root starts when a root and all its sub-programs have ended."""
    roots = {f"{name}{salt}" for name in ("root", "alone") for salt in ("", "#1")}
    families = [[turn for (name, _), turn in turns.items() if family_of(name) == root] for root in sorted(roots)]
    spans = sorted((min(turn.due_s for turn in each), max(turn.finish_s or 0.0 for turn in each)) for each in families)
    assert [begin for begin, _ in spans] == pytest.approx([0.0, *(end for _, end in spans[:-1])])


def family_of(name: str) -> str:
    program, _, copy = name.partition("#")
    return ("alone" if program == "alone" else "root") + (f"#{copy}" if copy else "")


@pytest.mark.parametrize("how", [("--jps", 1), ("--concurrency", 1), ("--concurrency", 2, "--replicas", 2)])
def test_in_virtual_time(how: tuple[object, ...], tmp_path: Path) -> None:
    run = ("--policy", "vllm", "--num-programs", 10, "--no-report", "--out", tmp_path / "out", *how)
    said = succeeded("replay", family(tmp_path), *run).stderr
    turns = check_starts(tmp_path / "out/vllm-seed0", 2)
    if how == ("--concurrency", 1):
        check_one_family_at_a_time(turns)
    assert "sub-program" not in said


@pytest.mark.parametrize("processes", [1, 2])
def test_on_a_server(processes: int, tmp_path: Path) -> None:
    with FakeServer("vllm", handler=good) as server:
        words = (family(tmp_path), server.url, tmp_path / "out", "--arrivals", "concurrency:2")
        done = replay(*words, "--processes", processes)
    assert done.exit_code == 0, done.output
    check_starts(run_of(tmp_path / "out"), 1)


def test_on_a_server_the_next_session_starts_when_the_whole_tree_has_ended(tmp_path: Path) -> None:
    with FakeServer("vllm", handler=good) as server:
        done = replay(family(tmp_path), server.url, tmp_path / "out", "--arrivals", "concurrency:1")
    assert done.exit_code == 0, done.output
    turns = check_starts(run_of(tmp_path / "out"), 1)
    late, root, alone = (turns[name].finish_s or 0.0 for name in (("late", 0), ("root", 2), ("alone", 2)))
    first, second = sorted([turns["root", 0].due_s, turns["alone", 0].due_s])
    assert root < late
    assert second >= (late if turns["root", 0].due_s == first else alone)


def test_programs_whose_parent_s_turn_is_not_played_are_roots(tmp_path: Path) -> None:
    turns = TURNS[:1]
    programs = [
        Program("p", turns),
        Program("unknown", turns, parent_id="p"),
        Program("turn", turns, parent_id="p", parent_turn=1),
        Program("parent", turns, parent_id="q", parent_turn=0),
        Program("self", turns, parent_id="self", parent_turn=0),
        Program("a", turns, parent_id="b", parent_turn=0),
        Program("b", turns, parent_id="a", parent_turn=0),
        Program("child", turns, parent_id="p", parent_turn=0),
        Program("below", turns, parent_id="a", parent_turn=0),
    ]
    assert parents_of(programs) == {7: 0}
    write_programs(tmp_path / "t.jsonl", programs)
    source = load_workload("t", TraceOptions(traces=tmp_path / "t.jsonl", num_programs=16), ArrivalOptions(1.0))
    jobs = source.jobs(0)
    assert len({job.program_id for job in jobs}) == 16
    started = {job.program_id: job.program.parent_id for job in jobs if job.program.parent_turn is not None}
    assert started == {"child": "p"}  # of p's two plays the second is without it: 16 programs are not 18
    assert any("7 sub-programs: the parent's turn that started it is unknown" in line for line in source.assumptions)


def test_a_negative_gap_is_refused(tmp_path: Path) -> None:
    write_programs(tmp_path / "t.jsonl", [Program("p", TURNS, parent_id="q", parent_turn=0, parent_gap_s=-1.0)])
    assert "parent_gap_s: -1.0 is below 0" in bench("traces", "validate", tmp_path / "t.jsonl").output


def test_policies_are_compared_on_the_arrivals_of_roots(tmp_path: Path) -> None:
    """Sub-programs start when a turn ends, at instants that depend on the policy. Moved roots are still refused.

    A parent's second turn starts them. Its KV is held under one policy and evicted under the other."""
    call = (ToolCall("Task", 1.0),)
    programs = [
        each
        for name, first in (("a", 2400), ("b", 3200), ("c", 2000))
        for each in (
            Program(name, (*(Turn(tokens, 50, tool_calls=call) for tokens in (first, 300)), Turn(300, 50))),
            Program(f"sub-{name}", (Turn(1800, 30),), parent_id=name, parent_turn=1),
        )
    ]
    write_programs(tmp_path / "t.jsonl", programs)
    command = "replay --jps 5 --gpu a100-80gb --kv-blocks 300 --policy vllm,working-set"
    assert "working-set" in succeeded(command, tmp_path / "t.jsonl", "--out", tmp_path / "r").stdout
    starts = [
        {turn.program_id: turn.due_s for turn in read_turns(tmp_path / f"r/{policy}-seed0") if turn.turn == 0}
        for policy in ("vllm", "working-set")
    ]
    moved = {name for name in starts[0] if starts[0][name] != starts[1][name]}
    assert moved
    assert moved <= {"sub-a", "sub-b", "sub-c"}
    succeeded("compare", tmp_path / "r")
    turns = tmp_path / "r/working-set-seed0/turns.jsonl"
    later = [replace(turn, due_s=turn.due_s + (turn.program_id == "b") * 1.0) for turn in read_turns(turns.parent)]
    turns.unlink()
    write_rows(turns, later)
    assert "program 'b' arrives" in bench("compare", tmp_path / "r").output
