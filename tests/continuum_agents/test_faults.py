"""How runs of real agents end: at a limit, after a tool that hangs, when the agent dies, when a task has no code, on
Ctrl-C, and after calls that failed.

The first tests run with mini-swe-agent and with OpenHands. The tests of only one of them are at the end of the file.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_batches import (
    Batch,
    breaking_off,
    events_of,
    finished,
    second_turns,
    task_file,
    tried_again,
    unpinned,
    wait_for,
)
from aiohttp import web
from code_agents import MINI, NAP, OPENHANDS, Kind
from continuum_traces.records import read_turns
from fake_server import FakeServer
from live_server import Live
from waiting import until

pytestmark = pytest.mark.slow


def test_one_program_s_fault_is_its_own(kind: Kind, server: Live, play: Callable[..., Batch]) -> None:
    special = {"endless": ("TimeLimit", False)} if kind is MINI else {"stubborn": (kind.good, True)}
    names = ("fine", "hangs", "dies", *special)
    limits = ("--workers", "3", "--tool-limit", "3", "--time-limit", "25" if kind is MINI else "100")
    batch = play(*names, *limits, without_folder=("bare",))
    batch.ended(1)
    programs = batch.programs()
    assert batch.ends() == {
        "fine": (kind.good, True),
        "hangs": (kind.good, True),  # its tool was stopped at the tool's limit, and the agent went on
        "dies": ("AgentDied", None),
        "bare": ("Error", None),
        **special,
    }
    assert "signal 9" in programs["dies"]["error"]
    assert "names no folder" in programs["bare"]["error"]
    for name in {"hangs", "stubborn"} & set(programs):
        assert programs[name]["tools"] == ["ls", "sleep", "pwd", kind.last_tool]
        assert programs[name]["tool_s"] >= 3.0
    good = {"fine", "hangs", *special}
    assert set(batch.predictions()) == good
    turns = [turn.program_id for turn in read_turns(batch.out)]
    assert (turns.count("dies"), turns.count("fine")) == (2, 3)
    lines = [json.loads(line) for line in (batch.out / "trace.jsonl").read_text().splitlines()]
    assert {line["program_id"] for line in lines if line["kind"] == "turn"} == set(turns)
    until(lambda: "dies" not in server.pins())
    assert unpinned(server, "dies", 2) == ["hit", "expired"]
    again = play(*names, "--tool-limit", "3", "--time-limit", "60", without_folder=("bare",))  # skips what finished
    said = again.ended(1)
    assert "2 programs" in said
    assert f"{len(good)} finished before" in said
    assert again.programs()["dies#2"]["status"] == kind.good
    assert set(again.predictions()) == {*good, "dies"}
    assert {event.event for event in events_of(server, "dies#2", 2)} >= {"arrive", "finish", "unpin"}


def test_the_call_at_the_step_limit_is_known_to_be_the_last(
    kind: Kind, server: Live, play: Callable[..., Batch]
) -> None:
    batch = play("limited", "--step-limit", "2")
    batch.ended()
    assert batch.programs()["limited"]["status"] == kind.limited
    assert [turn.is_last for turn in read_turns(batch.out)] == [False, True]
    assert len(finished(server, "limited", 2)) == 2
    assert [event.turn for event in events_of(server, "limited", 2) if event.event == "pin"] == [0]


def test_ctrl_c_keeps_records_and_leaves_no_process(kind: Kind, play: Callable[..., Batch]) -> None:
    names = {"long", "longer"} if kind is MINI else {"long"}
    batch = play(*sorted(names), *(kind.more if kind is MINI else ()))
    sleeping = 3 if kind is MINI else 1
    wait_for(lambda: names <= second_turns(batch.out) and len(batch.processes(f"sleep {NAP}")) >= sleeping, batch)
    assert kind is MINI or batch.processes("tmux")
    batch.process.send_signal(signal.SIGINT)
    batch.ended(130)
    assert {done["status"] for done in batch.programs().values()} == {"Interrupted"}
    assert batch.predictions() == {}
    turns = sorted((turn.program_id, turn.turn) for turn in read_turns(batch.out))
    assert turns == [(name, turn) for name in sorted(names) for turn in (0, 1)]
    if kind is OPENHANDS:
        history = json.loads((batch.out / "long" / "long.traj.json").read_text())["history"]
        assert history[-1]["kind"] == "ActionEvent"


def test_a_call_that_fails_is_tried_again_by_the_same_program(
    kind: Kind, tmp_path: Path, start: Callable[..., Batch]
) -> None:
    with breaking_off(kind.says("ls", "pwd")) as server:
        batch = start(task_file(tmp_path, "patient"), server.root, tmp_path / "run", *kind.more, framework=kind.name)
        tried_again(server, batch, "patient")
    assert batch.programs()["patient"]["status"] == kind.good


# --------------------------------------------------------------------------------- mini-swe-agent's only


@pytest.mark.parametrize("kind", [MINI], indirect=True)
def test_commands_in_text(kind: Kind, server: Live, play: Callable[..., Batch]) -> None:
    batch = play("written", "-c", "swebench_backticks.yaml", "-c", "model.model_class=litellm_textbased")
    batch.ended()
    assert batch.programs()["written"]["tools"] == ["ls", "cat", "echo"] == finished(server, "written", 3)


@pytest.mark.parametrize("kind", [MINI], indirect=True)
def test_a_context_that_is_full_ends_the_program(kind: Kind, tmp_path: Path, start: Callable[..., Batch]) -> None:
    """It has a prediction, as in mini-swe-agent's own batches, and is not run again."""
    message = "This model's maximum context length is 8192 tokens. However, your request has 8200 input tokens."

    async def answer(_request: Any, _number: int) -> Any:
        error = {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}
        return web.json_response({"error": error}, status=400)

    with FakeServer("plugin", handler=answer) as server:
        tasks = task_file(tmp_path, "full")
        for _ in range(2):
            batch = start(tasks, server.root, tmp_path / "run", *kind.more, framework=kind.name)
            batch.ended()
            calls = len(server.asked)
    assert calls == len({seen.body["vllm_xargs"]["turn_id"] for seen in server.asked}) == 1
    assert batch.programs()["full"]["status"] == "ContextWindowExceededError"
    assert batch.predictions()["full"]["model_patch"] == ""


