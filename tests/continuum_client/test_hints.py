"""Hints: with which calls they are sent, and which values cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from client_fakes import FakeServer, Planned

from continuum_client import InvalidTag, OpenAI

HINTS = ("kv_ttl_s", "remaining_turns", "remaining_tokens", "task")


def sent(server: FakeServer) -> list[dict[str, Any]]:
    """The hints of each generating request."""
    bodies = (seen.body["vllm_xargs"] for seen in server.seen if seen.path.endswith("/completions"))
    return [{name: body[name] for name in HINTS if name in body} for body in bodies]


def test_a_hint_is_sent_once_and_a_task_always(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm", max_retries=0)

    def ask() -> None:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])

    with client.program("p") as p:
        p.task(" triage ")
        p.remaining(turns=3)
        p.remaining(tokens=900)
        p.kv_ttl(1e9)
        server.plan.append(Planned(status=500))
        with pytest.raises(openai.InternalServerError):
            ask()
        p.remaining(turns=2)  # newer than what the failed call gives back
        ask()
        ask()
    every = {"kv_ttl_s": 86_400.0, "remaining_turns": 3, "remaining_tokens": 900, "task": "triage"}
    assert sent(server) == [every, {**every, "remaining_turns": 2}, {"task": "triage"}]


def test_hints_that_cannot_be_sent(server: FakeServer) -> None:
    with OpenAI(base_url=server.url).program() as p:
        for wrong in (-1, 1.5, True):
            with pytest.raises(InvalidTag, match="remaining_turns"):
                p.remaining(turns=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidTag, match="task"):
            p.task("")
        with pytest.raises(InvalidTag, match="kv_ttl"):
            p.kv_ttl(float("nan"))
