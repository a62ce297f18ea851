"""Where mini-swe-agent's commands run beside the workspace: bubblewrap's sandbox, and a container.

Bubblewrap is the real one. There is no Docker daemon here: the real mini-swe-agent gives its ``docker`` commands to a
strict stand-in that runs them in a folder, and the real ``docker`` package asks a stand-in of the daemon.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS, Batch, events_of, task_file
from continuum_bench.agents.batch import batch_label
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.jsonl import validate
from fake_docker import Daemon
from live_server import Live, live

pytestmark = pytest.mark.slow

DONE = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
NAP = "987654.5"
OUTSIDE = "/usr/continuum-was-here"
SCRIPT = {
    "boxed": (
        "ls",
        f"touch {OUTSIDE} || echo refused",
        f"sleep {NAP} & sleep {NAP}",
        "sed -i 's/I/J/' roman/__init__.py && git diff > patch.txt",
        f"{DONE} && cat patch.txt",
    ),
    "shipped": ("ls", "sed -i 's/I/J/' roman/__init__.py && git diff > patch.txt", f"{DONE} && cat patch.txt"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("places")
    script = folder / "script.jsonl"
    calls = {
        name: [{"tool_calls": [{"name": "bash", "arguments": {"command": command}}]} for command in commands]
        for name, commands in SCRIPT.items()
    }
    script.write_text("".join(json.dumps({"program": name, "replies": said}) + "\n" for name, said in calls.items()))
    emulated = EmulatedSettings(time_scale=20.0, replies=str(script))
    config: dict[str, Any] = {"kv_blocks": 4000, "max_model_len": 16_000, "emulated": emulated}
    with live(folder, policy="static-ttl", **config) as found:
        yield found


def needs_bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    box = ["bwrap", "--unshare-user-try", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    if subprocess.run(box, capture_output=True).returncode != 0:
        pytest.skip("bubblewrap may not make namespaces here")


def test_a_sandbox(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    needs_bubblewrap()
    out = tmp_path / "run"
    options = ("--environment", "bubblewrap", "--tool-limit", "3")
    batch = start(task_file(tmp_path, "boxed"), server.server.url, out, *options)
    status, said = batch.wait()
    assert status == 0, said
    assert batch.programs()["boxed"]["status"] == "Submitted"
    assert batch.programs()["boxed"]["tools"] == ["ls", "touch", "sleep", "sed", "echo"]
    assert not Path(OUTSIDE).exists()
    assert "+" in batch.predictions()["boxed"]["model_patch"]
    assert batch.processes() == []
    trajectory = json.loads((out / "boxed" / "boxed.traj.json").read_text())
    assert "Read-only file system" in json.dumps(trajectory)
    assert list(validate(out / "trace.jsonl")) == []


def test_a_container(
    server: Live, tmp_path: Path, start: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, state = tmp_path / "run", tmp_path / "state"
    state.mkdir()
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"instance_id": "shipped", "problem_statement": "Mend it.", "image": "roman:1"}) + "\n")
    command = tmp_path / "docker"
    shim = (Path(__file__).with_name("fake_docker.py"), state, SCENARIOS / "roman")
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {" ".join(map(str, shim))} "$@"\n')
    command.chmod(0o755)
    with Daemon(tmp_path / "docker.sock") as daemon:
        daemon.containers = {"stray": {"continuum.batch": batch_label(out)}, "db": {"app": "db"}}
        monkeypatch.setenv("DOCKER_HOST", daemon.url)
        monkeypatch.setenv("MSWEA_DOCKER_EXECUTABLE", str(command))
        batch = start(tasks, server.server.url, out, "--environment", "docker")
        status, said = batch.wait()
        assert status == 0, said
        assert batch.programs()["shipped"]["status"] == "Submitted"
        assert daemon.said == ["remove stray", "pull roman:1"]
        assert daemon.faults == []
    log = [json.loads(line) for line in (state / "log.jsonl").read_text().splitlines()]
    assert [entry["command"] for entry in log] == ["run", "exec", "exec", "exec", "rm"]
    assert log[0]["labels"] == {"continuum.batch": batch_label(out), "continuum.program": "shipped"}
    assert [folder.name for folder in state.iterdir() if folder.is_dir()] == []
    assert "+" in batch.predictions()["shipped"]["model_patch"]
    finishes = [event for event in events_of(server, "shipped", 3) if event.event == "finish"]
    assert [event.tool for event in finishes] == ["ls", "sed", "echo"]
    assert list(validate(out / "trace.jsonl")) == []
