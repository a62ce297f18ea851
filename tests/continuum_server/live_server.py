"""Real servers for the tests, and a client that speaks in token ids: prompts and answers of exact length."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import psutil
from continuum_server.launcher import Server
from continuum_server.server_command import model_name
from continuum_server.server_config import ServerConfig
from continuum_traces.records import read_events
from continuum_traces.schema import SchedulerEvent
from openai import OpenAI
from waiting import until

BLOCK = 16


@dataclass
class Live:
    """A server under test."""

    server: Server
    record: Path
    model: str
    blocks: int

    @cached_property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.server.url}/v1", api_key="EMPTY", max_retries=0, timeout=120.0)

    def state(self, key: str = "EMPTY") -> dict[str, Any]:
        """The one engine's state, no older than this call: the server keeps one for a second."""
        headers, began_s = {"Authorization": f"Bearer {key}"}, datetime.now().timestamp()

        def look() -> dict[str, Any] | None:
            answer = httpx.get(f"{self.server.url}/continuum/state", headers=headers, timeout=30.0)
            assert answer.status_code == 200, answer.text
            state = dict(answer.json()["engines"][0])
            return state if state["now_s"] >= began_s else None

        return until(look) or {}

    def is_idle(self) -> bool:
        state = self.state()
        return bool(state["running"] == state["waiting"] == 0)

    def pins(self) -> dict[str, dict[str, Any]]:
        return {row["program_id"]: row for row in self.state()["program_list"] if row["state"] == "held"}

    def release(self, program_id: str) -> bool:
        answer = httpx.post(f"{self.server.url}/continuum/programs/{program_id}/release", timeout=30.0)
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["released"])

    def complete(self, prompt: list[int], output: int = 8, **xargs: Any) -> Any:
        """A completion of exactly ``output`` tokens."""
        return self.client.completions.create(
            model=self.model,
            prompt=prompt,
            max_tokens=output,
            extra_body={"ignore_eos": True, "return_token_ids": True, "vllm_xargs": xargs},
        )

    def events(self, program_id: str, last: str | None = None) -> list[SchedulerEvent]:
        """The program's recorded events; waits for the recorder until one of kind ``last`` is there."""

        def found() -> list[SchedulerEvent]:
            return [event for event in read_events(self.record) if event.program_id == program_id]

        if last is not None:
            until(lambda: any(event.event == last for event in found()))
        return found()


@contextmanager
def live(folder: Path, **config: Any) -> Iterator[Live]:
    """A server with its record in ``folder``; stopped at the end."""
    made = ServerConfig(**{"port": 0, "drain_s": 5, "record": folder / "record", **config})
    with Server(made, folder / "server.log") as server:
        found = Live(server, folder / "record", model_name(made), made.kv_blocks or 0)
        try:
            yield found
        finally:
            found.client.close()


def tokens(count: int, seed: int) -> list[int]:
    """Ids of no meaning; different seeds share no block."""
    return random.Random(seed).choices(range(300, 8000), k=count)


def cached(response: Any) -> int:
    details = response.usage.prompt_tokens_details
    return int(details.cached_tokens or 0) if details is not None else 0


def continued(prompt: list[int], response: Any, more: int, seed: int) -> list[int]:
    """The next turn's prompt: everything so far, then a tool's output."""
    return [*prompt, *response.choices[0].token_ids, *tokens(more, seed)]


MARK = "CONTINUUM_TEST_MARKER"


def serve_command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """``continuum-bench serve`` on a free port, its log in ``folder``, in a session of its own."""
    command = [sys.executable, "-m", "continuum_bench", "serve", "--port", "0", "--log", str(folder / "log")]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "INFO", MARK: str(folder)}
    return subprocess.Popen(
        [*command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def sessions_of(folder: Path) -> set[int]:
    """Sessions of all that was started with ``MARK`` set to this folder and runs now, and of its children."""
    marked = {number for number, process in _running().items() if process["environ"].get(MARK) == str(folder)}
    return {process["session"] for number, process in _running().items() if marked & {number, process["ppid"]}}


def processes_of(sessions: set[int]) -> dict[int, str]:
    """Command lines of the processes in these sessions, by id.

    By session, not by environment: vLLM's engine writes its title over its own.
    """
    return {
        number: " ".join(process["cmdline"]) for number, process in _running().items() if process["session"] in sessions
    }


def _running() -> dict[int, dict[str, Any]]:
    """All processes by id; one that ended and was not waited for is none."""
    found = {}
    for process in psutil.process_iter(["ppid", "cmdline", "environ", "status"]):
        facts = process.info
        with suppress(ProcessLookupError, PermissionError):
            facts.update(session=os.getsid(process.pid), environ=facts["environ"] or {}, cmdline=facts["cmdline"] or [])
            if facts["status"] != psutil.STATUS_ZOMBIE:
                found[process.pid] = facts
    return found


def ends_soon(sessions: set[int], seconds: float = 120.0) -> list[str]:
    """What is left in these sessions after so long; it is killed then."""
    for _ in range(int(seconds * 10)):
        if not processes_of(sessions):
            return []
        time.sleep(0.1)
    left = processes_of(sessions)
    for process in left:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return list(left.values())
