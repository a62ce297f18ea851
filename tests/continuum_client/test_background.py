"""Responses in the background: the turn is the retrieved answer, not the accepted job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from continuum_traces.records import read_turns
from fake_server import FakeServer
from test_proxy import through

from continuum_client import AsyncOpenAI, OpenAI, instrument, uninstrument

ASKED: Any = {"model": "m", "input": "q", "background": True}


def response(status: str) -> dict[str, Any]:
    over = status not in ("queued", "in_progress")
    part = {"type": "output_text", "text": "hi", "annotations": []}
    message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        **{"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status, "background": True},
        "output": [message] if over else [],
        "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12, **details} if over else None,
        **{"parallel_tool_calls": True, "tool_choice": "auto", "tools": []},
    }


def serving() -> FakeServer:
    """A server that accepts a job, says once that it is under way, and then how it ended."""

    async def accept(request: web.Request, number: int) -> web.StreamResponse:
        return web.json_response(response("queued"))

    server = FakeServer("anything", handler=accept)
    server.pages["/v1/responses/resp_1"] = (200, response("in_progress"))
    server.pages["/v1/responses/resp_1/cancel"] = (200, response("cancelled"))
    return server


def end(server: FakeServer) -> None:
    server.pages["/v1/responses/resp_1"] = (200, response("completed"))


def by_client(server: FakeServer, record: Path) -> None:
    client = OpenAI(base_url=server.url, api_key="k", record=record)
    with client.program("p"):
        job = client.responses.create(**ASKED)
        assert client.responses.retrieve(job.id).status == "in_progress"
        end(server)
        assert client.responses.with_raw_response.retrieve(job.id).parse().status == "completed"
        assert client.responses.retrieve(job.id).status == "completed"  # a second time it is no turn
    client.close()


def by_async_client(server: FakeServer, record: Path) -> None:
    async def ask() -> None:
        async with AsyncOpenAI(base_url=server.url, api_key="k", record=record) as client:
            async with client.program("p"):
                job = await client.responses.create(**ASKED)
            end(server)  # and the program may have ended before
            await client.responses.retrieve(job.id)

    asyncio.run(ask())


def by_instrument(server: FakeServer, record: Path) -> None:
    try:
        with instrument(record=record).program("p"):
            client = openai.OpenAI(base_url=server.url, api_key="k")
            job = client.responses.create(**ASKED)
            end(server)
            client.responses.retrieve(job.id)
    finally:
        uninstrument()


def by_proxy(server: FakeServer, record: Path) -> None:
    with through(server, record, "headers") as client:
        client.post("/v1/responses", json=ASKED)
        client.get("/v1/responses/resp_1")
        end(server)
        assert client.get("/v1/responses/resp_1").json()["status"] == "completed"


@pytest.mark.parametrize("ask", [by_client, by_async_client, by_instrument, by_proxy])
def test_the_turn_is_the_retrieved_answer(ask: Callable[[FakeServer, Path], None], tmp_path: Path) -> None:
    with serving() as server:
        ask(server, tmp_path)
    (turn,) = read_turns(tmp_path)
    assert (turn.error, turn.prompt_tokens, turn.output_tokens) == (None, 10, 2)
    assert (tmp_path / "trace.jsonl").read_text().count('"kind":"turn"') == 1


@pytest.mark.parametrize(("cancels", "error"), [(True, "cancelled"), (False, "accepted, and never retrieved")])
def test_a_job_without_an_answer_is_no_turn_of_the_trace(cancels: bool, error: str, tmp_path: Path) -> None:
    with serving() as server:
        client = OpenAI(base_url=server.url, api_key="k", record=tmp_path)
        with client.program("p"):
            job = client.responses.create(**ASKED)
            if cancels:
                client.responses.cancel(job.id)
        client.close()
    (turn,) = read_turns(tmp_path)
    assert error in str(turn.error)
    assert '"kind":"turn"' not in (tmp_path / "trace.jsonl").read_text()
