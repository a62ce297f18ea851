"""Hints: with which calls they are sent, and which values cannot be. A program that is handed over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from fake_server import FakeServer, Planned

from continuum_client import InvalidTag, OpenAI, ProgramClosed

HINTS = ("kv_ttl_s", "task")


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
        p.kv_ttl(1e9)
        server.plan.append(Planned(status=500))
        with pytest.raises(openai.InternalServerError):
            ask()
        ask()
        ask()
        p.kv_ttl(1)
        server.plan.append(Planned(status=500))
        with pytest.raises(openai.InternalServerError):
            ask()
        p.kv_ttl(2)  # newer than what the failed call gives back
        ask()
    wishes = (86_400.0, 86_400.0, None, 1.0, 2.0)
    assert sent(server) == [{"task": "triage"} | ({"kv_ttl_s": wish} if wish else {}) for wish in wishes]


def test_what_remains_is_no_longer_sent(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    client = OpenAI(base_url=server.url, dialect="vllm")
    with client.program() as p:
        with pytest.warns(DeprecationWarning, match="delete the call") as caught:
            p.remaining(turns=3, tokens=900)
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
    assert caught[0].filename == __file__
    assert not any("remaining" in name for name in server.turns[0].body["vllm_xargs"])


def test_hints_that_cannot_be_sent(server: FakeServer) -> None:
    with OpenAI(base_url=server.url).program() as p:
        with pytest.raises(InvalidTag, match="task"):
            p.task("")
        with pytest.raises(InvalidTag, match="kv_ttl"):
            p.kv_ttl(float("nan"))


def test_a_program_that_is_handed_over(serve: Callable[..., FakeServer]) -> None:
    server = serve("vllm")
    here, there = (OpenAI(base_url=server.url, dialect="vllm") for _ in range(2))

    def ask(client: OpenAI) -> None:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])

    with here.program("p", parent="above") as p:
        p.task("triage")
        ask(here)
        text = p.handoff()
        with pytest.raises(ProgramClosed):
            p.handoff()
    assert [seen.path for seen in server.seen] == ["/v1/chat/completions"]  # no release
    with there.resume(text):
        ask(there)
    first, second = (seen.body["vllm_xargs"] for seen in server.turns)
    assert first.pop("turn_id") != second.pop("turn_id")
    assert first == second == {"program_id": "p", "parent_id": "above", "task": "triage"}
    assert server.seen[-1].path == "/continuum/programs/p/release"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"program_id": "", "parent_id": null, "task": null}', "null"])
def test_what_cannot_be_resumed(server: FakeServer, text: str) -> None:
    with pytest.raises(InvalidTag):
        OpenAI(base_url=server.url).resume(text)
