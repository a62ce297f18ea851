"""The frameworks' environments, and a way to run batches."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from agent_batches import MARK, Batch, environment
from continuum_agents.environments import COMMAND


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
