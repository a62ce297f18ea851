"""The real mini-swe-agent with ``--environment docker``, in containers of a real daemon."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_batches import SCENARIOS, Batch, finished, scripted, wait_for, write_lines
from agent_checks import a_replay_has_the_same_turns_and_tokens, programs_of, the_trace_is_what_the_server_saw
from code_agents import MEND, MINI, NAP, OUTSIDE
from continuum_agents.protocol import BATCH_LABEL, PROGRAM_LABEL
from continuum_bench.agents.runner import batch_label
from continuum_traces.records import read_turns
from live_server import Live
from real_docker import Docker, real_docker

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents" / "mini-swe.md"
IMAGE = "roman:1"
SLEEPING = f"grep -l {NAP} /proc/[0-9]*/cmdline"
"""Finds the sleep, and itself."""
REPLIES = {
    "slow": MINI.runs("ls", "sleep 2", *MEND),
    "far": MINI.runs(f"touch {OUTSIDE}", f"ls {OUTSIDE} $PWD/roman", *MEND),
    **dict.fromkeys(("quick", "missing", "stopped#3"), MINI.runs("ls", *MEND)),
    **dict.fromkeys(("interrupted", "stopped", "stopped#2"), MINI.says("ls", f"sleep {NAP}")),
    "limited": MINI.says(f"sleep {NAP}", SLEEPING),
}


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Docker]:
    """A daemon whose image has the scenario's code in a repository, as SWE-bench's images have theirs."""
    code = shutil.copytree(SCENARIOS / "roman", tmp_path_factory.mktemp("image") / "testbed")
    commit = "git -c user.name=x -c user.email=x@localhost commit -q -m 'as given'"
    subprocess.run(["sh", "-c", f"git init -q && git add -A && {commit}"], cwd=code, check=True)
    with real_docker() as docker:
        with docker.image(IMAGE) as files:
            files.programs("bash", "cat", "git", "grep", "ls", "sed", "sleep", "touch")
            files.folder(code, Path("/testbed"))
        yield docker


@pytest.fixture(scope="module")
def server(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with scripted(tmp_path_factory.mktemp("server"), REPLIES, policy_options={"ttl_s": 20.0}) as server:
        yield server


@pytest.fixture
def play(
    docker: Docker, server: Live, tmp_path: Path, start: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Batch]:
    """Starts a batch: ``play({"quick": IMAGE}, "--workers", "2")``."""
    for name, value in docker.variables.items():
        monkeypatch.setenv(name, value)

    def started(images: dict[str, str], *options: str) -> Batch:
        tasks = [
            {"instance_id": name, "problem_statement": "Mend it.", "image": image} for name, image in images.items()
        ]
        file = write_lines(tmp_path / "tasks.jsonl", tasks)
        return start(file, server.server.url, tmp_path / "run", "--environment", "docker", *options)

    return started


def sleeping(docker: Docker, batch: Batch, program: str) -> list[str]:
    """The container of the program, if it runs the program's endless command."""
    found = docker.containers(f"{BATCH_LABEL}={batch_label(batch.out)}", f"{PROGRAM_LABEL}={program}")
    return [each for each in found if NAP in docker.run("top", each).stdout]


def told(batch: Batch, program: str) -> list[str]:
    """The texts of the program's messages in mini-swe-agent's record; those at odd indices from 3 on are outputs."""
    trajectory = json.loads((batch.out / program / f"{program}.traj.json").read_text())
    return [message["content"] or "" for message in trajectory["messages"]]


