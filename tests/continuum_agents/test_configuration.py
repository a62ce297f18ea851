"""``-c``: what a framework cannot use is found before a directory is made or a program runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_batches import SCENARIOS, environment
from continuum_bench.cli import app
from fake_server import FakeServer
from typer.testing import CliRunner

MISTAKES = [
    ("mini-swe", "tasks.jsonl", "agent.step_limit=3", "AgentConfig system_template Field required"),
    ("openhands", "openhands-tasks.jsonl", "llm.nonsense=1", "configuration llm.nonsense: there are "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "tasks", "given", "message"), MISTAKES)
def test_a_configuration_that_cannot_be(framework: str, tasks: str, given: str, message: str, tmp_path: Path) -> None:
    environment(framework)
    words = ["--tasks", str(SCENARIOS / tasks), "--out", str(tmp_path / "out")]
    with FakeServer() as server:
        done = CliRunner().invoke(app, ["agent", framework, "--base-url", server.url, *words, "-c", given])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"error: -c {given}: ")
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
