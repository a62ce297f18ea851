"""Run directories: round trips, torn lines, refusals."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from continuum_traces import run_dir
from continuum_traces.run_dir import RunDirError
from continuum_traces.schema import ArrivalRecord, Hardware, KvPool, Manifest, SchedulerEvent, TurnRecord, Workload

EVENTS = [
    SchedulerEvent(0.5, "arrive", "p", 0, "r", prompt_tokens=10),
    SchedulerEvent(1.5, "unpin", "p", 0, reason="hit"),
]


def test_rows_round_trip(tmp_path: Path) -> None:
    experiment, tmp_path = tmp_path, tmp_path / "run"
    tmp_path.mkdir()
    run_dir.write_rows(tmp_path / run_dir.EVENTS, EVENTS)
    turns = [TurnRecord("p", 0, 0.0, 0.1, tools=("ls", "cat"), is_last=True)]
    run_dir.write_rows(tmp_path / run_dir.TURNS, turns)
    assert list(run_dir.read_events(tmp_path)) == EVENTS
    assert list(run_dir.read_turns(tmp_path)) == turns
    assert run_dir.runs_below(tmp_path) == [tmp_path]
    assert run_dir.runs_below(experiment) == [tmp_path]


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / run_dir.EVENTS).write_bytes(b"\xff\xfe\n")
    with pytest.raises(run_dir.RunDirError, match=r"scheduler_timestamps.jsonl: not UTF-8 text after line 0"):
        list(run_dir.read_events(tmp_path))


def test_a_torn_last_line_is_ignored_and_a_bad_one_named(tmp_path: Path) -> None:
    file = tmp_path / run_dir.EVENTS
    run_dir.write_rows(file, EVENTS)
    with file.open("a") as out:
        out.write('{"t": 2.0, "event": "arr')
    assert list(run_dir.read_events(tmp_path)) == EVENTS
    with file.open("a") as out:
        out.write("\n")
    with pytest.raises(RunDirError, match=r"scheduler_timestamps.jsonl:3: "):
        list(run_dir.read_events(tmp_path))


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    (tmp_path / run_dir.EVENTS).write_text('{"t":1,"event":"pin","program_id":"p","turn":0,"colour":"red"}\n')
    with pytest.raises(RunDirError, match="colour"):
        list(run_dir.read_events(tmp_path))


def test_lines_are_on_disk_when_flushed(tmp_path: Path) -> None:
    with run_dir.JsonLines(tmp_path / "x.jsonl", flush_every=2) as out:
        out.write(EVENTS[0])
        assert (tmp_path / "x.jsonl").read_text() == ""
        out.write(EVENTS[1])
        assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 2


def test_manifest_round_trip(tmp_path: Path) -> None:
    manifest = Manifest(
        policy="vllm",
        seed=3,
        command=("a", "b"),
        workload=Workload(jps=0.1, more={"web": {"kind": "live"}}),
        notes=("n",),
    )
    run_dir.write_manifest(tmp_path, manifest)
    assert run_dir.read_manifest(tmp_path) == manifest
    assert json.loads((tmp_path / run_dir.MANIFEST).read_text())["workload"] == {"jps": 0.1, "web": {"kind": "live"}}
    with pytest.raises(RunDirError, match="holds a run already"):
        run_dir.create(tmp_path)


def test_a_run_goes_on_as_the_same_run_only(tmp_path: Path) -> None:
    began = Manifest(policy="vllm", created="then", workload=Workload(jps=0.1), hardware=Hardware(gpu="a100"))
    slower = replace(began, workload=Workload(jps=0.2))
    assert run_dir.begin(tmp_path, slower) == slower
    assert run_dir.begin(tmp_path, began) == began  # nothing was recorded
    (tmp_path / run_dir.TURNS).write_text("{}\n")
    assert run_dir.begin(tmp_path, replace(began, created="now", command=("again",), notes=("resumed",))) == began
    assert run_dir.begin(tmp_path, slower, may_differ=("workload.jps",)) == began
    for other, named in (
        (replace(began, policy="continuum"), "policy differs: 'vllm' against 'continuum'"),
        (slower, "workload.jps differs: 0.1 against 0.2"),
        (replace(began, hardware=Hardware(kv_capacity=KvPool(tokens=8))), "hardware.gpu differs: 'a100' against None"),
    ):
        with pytest.raises(RunDirError, match=re.escape(f"{tmp_path}: holds another run: {named} now")):
            run_dir.begin(tmp_path, other)


@pytest.mark.parametrize(
    ("manifest", "named"),
    [
        ({"workload": {"jps": "fast"}}, "workload.jps: 'fast' is not a number"),
        ({"hardware": {"kv_capacity": {"tokens": 1.5}}}, "hardware.kv_capacity.tokens: 1.5 is not a whole number"),
        ({"engine_options": [1]}, "engine_options: [1] is not an object"),
    ],
)
def test_a_field_of_a_wrong_type_is_named(tmp_path: Path, manifest: dict[str, object], named: str) -> None:
    (tmp_path / run_dir.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(RunDirError, match=re.escape(named)):
        run_dir.read_manifest(tmp_path)


def test_manifest_of_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / run_dir.MANIFEST).write_text(json.dumps({"policy": "vllm", "moon": 1}))
    with pytest.raises(RunDirError, match="moon"):
        run_dir.read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["nonsense", "[1]"])
def test_files_that_are_no_json_objects(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(RunDirError, match=r"x\.json: "):
        run_dir.read_json(tmp_path / "x.json")


def test_places_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(RunDirError, match="cannot create"):
        run_dir.create(blocker / "run")
    with pytest.raises(RunDirError, match="cannot write"):
        run_dir.write_json(blocker / "x.json", {})
    with pytest.raises(RunDirError, match="cannot write"):
        run_dir.JsonLines(blocker / "x.jsonl")
    with pytest.raises(RunDirError, match="cannot read"):
        run_dir.read_json(tmp_path / "absent.json")
    with pytest.raises(RunDirError, match="cannot read"):
        list(run_dir.read_events(tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").symlink_to("/dev/full")
    with (
        pytest.raises(RunDirError, match=r"x\.jsonl: cannot write: No space left on device; earlier"),
        run_dir.JsonLines(tmp_path / "x.jsonl") as out,
    ):
        out.write(EVENTS[0])


def test_arrivals_round_trip(tmp_path: Path) -> None:
    rows = [ArrivalRecord("p", 0, 0.5, counted=False), ArrivalRecord("q", 1, 0.75)]
    run_dir.write_rows(tmp_path / run_dir.ARRIVALS, rows)
    assert list(run_dir.read_arrivals(tmp_path)) == rows


def test_verdicts_of_programs_that_were_tested(tmp_path: Path) -> None:
    lines = [
        {"program_id": "a", "passed": True},
        {"program_id": "b", "passed": None},
        {"program_id": "b#2", "passed": False},
    ]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / run_dir.PROGRAMS).write_text(whole + '{"program_id": "torn')
    assert run_dir.read_verdicts(tmp_path) == {"a": True, "b#2": False}


@pytest.mark.parametrize("line", ["{", "[]", '{"passed": true}'])
def test_a_bad_verdict_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / run_dir.PROGRAMS).write_text(line + "\n")
    with pytest.raises(RunDirError, match=r"programs\.jsonl:1: expected a program's record"):
        run_dir.read_verdicts(tmp_path)
