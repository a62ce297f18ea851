"""Ends of real OpenHands programs, good and bad: commands that hang, agents that die, Ctrl-C, a server that goes."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import Batch, events_of, second_turns, task_file, through_a_restart, wait_for
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.jsonl import validate
from continuum_traces.run_dir import read_turns
from live_server import Live, live

pytestmark = pytest.mark.slow

NAP = "987654.75"
"""Seconds that a command sleeps which must not be left behind."""
KILL_AGENT = "kill -9 $(tmux show -gv @openhands_socket_owner_pid)"
"""OpenHands notes its process's number in its tmux server."""
EMULATED: dict[str, Any] = {"policy": "static-ttl", "kv_blocks": 6000, "max_model_len": 32_000}


def says(*commands: str) -> list[dict[str, Any]]:
    """A model that runs these in the terminal, one a turn, and finishes."""
    calls = [{"name": "terminal", "arguments": {"command": command}} for command in commands]
    calls.append({"name": "finish", "arguments": {"message": "Done."}})
    return [{"tool_calls": [call]} for call in calls]


SCRIPT = {
    "hangs": says("ls", f"sleep {NAP}", "pwd"),
    "stubborn": says("ls", f"bash -c \"trap '' INT; sleep {NAP}; sleep {NAP}\"", "pwd"),
    "dies": says("ls", f"sleep {NAP} & {KILL_AGENT}"),
    "limited": says("ls", "pwd", "ls", "ls"),
    "confused": [{"tool_calls": [{"name": "no_such_tool", "arguments": {"x": 1}}]}, *says("ls")],
    "long": says("ls", f"sleep {NAP}"),
    "talker": says("ls", "pwd", "ls", "pwd", "ls"),
    "*": [{"text": "They looked around."}],  # what a condenser gets
}


def script_of(folder: Path, programs: dict[str, Any]) -> EmulatedSettings:
    script = folder / "script.jsonl"
    lines = [json.dumps({"program": name, "replies": said}) for name, said in programs.items()]
    script.write_text("\n".join(lines) + "\n")
    return EmulatedSettings(time_scale=20.0, replies=str(script))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("openhands-faults")
    with live(folder, policy_options={"ttl_s": 2.0}, emulated=script_of(folder, SCRIPT), **EMULATED) as found:
        yield found


@pytest.fixture
def openhands(start: Callable[..., Batch]) -> Callable[..., Batch]:
    if shutil.which("tmux") is None:
        pytest.skip("OpenHands' terminal as it is meant to be needs tmux")
    return lambda *given: start(*given, framework="openhands")


def test_one_program_s_fault_is_its_own(server: Live, tmp_path: Path, openhands: Callable[..., Batch]) -> None:
    tasks = task_file(tmp_path, "hangs", "stubborn", "dies", "confused", without_folder=("bare",))
    out = tmp_path / "run"
    batch = openhands(tasks, server.server.url, out, "--workers", "3", "--tool-limit", "3", "--time-limit", "100")
    status, said = batch.wait()
    assert status == 1, said
    programs = batch.programs()
    ends = {name: done["status"] for name, done in programs.items()}
    assert ends == {
        "hangs": "Finished",  # its command got Ctrl-C at the limit, and the agent went on
        "stubborn": "Finished",  # killed, a little later
        "dies": "AgentDied",
        "confused": "Finished",  # OpenHands tells the model what tools there are
        "bare": "Error",
    }, said
    assert "signal 9" in programs["dies"]["error"]
    assert "names no folder" in programs["bare"]["error"]
    assert programs["hangs"]["tools"] == ["ls", "sleep", "pwd", "finish"]
    assert programs["hangs"]["tool_s"] >= 3.0
    assert programs["stubborn"]["tools"] == ["ls", "sleep", "pwd", "finish"]
    assert programs["confused"]["tools"] == ["no_such_tool", "ls", "finish"]
    assert batch.processes() == []
    assert set(batch.predictions()) == {"hangs", "stubborn", "confused"}
    assert list(validate(out / "trace.jsonl")) == []
    turns = [turn.program_id for turn in read_turns(out)]
    assert (turns.count("dies"), turns.count("hangs")) == (2, 4)
    assert server.wait_for(lambda: "dies" not in server.pins())
    assert [event.reason for event in events_of(server, "dies", 2) if event.event == "unpin"] == ["hit", "expired"]


