"""mini-swe-agent's environment, and a way to run batches."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from continuum_agents.environments import AgentEnvironmentError, find_framework, is_current, set_up

sys.path.insert(0, str(Path(__file__).parent))

from agent_batches import MARK, Batch


@pytest.fixture(scope="session")
def mini_swe() -> None:
    """The environment, made where it is not there; without one these tests are skipped, except in CI."""
    framework = find_framework("mini-swe")
    try:
        if not is_current(framework):
            set_up(framework, print)
    except AgentEnvironmentError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"mini-swe-agent cannot be installed here: {error}")


@pytest.fixture
def start(mini_swe: None) -> Iterator[Callable[..., Batch]]:
    """Starts a batch, in a session of its own: its Ctrl-C is not pytest's."""
    batches: list[Batch] = []

    def started(tasks: Path, url: str, out: Path, *options: str) -> Batch:
        command = [sys.executable, "-m", "continuum_bench", "agent", "mini-swe", "--tasks", str(tasks)]
        command += ["--base-url", f"{url}/v1", "--out", str(out), "--jps", "5", *options]
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
                batch.process.wait(60)
            batch.process.kill()
