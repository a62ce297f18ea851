"""The frameworks' environments, and a way to run batches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import pytest
from agent_batches import MARK, Batch, environment, scripted, task_file
from code_agents import MINI, OPENHANDS, Kind
from continuum_agents.environments import COMMAND
from live_server import Live


@pytest.fixture
def start() -> Iterator[Callable[..., Batch]]:
    """Starts a batch, in a session of its own: its Ctrl-C is not pytest's."""
    batches: list[Batch] = []

    def started(tasks: Path | None, url: str, out: Path, *options: str, framework: str = "mini-swe") -> Batch:
        if framework != COMMAND.name:
            environment(framework)
        command = [sys.executable, "-m", "continuum_bench", "agent", framework]
        command += ["--tasks", str(tasks)] if tasks is not None else []
        command += [] if "--arrivals" in options else ["--jps", "5"]
        command += ["--base-url", f"{url}/v1", "--out", str(out), *options]
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, MARK: mark},
        )
        batches.append(Batch(out, process, mark))
        return batches[-1]

    yield started
    for batch in batches:
        if batch.process.poll() is None:
            batch.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                batch.process.wait(120)
            batch.process.kill()


@pytest.fixture(params=[MINI, OPENHANDS], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    if request.param is OPENHANDS and shutil.which("tmux") is None:
        pytest.skip("OpenHands' terminal as it is meant to be needs tmux")
    found: Kind = request.param
    return found


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], Live]]:
    """One server for all programs of a kind, from its first use on. Its holds outlast the tools that do not hang."""
    with ExitStack() as stack:

        @cache
        def server_of(kind: Kind) -> Live:
            folder = tmp_path_factory.mktemp(kind.name)
            return stack.enter_context(scripted(folder, kind.script(), policy_options={"ttl_s": 20.0}))

        yield server_of


@pytest.fixture
def server(kind: Kind, servers: Callable[[Kind], Live]) -> Live:
    return servers(kind)


@pytest.fixture
def play(kind: Kind, server: Live, tmp_path: Path, start: Callable[..., Batch]) -> Callable[..., Batch]:
    """Starts a batch: ``play("fine", "dies", "--workers", "3")``."""

    def started(*words: str, without_folder: tuple[str, ...] = ()) -> Batch:
        names = [word for word in words if word in kind.script()]
        tasks = task_file(tmp_path, *names, without_folder=without_folder)
        return start(tasks, server.server.url, tmp_path / "run", *words[len(names) :], framework=kind.name)

    return started