def test_the_call_at_the_step_limit_is_known_to_be_the_last(
    server: Live, tmp_path: Path, openhands: Callable[..., Batch]
) -> None:
    batch = openhands(task_file(tmp_path, "limited"), server.server.url, tmp_path / "run", "--step-limit", "2")
    status, said = batch.wait()
    assert status == 0, said
    assert batch.programs()["limited"]["status"] == "MaxIterationsReached"
    assert [turn.is_last for turn in read_turns(tmp_path / "run")] == [False, True]
    events = events_of(server, "limited", 2)
    assert [event.turn for event in events if event.event == "pin"] == [0]


def test_ctrl_c_keeps_records_and_leaves_no_process(
    server: Live, tmp_path: Path, openhands: Callable[..., Batch]
) -> None:
    out = tmp_path / "run"
    batch = openhands(task_file(tmp_path, "long"), server.server.url, out)
    wait_for(lambda: "long" in second_turns(out) and bool(batch.processes(f"sleep {NAP}")), batch)
    assert batch.processes("tmux")
    batch.process.send_signal(signal.SIGINT)
    status, said = batch.wait()
    assert status == 130, said
    assert batch.processes() == []  # nor a tmux server
    assert batch.programs()["long"]["status"] == "Interrupted"
    assert batch.predictions() == {}
    assert [turn.turn for turn in read_turns(out)] == [0, 1]
    assert list(validate(out / "trace.jsonl")) == []
    history = json.loads((out / "long" / "long.traj.json").read_text())["history"]
    assert [event["kind"] for event in history][-1] == "ActionEvent"


def test_a_program_outlives_its_server(tmp_path: Path, openhands: Callable[..., Batch]) -> None:
    """OpenHands tries again until the new server answers; the id stays, and so does the record."""
    emulated = script_of(tmp_path, {"patient": says("ls", "until [ -e go ]; do sleep 0.1; done")})
    tasks, out = task_file(tmp_path, "patient"), tmp_path / "run"
    patient = [f"llm.{option}" for option in ("num_retries=200", "retry_min_wait=1", "retry_max_wait=1")]
    options = [word for option in patient for word in ("-c", option)]
    batch, events = through_a_restart(
        tmp_path, lambda url: openhands(tasks, url, out, *options), {**EMULATED, "emulated": emulated}
    )
    assert batch.programs()["patient"]["status"] == "Finished"
    assert [event.turn for event in events if event.event == "finish"] == [0, 1, 2]
    assert list(validate(out / "trace.jsonl")) == []


def test_a_history_that_is_shortened(server: Live, tmp_path: Path, openhands: Callable[..., Batch]) -> None:
    """OpenHands' condenser: its call is a child of one turn, the conversation goes on under its own id."""
    options = ("-c", "condenser.max_size=8", "-c", "condenser.keep_first=2")
    out = tmp_path / "run"
    batch = openhands(task_file(tmp_path, "talker"), server.server.url, out, *options)
    status, said = batch.wait()
    assert status == 0, said
    turns = [(turn.program_id, turn.turn, turn.is_last) for turn in read_turns(out)]
    summaries = [turn for turn in turns if turn[0] != "talker"]
    assert summaries, turns
    assert all(number == 0 and is_last for _, number, is_last in summaries)
    assert [turn[1] for turn in turns if turn[0] == "talker"] == list(range(6))
    assert list(validate(out / "trace.jsonl")) == []
