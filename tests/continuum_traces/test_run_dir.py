"""Run directories: round trips, torn lines, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from continuum_traces import json_io, records
from continuum_traces.json_io import RunDirError
from continuum_traces.records import run_dir
from continuum_traces.schema import ArrivalRecord, Hardware, KvPool, Manifest, SchedulerEvent, TurnRecord, Workload

VERDICTS = (b"{\n", b"[]\n", b'{"passed": true}\n')
EVENTS = [
    SchedulerEvent(0.5, "arrive", "p", 0, "r", prompt_tokens=10),
    SchedulerEvent(1.5, "unpin", "p", 0, reason="hit"),
]


def events(folder: Path) -> list[SchedulerEvent]:
    return list(records.read_events(folder))


def test_rows_round_trip(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    turns = [TurnRecord("p", 0, 0.0, 0.1, tools=("ls", "cat"), is_last=True)]
    arrivals = [ArrivalRecord("p", 0, 0.5, counted=False), ArrivalRecord("q", 1, 0.75)]
    records.write_rows(run / run_dir.EVENTS, EVENTS)
    records.write_rows(run / run_dir.TURNS, turns)
    records.write_rows(run / run_dir.ARRIVALS, arrivals)
    assert (list(records.read_events(run)), list(records.read_turns(run))) == (EVENTS, turns)
    assert list(records.read_arrivals(run)) == arrivals
    assert run_dir.runs_below(run) == run_dir.runs_below(tmp_path) == [run]


def test_a_torn_last_line_is_ignored_and_a_bad_one_named(tmp_path: Path) -> None:
    file = tmp_path / run_dir.EVENTS
    records.write_rows(file, EVENTS)
    with file.open("a") as out:
        out.write('{"t": 2.0, "event": "arr')
    assert list(records.read_events(tmp_path)) == EVENTS
    with file.open("a") as out:
        out.write("\n")
    with pytest.raises(RunDirError, match=r"scheduler_timestamps.jsonl:3: "):
        list(records.read_events(tmp_path))


def test_lines_are_on_disk_when_flushed(tmp_path: Path) -> None:
    with json_io.JsonLines(tmp_path / "x.jsonl", flush_every=2) as out:
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


FAULTS: list[tuple[str, bytes | None, Callable[[Path], Any], str]] = [
    (run_dir.EVENTS, b"\xff\xfe\n", events, "not UTF-8 text after line 0"),
    (run_dir.EVENTS, b'{"t":1,"event":"pin","program_id":"p","turn":0,"colour":"red"}\n', events, ":1: colour"),
    (run_dir.EVENTS, None, events, "cannot read"),
    (run_dir.MANIFEST, None, run_dir.read_manifest, "cannot read"),
    (run_dir.MANIFEST, b"nonsense", run_dir.read_manifest, ": "),
    (run_dir.MANIFEST, b"[1]", run_dir.read_manifest, ": "),
    (run_dir.MANIFEST, b'{"policy": "vllm", "moon": 1}', run_dir.read_manifest, "moon"),
    (run_dir.MANIFEST, b'{"workload": {"jps": "fast"}}', run_dir.read_manifest, "workload.jps: 'fast' is not a number"),
    (run_dir.MANIFEST, b'{"engine_options": [1]}', run_dir.read_manifest, "engine_options: [1] is not an object"),
    *((run_dir.PROGRAMS, line, records.read_verdicts, ":1: expected a program's record") for line in VERDICTS),
    ("file", b"", lambda path: run_dir.create(path / "file" / "run"), "cannot create"),
    ("file", b"", lambda path: json_io.write_json(path / "file" / "x.json", {}), "cannot write"),
    ("file", b"", lambda path: json_io.JsonLines(path / "file" / "x.jsonl"), "cannot write"),
]


@pytest.mark.parametrize(("name", "content", "use", "said"), FAULTS)
def test_faults_name_file_and_field(
    tmp_path: Path, name: str, content: bytes | None, use: Callable[[Path], Any], said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(RunDirError, match=re.escape(said)) as caught:
        use(tmp_path)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").symlink_to("/dev/full")
    with (
        pytest.raises(RunDirError, match=r"x\.jsonl: cannot write: No space left on device; earlier"),
        json_io.JsonLines(tmp_path / "x.jsonl") as out,
    ):
        out.write(EVENTS[0])


def test_verdicts_of_programs_that_were_tested(tmp_path: Path) -> None:
    lines = [
        {"program_id": "a", "passed": True},
        {"program_id": "b", "passed": None},
        {"program_id": "b#2", "passed": False},
    ]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / run_dir.PROGRAMS).write_text(whole + '{"program_id": "torn')
    assert records.read_verdicts(tmp_path) == {"a": True, "b#2": False}