@pytest.mark.parametrize("kind", [MINI], indirect=True)
def test_a_second_ctrl_c_kills_at_once(kind: Kind, play: Callable[..., Batch]) -> None:
    batch = play("twice", *kind.more)
    wait_for(lambda: "twice" in second_turns(batch.out) and bool(batch.processes("sleep")), batch)
    batch.process.send_signal(signal.SIGINT)
    batch.process.send_signal(signal.SIGTERM)
    batch.ended(130)


@pytest.mark.parametrize("kind", [MINI], indirect=True)
def test_a_killed_harness_takes_its_agents_along(kind: Kind, play: Callable[..., Batch]) -> None:
    batch = play("orphaned", *kind.more)
    wait_for(lambda: bool(batch.processes("sleep")), batch)
    batch.process.kill()
    batch.process.wait()
    wait_for(lambda: not batch.processes(), None)


# --------------------------------------------------------------------------------------- OpenHands' only


@pytest.mark.parametrize("kind", [OPENHANDS], indirect=True)
def test_a_history_that_is_shortened(kind: Kind, play: Callable[..., Batch]) -> None:
    """OpenHands' condenser: its call is a child of one turn, the conversation goes on under its own id. A tool that
    there is not: OpenHands tells the model what tools there are."""
    batch = play("talker", "confused", "-c", "condenser.max_size=8", "-c", "condenser.keep_first=2")
    batch.ended()
    assert batch.programs()["confused"]["tools"] == ["no_such_tool", "ls", "finish"]
    turns = [turn for turn in read_turns(batch.out) if turn.program_id != "confused"]
    summaries = [turn for turn in turns if turn.program_id != "talker"]
    assert summaries, turns
    assert all(turn.turn == 0 and turn.is_last for turn in summaries)
    assert [turn.turn for turn in turns if turn.program_id == "talker"] == list(range(6))