def test_programs_and_tool_times(docker: Docker, server: Live, play: Callable[..., Batch]) -> None:
    """Each program has a container. All records agree, and the patches are those of the code in the image."""
    names = {"slow", "far"}
    batch = play(dict.fromkeys(sorted(names), IMAGE), "--workers", "2")
    batch.ended()
    assert batch.ends() == dict.fromkeys(names, ("Submitted", None))
    assert docker.containers() == []
    the_trace_is_what_the_server_saw(server, batch.out, names)
    a_replay_has_the_same_turns_and_tokens(batch.out, batch.out.with_name("replayed"))
    assert finished(server, "slow", 4) == ["ls", "sleep", "sed", "echo"]
    slow = batch.programs()["slow"]
    assert slow["tools"] == ["ls", "sleep", "sed", "echo"]
    turns = programs_of(batch.out / "trace.jsonl")["slow"].turns
    times = [call.duration_s or 0.0 for turn in turns for call in turn.tool_calls]
    assert times[1] >= 2.0
    assert min(times) > 0.0
    assert abs(sum(times) - slow["tool_s"]) < 0.01
    assert any(f"{OUTSIDE}\n" in text for text in told(batch, "far")[4:])
    assert not Path(OUTSIDE).exists()
    for name in names:
        patch = batch.predictions()[name]["model_patch"]
        fits = ["git", "apply", "--check", "-"]
        assert subprocess.run(fits, cwd=SCENARIOS / "roman", input=patch, text=True).returncode == 0


def test_a_batch_goes_on_after_a_crash(docker: Docker, play: Callable[..., Batch]) -> None:
    """If the harness alone is killed, its agents remove their containers. If all are killed, a container runs on. The
    next start of this batch removes it, and leaves others alone."""
    other = docker.output("run", "-d", "--label", f"{BATCH_LABEL}=another", "--network", "none", IMAGE, "sleep", "600")
    tasks = {"quick": IMAGE, "stopped": IMAGE}
    batch = play(tasks, "--workers", "2")
    wait_for(lambda: sleeping(docker, batch, "stopped") and "quick" in batch.predictions(), batch)
    batch.process.kill()
    wait_for(lambda: docker.containers() == [other], None)
    batch = play(tasks)
    wait_for(lambda: bool(sleeping(docker, batch, "stopped#2")), batch)
    batch.crash()
    assert sleeping(docker, batch, "stopped#2")
    batch = play(tasks)
    said = batch.ended()
    assert "1 container removed" in said
    assert "1 finished before" in said
    assert docker.containers() == [other]
    assert {name for name, (status, _) in batch.ends().items() if status == "Submitted"} == {"quick", "stopped#3"}
    assert set(batch.predictions()) == {"quick", "stopped"}
    (command,) = re.findall(r"`(docker rm .*?)`", PAGE.read_text())
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)
    assert docker.containers() == []


def test_ctrl_c_removes_containers(docker: Docker, play: Callable[..., Batch]) -> None:
    batch = play({"interrupted": IMAGE})
    wait_for(lambda: sleeping(docker, batch, "interrupted"), batch)
    batch.process.send_signal(signal.SIGINT)
    batch.ended(130)
    assert docker.containers() == []
    assert batch.ends() == {"interrupted": ("Interrupted", None)}
    assert [(turn.program_id, turn.turn) for turn in read_turns(batch.out)] == [("interrupted", 0), ("interrupted", 1)]


def test_a_missing_image(docker: Docker, play: Callable[..., Batch]) -> None:
    """It stops a batch before its first program. With ``--no-pull`` it is the fault of its program only."""
    tasks = {"quick": IMAGE, "missing": "localhost:1/roman:2"}
    batch = play(tasks)
    said = batch.ended(2).splitlines()
    assert re.search(r"docker pull: Error response from daemon: .*connection refused", said[-1]), said
    assert not (batch.out / "programs.jsonl").exists()
    batch = play(tasks, "--no-pull")
    batch.ended(1)
    assert {name: status for name, (status, _) in batch.ends().items()} == {"quick": "Submitted", "missing": "Error"}
    docker.output("tag", IMAGE, tasks["missing"])
    batch = play(tasks, "--no-pull")
    batch.ended()
    assert batch.ends()["missing"] == ("Submitted", None)
    assert docker.containers() == []


def test_a_command_at_its_limit(docker: Docker, play: Callable[..., Batch]) -> None:
    """mini-swe-agent goes on and kills ``docker exec`` only. The command runs on until the container is removed."""
    batch = play({"limited": IMAGE}, "--tool-limit", "3")
    batch.ended()
    assert batch.ends() == {"limited": ("Submitted", None)}
    after = told(batch, "limited")
    assert "timed out after 3 seconds" in after[3]
    assert re.search(r"/proc/\d+/cmdline\n/proc/\d+/cmdline", after[5])
    assert docker.containers() == []
