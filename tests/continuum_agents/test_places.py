"""Where mini-swe-agent's commands run beside the workspace: bubblewrap's sandbox, and a container.

Bubblewrap is the real one. ``docker`` is a strict stand-in that runs commands in a folder, for machines without a
daemon; test_docker.py has real containers.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_batches import SCENARIOS, Batch, finished, task_file, write_lines
from code_agents import MINI, OUTSIDE
from continuum_agents.protocol import BATCH_LABEL, PROGRAM_LABEL
from continuum_bench.agents.runner import batch_label
from fake_docker import install, put
from live_server import Live

pytestmark = pytest.mark.slow

ONLY_MINI = pytest.mark.parametrize("kind", [MINI], indirect=True)


def needs_bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    box = ["bwrap", "--unshare-user-try", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    if subprocess.run(box, capture_output=True).returncode != 0:
        pytest.skip("bubblewrap may not make namespaces here")


@ONLY_MINI
def test_a_sandbox(server: Live, tmp_path: Path, start: Callable[..., Batch]) -> None:
    needs_bubblewrap()
    out = tmp_path / "run"
    options = ("--environment", "bubblewrap", "--tool-limit", "3")
    batch = start(task_file(tmp_path, "boxed"), server.server.url, out, *options)
    batch.ended()
    assert batch.programs()["boxed"]["status"] == "Submitted"
    assert batch.programs()["boxed"]["tools"] == ["ls", "touch", "sleep", "sed", "echo"]
    assert not Path(OUTSIDE).exists()
    assert "+" in batch.predictions()["boxed"]["model_patch"]
    trajectory = json.loads((out / "boxed" / "boxed.traj.json").read_text())
    assert "Read-only file system" in json.dumps(trajectory)


@ONLY_MINI
def test_a_container(
    server: Live, tmp_path: Path, start: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    task = {"instance_id": "shipped", "problem_statement": "Mend it.", "image": "roman:1"}
    tasks = write_lines(tmp_path / "tasks.jsonl", [task])
    command, state = install(tmp_path, SCENARIOS / "roman")
    put(state, "stray", f"{BATCH_LABEL}={batch_label(out)}")
    put(state, "db", "app=db")
    monkeypatch.setenv("MSWEA_DOCKER_EXECUTABLE", str(command))
    batch = start(tasks, server.server.url, out, "--environment", "docker")
    batch.ended()
    assert batch.programs()["shipped"]["status"] == "Submitted"
    log = [json.loads(line) for line in (state / "log.jsonl").read_text().splitlines()]
    begin = ["ps", "rm", "image", "pull", "run"]
    assert [words[0] for words in log] == [*begin, "exec", "exec", "exec", "rm", "ps"]
    labels = (f"{BATCH_LABEL}={batch_label(out)}", f"{PROGRAM_LABEL}=shipped")
    assert [label for label in labels if label in log[4]] == [*labels]
    assert [folder.name for folder in state.iterdir() if folder.is_dir()] == ["db"]
    assert "+" in batch.predictions()["shipped"]["model_patch"]
    assert finished(server, "shipped", 3) == ["ls", "sed", "echo"]
