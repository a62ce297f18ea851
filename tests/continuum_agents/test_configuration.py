"""``-c``: what a framework cannot use is found before a directory is made or a program runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from agent_batches import SCENARIOS, environment
from continuum_bench.cli import app
from typer.testing import CliRunner


class Models(BaseHTTPRequestHandler):
    """A server that says what it serves, and no more."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"data": [{"id": "m"}]}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


MISTAKES = [
    ("mini-swe", "tasks.jsonl", "agent.step_limit=3", "AgentConfig system_template Field required"),
    ("openhands", "openhands-tasks.jsonl", "llm.nonsense=1", "configuration llm.nonsense: there are "),
]


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "tasks", "given", "message"), MISTAKES)
def test_a_configuration_that_cannot_be(
    framework: str, tasks: str, given: str, message: str, url: str, tmp_path: Path
) -> None:
    environment(framework)
    words = ["agent", framework, "--base-url", url, "--tasks", str(SCENARIOS / tasks), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*words, "-c", given])
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"error: -c {given}: ")
    assert message in done.stderr
    assert not (tmp_path / "out").exists()
