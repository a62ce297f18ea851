"""Hints: with which calls they are sent. A program that is handed over."""

from __future__ import annotations

import openai
import pytest
from fake_server import FakeServer, Planned
from sdk import ask

from continuum_client import InvalidTag, OpenAI, ProgramClosed


def test_a_newer_hint_counts_more_than_what_a_failed_call_gives_back(vllm: FakeServer) -> None:
    client = OpenAI(base_url=vllm.url, dialect="vllm", max_retries=0)
    vllm.plan.append(Planned(status=500))
    with client.program("p") as p:
        p.kv_ttl(1)
        with pytest.raises(openai.InternalServerError):
            ask(client)
        p.kv_ttl(2)
        ask(client)
    assert [body["vllm_xargs"].get("kv_ttl_s") for body in vllm.bodies] == [1.0, 2.0]


def test_what_remains_is_no_longer_sent(client: OpenAI, vllm: FakeServer) -> None:
    with client.program() as p:
        with pytest.warns(
            DeprecationWarning, match=r"^Program.remaining\(\) is deprecated and goes in 0.4.0: delete the call"
        ) as caught:
            p.remaining(turns=3, tokens=900)
        ask(client)
    assert caught[0].filename == __file__
    assert vllm.xargs[0].keys() == {"program_id", "turn_id"}


def test_a_program_that_is_handed_over(vllm: FakeServer) -> None:
    here, there = (OpenAI(base_url=vllm.url, dialect="vllm") for _ in range(2))
    with here.program("p", parent="above") as p:
        ask(here)
        text = p.handoff()
        with pytest.raises(ProgramClosed):
            p.handoff()
    assert vllm.released == []
    with there.resume(text):
        ask(there)
    first, second = vllm.xargs
    assert first.pop("turn_id") != second.pop("turn_id")
    assert first == second == {"program_id": "p", "parent_id": "above"}
    assert vllm.released == ["p"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"program_id": "", "parent_id": null}', "null"])
def test_what_cannot_be_resumed(server: FakeServer, text: str) -> None:
    with pytest.raises(InvalidTag):
        OpenAI(base_url=server.url).resume(text)
