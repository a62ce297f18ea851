"""Ends of real agents, good and bad: limits, tools that hang, agents that die, tasks without code, Ctrl-C."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import Batch, events_of, second_turns, task_file, wait_for
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.jsonl import validate
from continuum_traces.run_dir import read_turns
from live_server import Live, live

pytestmark = pytest.mark.slow

NAP = "987654.25"
"""Seconds that a tool sleeps which must not be left behind."""


def says(*commands: str) -> list[dict[str, Any]]:
    """A model that runs these, one a turn, and submits."""
    calls = [*commands, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    return [{"tool_calls": [{"name": "bash", "arguments": {"command": command}}]} for command in calls]


def writes(*commands: str) -> list[dict[str, Any]]:
    """The same in text, as mini-swe-agent's other form wants it."""
    blocks = [*commands, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
    return [{"text": f"THOUGHT: next.\n\n```mswea_bash_command\n{command}\n```"} for command in blocks]


TEXT_FORM = ("-c", "swebench_backticks.yaml", "-c", "model.model_class=litellm_textbased")

SCRIPT = {
    "fine": says("ls", "cat roman/__init__.py"),
    "hangs": says("ls", f"sleep {NAP}", "ls"),
    "endless": says("ls", *(f"sleep {NAP}" for _ in range(100))),
    "dies": says("ls", f"sleep {NAP} & kill -9 $PPID"),
    "dies#2": says("ls"),
    "limited": says("ls", "pwd", "ls", "ls"),
    "written": writes("ls", "cd roman && cat __init__.py"),
    "long": says("ls", f"sleep {NAP}"),
    "twice": says("ls", f"sleep {NAP}"),
    "orphaned": says("ls", f"sleep {NAP}"),
    "longer": says("ls", f"sleep {NAP} & sleep {NAP}"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("faults")
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps({"program": name, "replies": said}) + "\n" for name, said in SCRIPT.items()))
    emulated = EmulatedSettings(time_scale=20.0, replies=str(script))
    config: dict[str, Any] = {"kv_blocks": 4000, "max_model_len": 16_000, "emulated": emulated}
    with live(folder, policy="static-ttl", policy_options={"ttl_s": 2.0}, **config) as found:
        yield found


def test_one_program_s_fault_is_its_own(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    tasks = task_file(tmp_path, "fine", "hangs", "endless", "dies", without_folder=("bare",))
    options = ("--workers", "3", "--tool-limit", "3", "--time-limit", "40")
    batch = start(tasks, server.server.url, tmp_path / "run", *options)
    status, said = batch.wait()
    assert status == 1, said
    programs = batch.programs()
    ends = {name: done["status"] for name, done in programs.items()}
    assert ends == {
        "fine": "Submitted",
        "hangs": "Submitted",  # its tool was killed at the tool's limit, and the agent went on
        "endless": "TimeLimit",
        "dies": "AgentDied",
        "bare": "Error",
    }, said
    passed = {name: done["passed"] for name, done in programs.items()}
    assert passed == {"fine": True, "hangs": True, "endless": False, "dies": None, "bare": None}
    assert "signal 9" in programs["dies"]["error"]
    assert "names no folder" in programs["bare"]["error"]
    assert programs["hangs"]["tools"] == ["ls", "sleep", "ls", "echo"]
    assert programs["hangs"]["tool_s"] >= 3.0
    assert batch.processes() == []
    assert set(batch.predictions()) == {"fine", "hangs", "endless"}
    the_records_are_whole(tmp_path / "run", dies=2)
    a_dead_agent_s_pin_ended_by_its_ttl(server)
    the_rest_is_tried_again(server, tasks, tmp_path / "run", start)


def the_records_are_whole(out: Path, dies: int) -> None:
    assert list(validate(out / "trace.jsonl")) == []
    turns = [turn.program_id for turn in read_turns(out)]
    assert turns.count("dies") == dies
    assert turns.count("fine") == 3
    ended = [json.loads(line) for line in (out / "trace.jsonl").read_text().splitlines()]
    assert {line["program_id"] for line in ended if line["kind"] == "end"} == set(turns)


def a_dead_agent_s_pin_ended_by_its_ttl(server: Live) -> None:
    assert server.wait_for(lambda: "dies" not in server.pins())
    ends = [event.reason for event in events_of(server, "dies", 2) if event.event == "unpin"]
    assert ends == ["hit", "expired"]


def the_rest_is_tried_again(server: Live, tasks: Path, out: Path, start: Callable[..., Batch]) -> None:
    """The same command once more: what finished is skipped, what did not runs under a new id."""
    batch = start(tasks, server.server.url, out, "--time-limit", "60")
    status, said = batch.wait()
    assert status == 1, said
    assert "2 programs" in said
    assert "3 finished before" in said
    assert batch.programs()["dies#2"]["status"] == "Submitted"
    assert set(batch.predictions()) == {"fine", "hangs", "endless", "dies"}
    assert {event.event for event in events_of(server, "dies#2", 2)} >= {"arrive", "finish", "unpin"}
    assert list(validate(out / "trace.jsonl")) == []


def test_the_call_at_the_step_limit_is_known_to_be_the_last(
    server: Live, tmp_path: Path, start: Callable[..., Batch]
) -> None:
    batch = start(task_file(tmp_path, "limited"), server.server.url, tmp_path / "run", "--step-limit", "2")
    status, said = batch.wait()
    assert status == 0, said
    assert batch.programs()["limited"]["status"] == "LimitsExceeded"
    assert batch.predictions()["limited"]["model_patch"] == ""
    assert [turn.is_last for turn in read_turns(tmp_path / "run")] == [False, True]
    events = events_of(server, "limited", 2)
    assert [event.turn for event in events if event.event == "finish"] == [0, 1]
    assert [event.turn for event in events if event.event == "pin"] == [0]


def test_commands_in_text(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    tasks, out = task_file(tmp_path, "written"), tmp_path / "run"
    batch = start(tasks, server.server.url, out, *TEXT_FORM)
    status, said = batch.wait()
    assert status == 0, said
    assert batch.programs()["written"]["tools"] == ["ls", "cat", "echo"]
    finishes = [event for event in events_of(server, "written", 3) if event.event == "finish"]
    assert [event.tool for event in finishes] == ["ls", "cat", "echo"]
    assert list(validate(out / "trace.jsonl")) == []


def test_ctrl_c_keeps_records_and_leaves_no_process(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    out = tmp_path / "run"
    batch = start(task_file(tmp_path, "long", "longer"), server.server.url, out, "--tool-limit", "600")
    wait_for(lambda: {"long", "longer"} <= second_turns(out) and len(batch.processes("sleep")) >= 3, batch)
    batch.process.send_signal(signal.SIGINT)
    status, said = batch.wait()
    assert status == 130, said
    assert batch.processes() == []
    assert {done["status"] for done in batch.programs().values()} == {"Interrupted"}
    assert batch.predictions() == {}
    assert sorted((turn.program_id, turn.turn) for turn in read_turns(out)) == [
        *(("long", 0), ("long", 1)),
        *(("longer", 0), ("longer", 1)),
    ]
    assert list(validate(out / "trace.jsonl")) == []


def test_a_second_ctrl_c_kills_at_once(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    out = tmp_path / "run"
    batch = start(task_file(tmp_path, "twice"), server.server.url, out, "--tool-limit", "600")
    wait_for(lambda: "twice" in second_turns(out) and bool(batch.processes("sleep")), batch)
    batch.process.send_signal(signal.SIGINT)
    batch.process.send_signal(signal.SIGTERM)
    status, said = batch.wait()
    assert status == 130, said
    assert batch.processes() == []
    assert list(validate(out / "trace.jsonl")) == []


def test_a_killed_harness_takes_its_agents_along(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    batch = start(task_file(tmp_path, "orphaned"), server.server.url, tmp_path / "run", "--tool-limit", "600")
    wait_for(lambda: bool(batch.processes("sleep")), batch)
    batch.process.kill()
    batch.process.wait()
    wait_for(lambda: not batch.processes(), None)
