"""Real servers for the tests, and a client that speaks in token ids: prompts and answers of exact length."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from continuum_server.launcher import Server, ServerConfig, model_name
from continuum_traces.run_dir import read_events
from continuum_traces.schema import SchedulerEvent
from openai import OpenAI

BLOCK = 16


@dataclass
class Live:
    """A server under test."""

    server: Server
    record: Path
    model: str
    blocks: int

    @property
    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.server.url}/v1", api_key="EMPTY", max_retries=0, timeout=120.0)

    def state(self, key: str = "EMPTY") -> dict[str, Any]:
        """The one engine's state."""
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.get(f"{self.server.url}/continuum/state", headers=headers, timeout=30.0)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["engines"][0])

    def is_idle(self) -> bool:
        state = self.state()
        return bool(state["running"] == state["waiting"] == 0)

    def pins(self) -> dict[str, dict[str, Any]]:
        return {pin["program_id"]: pin for pin in self.state()["pins"]}

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

    def events(self, program_id: str, until: str | None = None) -> list[SchedulerEvent]:
        """The program's recorded events; waits for the recorder, up to two seconds, where ``until`` is to come."""
        for _ in range(20):
            found = [event for event in read_events(self.record) if event.program_id == program_id]
            if until is None or any(event.event == until for event in found):
                return found
            time.sleep(0.1)
        return found

    def wait_for(self, condition: Callable[[], bool], seconds: float = 10.0) -> bool:
        for _ in range(int(seconds * 20)):
            if condition():
                return True
            time.sleep(0.05)
        return False


@contextmanager
def live(folder: Path, **config: Any) -> Iterator[Live]:
    """A server with its record in ``folder``; stopped at the end."""
    made = ServerConfig(**{"port": 0, "drain_s": 5, "record": folder / "record", **config})
    with Server(made, folder / "server.log") as server:
        yield Live(server, folder / "record", model_name(made), made.kv_blocks or 0)


def tokens(count: int, seed: int) -> list[int]:
    """Ids of no meaning; different seeds share no block."""
    return random.Random(seed).choices(range(300, 8000), k=count)


def cached(response: Any) -> int:
    details = response.usage.prompt_tokens_details
    return int(details.cached_tokens or 0) if details is not None else 0


def continued(prompt: list[int], response: Any, more: int, seed: int) -> list[int]:
    """The next turn's prompt: everything so far, then a tool's output."""
    return [*prompt, *response.choices[0].token_ids, *tokens(more, seed)]
