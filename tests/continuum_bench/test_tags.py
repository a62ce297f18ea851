"""``--tags``: what a replay tells the server, and that its results are right however little that is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_cli import succeeded
from continuum_analysis.records.reading import named, read_run
from continuum_traces.json_io import read_json
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_events
from continuum_traces.schema import Program, SchedulerEvent, ToolCall, TurnRecord
from continuum_traces.schema import Turn as T
from fake_server import good
from small_replays import replayed

SENDS = ("full", "no-last", "none")
SMALL = ["--kv-blocks", "300", "--jps", "2", "--hints", "tool_s", "--no-report"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same few programs under each value of ``--tags``."""
    folder = tmp_path_factory.mktemp("tags")
    call = (ToolCall("ls", 0.5),)
    turns = (T(900, 40, tool_calls=call), T(100, 30, tool_calls=call), T(60, 5))
    trace = folder / "small.jsonl"
    write_programs(trace, [Program(f"p{i}", turns) for i in range(8)])
    for sends in SENDS:
        succeeded("replay --policy vllm,working-set", trace, *SMALL, "--tags", sends, "--out", folder / sends)
    return {sends: folder / sends for sends in SENDS}


def compared(out: Path) -> dict[str, Any]:
    measured = json.loads(succeeded("compare --json", out).stdout)["policies"]["vllm"]
    return {name: value for name, value in measured.items() if not name.startswith("scheduler_time")}


def test_results_are_the_same_where_tags_change_nothing(runs: dict[str, Path]) -> None:
    """vLLM's own order ignores tags: JCT, bubbles and hits must not depend on what the record is joined by."""
    full = compared(runs["full"])
    assert full["programs"] == 8
    assert full["jct_mean_s"] > 1.0
    for sends in ("no-last", "none"):
        assert compared(runs[sends]) == full


@pytest.mark.parametrize("sends", SENDS)
def test_every_turn_and_pin_belongs_to_its_program(runs: dict[str, Path], sends: str) -> None:
    """The record says how programs were recognised."""
    run = runs[sends] / "working-set-seed0"
    by = {event.recognised_by for event in read_events(run) if event.event == "arrive"}
    assert by == {"prompt" if sends == "none" else "tag"}
    programs = read_run(run)
    assert sorted(program.program_id for program in programs) == [f"p{i}" for i in range(8)]
    for program in programs:
        assert [turn.index for turn in program.turns] == [0, 1, 2]
        assert [turn.client.turn for turn in program.turns if turn.client is not None] == [0, 1, 2]
        assert [turn.tool for turn in program.turns] == ["ls", "ls", None]  # read in the answer, not in a tag
        assert all(pin.until_s is not None and pin.turn in (0, 1, 2) for pin in program.pins)
    facts = read_json(run / "manifest.json")["workload"]
    assert facts.get("tags") == (None if sends == "full" else sends)


@pytest.mark.parametrize("sends", SENDS)
def test_what_is_on_the_wire(tmp_path: Path, sends: str) -> None:
    done = replayed(tmp_path, good, "--tags", sends, "--hints", "tool_s")
    bodies, headers = done.server.bodies, done.server.headers
    xargs = [body.get("vllm_xargs", {}) for body in bodies]
    assert ["is_last_step" in each for each in xargs] == [sends == "full"] * 3
    assert any("pred_tool_s" in each for each in xargs) == (sends != "none")
    assert {each.get("program_id") for each in xargs} == {None if sends == "none" else "p0"}
    if sends == "none":
        wire = json.dumps([bodies, [dict(each) for each in headers]]).lower()
        for word in ('"p0"', "session", "x-turn-id", "vllm_xargs", "dynamo", '"ls"'):
            assert word not in wire
        asked = [each["X-Request-Id"] for each in headers]
        assert asked == [f"{record.turn_id}-0" for record in done.turns]


def test_a_server_s_events_find_their_turns_by_the_request_id() -> None:
    records = [TurnRecord(f"p{n}", i, 0.0, 0.0, turn_id=f"{i}-{n}-0a1b2c3d") for n in range(2) for i in range(2)]
    first, second = "cmpl-0-1-0a1b2c3d-0-0-9f8e7d6c", "chatcmpl-1-1-0a1b2c3d-2"
    events = [
        SchedulerEvent(0.0, "arrive", first, 0, first),
        SchedulerEvent(1.0, "pin", first, 0, first),
        SchedulerEvent(2.0, "arrive", first, 1, second),
        SchedulerEvent(3.0, "unpin", first, 0),
        SchedulerEvent(4.0, "arrive", "somebody", 5, "cmpl-7-7-0a1b2c3d-0"),
    ]
    found = [(event.program_id, event.turn) for event in named([replace(each) for each in events], records)]
    assert found == [("p1", 0), ("p1", 0), ("p1", 1), ("p1", 0), ("somebody", 5)]
