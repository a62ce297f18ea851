"""``continuum-bench serve`` when something dies: what it says, how it ends, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from live_server import ends_soon, processes_of, serve_command, sessions_of

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


@pytest.mark.parametrize("engines", [1, 2])
def test_a_server_that_dies_is_one_line_and_a_status(engines: int, tmp_path: Path) -> None:
    """One engine's death is the server's: vLLM stops the others."""
    how = "ended by itself with status 0, as vLLM does when its engine dies"
    with served(tmp_path, "--data-parallel-size", str(engines)) as server:
        numbers = server.process_ids("VLLM::EngineCore")
        assert len(numbers) == engines
        os.kill(numbers[-1], signal.SIGKILL)
        _, errors = server.process.communicate(timeout=300)
        assert (server.process.returncode, errors) == (1, f"error: the server {how}; see {tmp_path}/log\n")
        assert ends_soon(server.sessions) == []


def test_a_killed_command_leaves_no_server(tmp_path: Path) -> None:
    with served(tmp_path, "--data-parallel-size", "2") as server:
        assert len(server.process_ids("VLLM::EngineCore")) == 2
        server.process.kill()
        assert ends_soon(server.sessions) == []
