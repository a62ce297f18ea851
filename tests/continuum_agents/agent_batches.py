"""Batches of agents under test: a run of the command, its files, its processes, and tasks for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from continuum_agents.environments import AgentEnvironmentError, NoPython, find_framework, is_current, set_up
from continuum_server.ports import hold_port
from continuum_server.server_config import ServerError
from continuum_traces.run_dir import read_turns
from continuum_traces.schema import SchedulerEvent
from live_server import Live, live

SCENARIOS = Path(__file__).resolve().parents[2] / "agents" / "scenarios"
MARK = "CONTINUUM_TEST_BATCH"


@dataclass
class Batch:
    """One run of ``continuum-bench agent FRAMEWORK``, under way or over."""

    out: Path
    process: subprocess.Popen[str]
    mark: str
    """In the environment of all that it starts."""

    def wait(self) -> tuple[int, str]:
        """Status and what it said."""
        said, _ = self.process.communicate(timeout=600)
        return self.process.returncode, said

    def programs(self) -> dict[str, dict[str, Any]]:
        """programs.jsonl, by program."""
        lines = (self.out / "programs.jsonl").read_text().splitlines()
        return {program["program_id"]: program for program in map(json.loads, lines)}

    def predictions(self) -> dict[str, Any]:
        file = self.out / "preds.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    def processes(self, word: str = "") -> list[str]:
        """Command lines of living processes that it, or what it started, has started."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if marked and word in line:
                found.append(line)
        return found


def environment(name: str) -> None:
    """A framework's environment, made where it is not there; without one its tests are skipped, except in CI. No Python
    for it is a reason to skip there too."""
    framework = find_framework(name)
    try:
        if not is_current(framework):
            set_up(framework, print)
    except NoPython as error:
        pytest.skip(str(error))
    except AgentEnvironmentError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{name} cannot be installed here: {error}")


def task_file(folder: Path, *names: str, without_folder: tuple[str, ...] = ()) -> Path:
    """Tasks on copies of one scenario's code."""
    code = folder / "code"
    if not code.exists():
        shutil.copytree(SCENARIOS / "roman", code)
    lines = [{"instance_id": name, "problem_statement": "Mend it.", "folder": "code", "test": "true"} for name in names]
    lines += [{"instance_id": name, "problem_statement": "Mend it."} for name in without_folder]
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def events_of(server: Live, program_id: str, turns: int) -> list[SchedulerEvent]:
    """The server's events of a program that has had so many turns and holds nothing; its recorder lags a little."""

    def kinds() -> list[str]:
        return [event.event for event in server.events(program_id)]

    assert server.wait_for(lambda: kinds().count("finish") >= turns and kinds().count("pin") == kinds().count("unpin"))
    return server.events(program_id)


def second_turns(out: Path) -> set[str]:
    """Programs that have had two turns."""
    if not (out / "turns.jsonl").exists():
        return set()
    return {turn.program_id for turn in read_turns(out) if turn.turn == 1}


def through_a_restart(
    folder: Path, run: Callable[[str], Batch], config: dict[str, Any]
) -> tuple[Batch, list[SchedulerEvent]]:
    """A batch of one program ``patient`` whose server goes away in its second turn, and comes back at the same port
    once a call has failed.

    Args:
        folder: the test's; the batch records into ``run`` below it.
        run: starts the batch against a server of this URL; the second turn's command waits for a file ``go``.
        config: of both servers; the second one begins its script of answers anew.

    Returns:
        The batch, which ended well, and the second server's events of the program's three turns there.
    """
    out = folder / "run"
    for name in ("first", "second"):
        (folder / name).mkdir()
    with hold_port("127.0.0.1", 0) as held:
        config = {**config, "port": held.getsockname()[1]}
        with live(folder / "first", **config) as first:
            batch = run(first.server.url)
            wait_for(lambda: "patient" in second_turns(out), batch)
        (out / "workspaces" / "patient" / "go").touch()  # its next call finds nobody
        wait_for(lambda: any(turn.error for turn in read_turns(out)), batch)
        with live(folder / "second", **config) as second:
            status, said = batch.wait()
            assert status == 0, said
            return batch, events_of(second, "patient", 3)


def wait_for(condition: Callable[[], bool], batch: Batch | None) -> None:
    """Until it holds; fails where the batch ends first, or nothing comes of it for five minutes."""
    for _ in range(3000):
        if condition():
            return
        assert batch is None or batch.process.poll() is None, batch.wait()
        time.sleep(0.1)
    raise AssertionError("it never came to that")


def is_free(port: int) -> bool:
    """Whether a server can be started on the port."""
    with suppress(ServerError):
        hold_port("127.0.0.1", port).close()
        return True
    return False
