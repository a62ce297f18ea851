"""Sources in other formats, played without an import before: what was assumed of them is said wherever numbers are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_cli import bench, succeeded
from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.schema import Program, Turn
from recorded_runs import flags_in

SAMPLES = Path(__file__).parents[1] / "continuum_traces" / "samples"
UNKNOWN = "assumed: 6 tool calls: duration unknown, taken as 0 s (--tool-times constant:2)"


def played(source: Path, out: Path, *more: object) -> str:
    run = ("--policy", "vllm", "--num-programs", 4, "--jps", 1, "--out", out)
    return succeeded("replay", source, *run, *more).stderr


def test_replay_and_report_say_what_was_assumed(tmp_path: Path) -> None:
    source = SAMPLES / "failed-and-parallel"
    text = played(source, tmp_path / "r")
    assert UNKNOWN in text.splitlines()
    assert "program 'multi_turn_base_8': no token counts" in text
    page = (tmp_path / "r/report.html").read_text()
    assert (UNKNOWN.replace("--", "") in page, flags_in(page)) == (True, [])
    assert UNKNOWN in json.loads((tmp_path / "r/summary.json").read_text())["warnings"]
    lines = json.loads((tmp_path / "r/vllm-seed0/manifest.json").read_text())["workload"]["assumptions"]
    assert any(line.startswith("1 turn: prompt grown by less than the answer") for line in lines)
    assert any(line.startswith("1 program: left out of the source") for line in lines)


def test_known_tool_times_are_not_assumed(tmp_path: Path) -> None:
    text = played(SAMPLES / "failed-and-parallel", tmp_path / "r", "--tool-times", "constant:1")
    assert "duration unknown" not in text


@pytest.mark.parametrize("children", [0, 2])
def test_replay_says_which_sub_programs_start_by_themselves(tmp_path: Path, children: int) -> None:
    turns = (Turn(100, 5), Turn(10, 5))
    programs = [Program("p", turns), *(Program(f"c{n}", turns, parent_id="p") for n in range(children))]
    write_programs(tmp_path / "t.jsonl", programs, Assumptions())
    text = played(tmp_path / "t.jsonl", tmp_path / "r")
    line = "assumed: 2 sub-programs: the parent's turn that started it is unknown or not played: started by --arrivals"
    assert text.count(line) == (2 if children else 0)  # before the run, and below its table


def test_an_imported_trace_carries_what_was_assumed(tmp_path: Path) -> None:
    copy = tmp_path / "t.jsonl.gz"
    assert UNKNOWN in succeeded("traces import", SAMPLES / "failed-and-parallel", copy).stderr
    one = succeeded("traces import", SAMPLES / "table/t.csv", tmp_path / "one.jsonl").stderr
    assert "source: numeric (it has program_id, prompt_tokens, output_tokens, turn, tools)\n" in one
    assert UNKNOWN in succeeded("traces stats", copy).stderr
    assert UNKNOWN in succeeded("traces fit", copy, tmp_path / "p.json").stderr
    assert played(copy, tmp_path / "r").count(UNKNOWN) == 2  # before the run, and below its table


@pytest.mark.slow
@pytest.mark.parametrize("name", ["claude-sessions", "calls", "sub-trajectories", "table-of-sessions"])
def test_what_can_be_imported_can_be_played(tmp_path: Path, name: str) -> None:
    played(SAMPLES / name, tmp_path / "r", "--skip-invalid")
    assert json.loads((tmp_path / "r/summary.json").read_text())["policies"]["vllm"]["programs_finished"] == 4


def test_a_folder_of_bad_files_is_an_error_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/cut.traj.json").write_text('{"messages": [')
    (tmp_path / "runs/empty.json").write_text("")
    done = bench("traces import", tmp_path / "runs", tmp_path / "t.jsonl")
    assert done.exit_code == 2
    left_out, empty, error = done.stderr.splitlines()
    assert left_out.startswith(f"left out: {tmp_path}/runs/cut.traj.json: not JSON")
    assert empty == f"left out: {tmp_path}/runs/empty.json: the file is empty"
    assert error.startswith(f"error: {tmp_path}/runs: no file in a known format in it")


def test_an_interrupted_import_leaves_no_file(tmp_path: Path) -> None:
    def interrupted() -> Iterator[Program]:
        yield Program("p", (Turn(10, 5),))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_programs(tmp_path / "t.jsonl.gz", interrupted(), Assumptions())
    assert list(tmp_path.iterdir()) == []
