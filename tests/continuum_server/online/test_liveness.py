"""``continuum-bench serve`` when something dies: what it says, how it ends, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import ends_soon, processes_of, serve_command, sessions_of
from waiting import until

pytestmark = pytest.mark.slow

SMALL = ("--kv-blocks", "1200", "--max-model-len", "16000", "--time-scale", "20")


class Served:
    """A running ``continuum-bench serve``, ready."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        assert process.stdout is not None
        self.said: dict[str, str] = {}
        while "state" not in self.said:
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            name, _, rest = line.partition(": ")
            self.said[name] = rest.rstrip().split(",")[0]
        self.sessions = sessions_of(folder)

    def process_ids(self, word: str) -> list[int]:
        """Of its processes whose command line has this word, the oldest first."""
        return sorted(number for number, line in processes_of(self.sessions).items() if word in line)

    def health(self) -> tuple[int, dict[str, Any]]:
        answer = httpx.get(f"{self.said['ready'].removesuffix('/v1')}/health", timeout=120.0)
        return answer.status_code, answer.json()

    def health_once(self, status: str) -> tuple[int, dict[str, Any]]:
        """What ``health`` says once it says this."""
        until(lambda: self.health()[1]["status"] == status)
        return self.health()

    def chat(self) -> int:
        messages = [{"role": "user", "content": "hello"}]
        body = {"model": "llama-3.1-8b", "messages": messages, "max_tokens": 4}
        return httpx.post(f"{self.said['ready']}/chat/completions", json=body, timeout=120.0).status_code


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Served]:
    process = serve_command(folder, *SMALL, *arguments)
    try:
        yield Served(process, folder)
    finally:
        sessions = sessions_of(folder)
        process.kill()
        process.communicate()
        ends_soon(sessions)


@pytest.mark.parametrize(
    ("victim", "how"),
    [
        ("VLLM::EngineCore", "ended by itself with status 0, as vLLM does when its engine dies"),
        ("emulated.api_server", "was killed by signal 9"),
    ],
)
def test_a_server_that_dies_is_one_line_and_a_status(tmp_path: Path, victim: str, how: str) -> None:
    with served(tmp_path) as server:
        (number,) = server.process_ids(victim)
        os.kill(number, signal.SIGKILL)
        _, errors = server.process.communicate(timeout=300)
        assert (server.process.returncode, errors) == (1, f"error: the server {how}; see {tmp_path}/log\n")
        assert ends_soon(server.sessions) == []


def test_a_killed_command_leaves_no_server(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.process_ids("VLLM::EngineCore")
        server.process.kill()
        assert ends_soon(server.sessions) == []


def test_replicas_say_how_they_are_and_end_with_the_command(tmp_path: Path) -> None:
    with served(tmp_path, "--replicas", "2", "--router", "round_robin") as server:
        status, health = server.health()
        assert (status, health["status"]) == (200, "serving")
        assert [(one["name"], one["serving"]) for one in health["replicas"]] == [("replica0", True), ("replica1", True)]
        os.kill(server.process_ids("VLLM::EngineCore")[0], signal.SIGKILL)
        status, health = server.health_once("degraded")
        assert (status, sorted(one["serving"] for one in health["replicas"])) == (200, [False, True])
        assert [server.chat() for _ in range(4)] == [200] * 4
        server.process.kill()
        assert ends_soon(server.sessions) == []


@pytest.mark.parametrize(("victim", "last"), [("server.front", "the router was killed by signal 9"), ("VLLM", "")])
def test_replicas_that_serve_nobody_are_an_end(tmp_path: Path, victim: str, last: str) -> None:
    with served(tmp_path, "--replicas", "2") as server:
        for number in server.process_ids(victim):
            os.kill(number, signal.SIGKILL)
        _, errors = server.process.communicate(timeout=300)
        assert server.process.returncode == 1
        expected = f"{last}; see {tmp_path}/log/router.log" if last else "all replicas have ended"
        assert errors.splitlines()[-1] == f"error: {expected}"
        assert ends_soon(server.sessions) == []
