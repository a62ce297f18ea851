"""How runs of real agents end: at a limit, after a tool that hangs, when the agent dies, when a task has no code, on
Ctrl-C, and when the server restarts.

The first tests run with mini-swe-agent and with OpenHands. The tests of only one of them are at the end of the file.
"""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agent_batches import (
    Batch,
    events_of,
    finished,
    scripted,
    second_turns,
    task_file,
    through_a_restart,
    unpinned,
    wait_for,
)
from continuum_traces.run_dir import read_turns
from live_server import Live
from waiting import until

pytestmark = pytest.mark.slow

NAP = "987654.25"
"""Seconds that a tool sleeps which must not be left behind."""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


@dataclass(frozen=True)
class Kind:
    """A framework, and its words."""

    name: str
    tool: str
    last: dict[str, Any]
    """The reply that ends a program, the tool of it, and the status."""
    last_tool: str
    good: str
    limited: str
    kills_agent: str
    more: tuple[str, ...] = ()
    """Options with which it waits for a server."""

    def says(self, *commands: str) -> list[dict[str, Any]]:
        """A model that runs these, one a turn, and submits."""
        return [*(calls(self.tool, command=command) for command in commands), self.last]

    def script(self) -> dict[str, Any]:
        return {
            "fine": self.says("ls", "cat roman/__init__.py"),
            "hangs": self.says("ls", f"sleep {NAP}", "pwd"),
            "dies": self.says("ls", f"sleep {NAP} & {self.kills_agent}"),
            "dies#2": self.says("ls"),
            "limited": self.says("ls", "pwd", "ls", "ls"),
            **dict.fromkeys(("long", "twice", "orphaned"), self.says("ls", f"sleep {NAP}")),
            "longer": self.says("ls", f"sleep {NAP} & sleep {NAP}"),
            "endless": self.says("ls", *(f"sleep {NAP}" for _ in range(100))),
            "stubborn": self.says("ls", f"bash -c \"trap '' INT; sleep {NAP}; sleep {NAP}\"", "pwd"),
            "written": [
                {"text": f"THOUGHT: next.\n\n```mswea_bash_command\n{command}\n```"}
                for command in ("ls", "cd roman && cat __init__.py", SUBMIT)
            ],
            "confused": [calls("no_such_tool", x=1), *self.says("ls")],
            "talker": self.says("ls", "pwd", "ls", "pwd", "ls"),
            "*": [{"text": "They looked around."}],  # what a condenser gets
        }


MINI = Kind(
    *("mini-swe", "bash", calls("bash", command=SUBMIT), "echo", "Submitted", "LimitsExceeded", "kill -9 $PPID"),
    more=("--tool-limit", "600"),
)
OPENHANDS = Kind(
    *("openhands", "terminal", calls("finish", message="Done."), "finish", "Finished", "MaxIterationsReached"),
    kills_agent="kill -9 $(tmux show -gv @openhands_socket_owner_pid)",  # its process's number is in its tmux server
    more=("-c", "llm.num_retries=200", "-c", "llm.retry_min_wait=1", "-c", "llm.retry_max_wait=1"),
)


@pytest.fixture(scope="module", params=[MINI, OPENHANDS], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param is OPENHANDS and shutil.which("tmux") is None:
        pytest.skip("OpenHands' terminal as it is meant to be needs tmux")
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def server(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with scripted(tmp_path_factory.mktemp("faults"), kind.script(), policy_options={"ttl_s": 2.0}) as found:
        yield found


@pytest.fixture
def play(kind: Kind, server: Live, tmp_path: Path, start: Callable[..., Batch]) -> Callable[..., Batch]:
    """Starts a batch: ``play("fine", "dies", "--workers", "3")``."""

    def started(*words: str, without_folder: tuple[str, ...] = ()) -> Batch:
        names = [word for word in words if word in kind.script()]
        tasks = task_file(tmp_path, *names, without_folder=without_folder)
        return start(tasks, server.server.url, tmp_path / "run", *words[len(names) :], framework=kind.name)

    return started


def test_one_program_s_fault_is_its_own(kind: Kind, server: Live, play: Callable[..., Batch]) -> None:
    special = {"endless": ("TimeLimit", False)} if kind is MINI else {"stubborn": (kind.good, True)}
    names = ("fine", "hangs", "dies", *special)
    limits = ("--workers", "3", "--tool-limit", "3", "--time-limit", "40" if kind is MINI else "100")
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


def test_a_program_outlives_its_server(kind: Kind, tmp_path: Path, start: Callable[..., Batch]) -> None:
    """The framework tries again until the new server answers; the id stays, and so does the record."""
    tasks, out, says = (
        task_file(tmp_path, "patient"),
        tmp_path / "run",
        kind.says("ls", "until [ -e go ]; do sleep 0.1; done"),
    )
    batch = through_a_restart(
        tmp_path, lambda url: start(tasks, url, out, *kind.more, framework=kind.name), "patient", says
    )
    assert batch.programs()["patient"]["status"] == kind.good


# --------------------------------------------------------------------------------- mini-swe-agent's only


@pytest.mark.parametrize("kind", [MINI], indirect=True)
def test_commands_in_text(kind: Kind, server: Live, play: Callable[..., Batch]) -> None:
    batch = play("written", "-c", "swebench_backticks.yaml", "-c", "model.model_class=litellm_textbased")
    batch.ended()
    assert batch.programs()["written"]["tools"] == ["ls", "cat", "echo"] == finished(server, "written", 3)


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
