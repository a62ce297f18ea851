"""``continuum-bench serve`` when something dies: what it says, how it ends, and that nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
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
        while "tokenizer" not in self.said:  # the last line that a server under any policy prints
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


SHARES: dict[str, tuple[str, ...]] = {"all": ("--time-scale", "1"), "none": ("--time-scale", "1", "--drain-s", "0")}


@pytest.mark.parametrize(
    ("policy", "victim", "left"), [("stock", 0, "all"), ("working-set", 1, "all"), ("vllm", 1, "none")]
)
def test_no_request_waits_for_an_engine_that_died(policy: str, victim: int, left: str, tmp_path: Path) -> None:
    """Its requests end with an error, those of the other engine with whole answers if there is time to drain."""
    begun = [threading.Event() for _ in range(8)]

    def ask(number: int) -> str:
        body = {"model": "llama-3.1-8b", "prompt": f"{number} " * 50, "max_tokens": 1000, "ignore_eos": True}
        to = {"X-data-parallel-rank": str(number % 2)}
        lines = []
        with httpx.stream("POST", f"{url}/completions", json={**body, "stream": True}, headers=to, timeout=120) as got:
            for line in got.iter_lines():
                lines.append(line)
                begun[number].set()
        return "\n".join(lines)

    with (
        served(tmp_path, "--data-parallel-size", "2", "--policy", policy, *SHARES[left]) as server,
        ThreadPoolExecutor(8) as pool,
    ):
        url = server.said["ready"]
        asked = [pool.submit(ask, number) for number in range(8)]
        assert all(each.wait(120) for each in begun)
        os.kill(server.process_ids("VLLM::EngineCore")[victim], signal.SIGKILL)
        answers = [each.result() for each in asked]
        whole = ['"finish_reason":"length"' in answer and '"error"' not in answer for answer in answers]
        assert whole == [left == "all" and number % 2 != victim for number in range(8)]
        assert all('"error"' in answer or good for answer, good in zip(answers, whole, strict=True))
        _, errors = server.process.communicate(timeout=300)
        assert (server.process.returncode, errors.count("\n")) == (1, 1)
        log = (tmp_path / "log").read_text()
        assert f"continuum: vLLM's EngineCore_DP{victim} (exit code -9) died; its requests fail" in log


def test_a_killed_command_leaves_no_server(tmp_path: Path) -> None:
    with served(tmp_path, "--data-parallel-size", "2") as server:
        assert len(server.process_ids("VLLM::EngineCore")) == 2
        server.process.kill()
        assert ends_soon(server.sessions) == []
