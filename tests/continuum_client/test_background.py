"""Responses in the background: the turn is the retrieved answer, not the accepted job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web
from continuum_traces.records import read_turns
from fake_server import FakeServer, as_event, hang_up, streaming
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


JOB = "/v1/responses/resp_1"
DELTA = {"item_id": "m1", "output_index": 0, "content_index": 0, "logprobs": [], "delta": "h"}
EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": response("queued"), "sequence_number": 0},
    {"type": "response.in_progress", "response": response("in_progress"), "sequence_number": 1},
    {"type": "response.output_text.delta", **DELTA, "sequence_number": 2},
    {"type": "response.output_text.delta", **DELTA, "sequence_number": 3},
    {"type": "response.completed", "response": response("completed"), "sequence_number": 4},
]


def serving() -> FakeServer:
    """A server that accepts a job, says once that it is under way, and then how it ended. A stream breaks off."""

    async def accept(request: web.Request, number: int) -> web.StreamResponse:
        if not (await request.json()).get("stream"):
            return web.json_response(response("queued"))
        stream = await streaming(request)
        for event in EVENTS[:3]:
            await stream.write(as_event(event))
        return hang_up(request, stream)

    server = FakeServer("anything", handler=accept)
    server.pages[JOB] = (200, response("in_progress"))
    server.pages[f"{JOB}/cancel"] = (200, response("cancelled"))
    return server


def end(server: FakeServer) -> None:
    server.pages[JOB] = (200, response("completed"))


def go_on(server: FakeServer) -> None:
    """The rest of the stream can be had."""
    server.pages[JOB] = (200, b"".join(map(as_event, EVENTS[3:])).decode())


def leave(client: openai.OpenAI) -> None:
    """Ask for a stream, and leave it in the middle."""
    with client.responses.create(**ASKED, stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                return


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


def by_another_client(server: FakeServer, record: Path) -> None:
    with OpenAI(base_url=server.url, api_key="k", record=record) as client:
        client.responses.create(**ASKED)
        end(server)
        OpenAI(base_url=server.url, api_key="k").responses.retrieve("resp_1")


def by_another_async_client(server: FakeServer, record: Path) -> None:
    async def ask() -> None:
        async with AsyncOpenAI(base_url=server.url, api_key="k") as other:
            await other.responses.retrieve("resp_1")

    with OpenAI(base_url=server.url, api_key="k", record=record) as client:
        client.responses.create(model="m", input="q", extra_body={"background": True})
        end(server)
        asyncio.run(ask())


def by_a_copy(server: FakeServer, record: Path) -> None:
    with OpenAI(base_url=server.url, api_key="k", record=record) as client:
        client.responses.create(**ASKED)
        end(server)
        with client.with_options(timeout=60).responses.with_streaming_response.retrieve("resp_1") as answer:
            answer.parse()


def by_a_stream_that_is_left(server: FakeServer, record: Path) -> None:
    with OpenAI(base_url=server.url, api_key="k", record=record) as client:
        leave(client)
        end(server)
        client.responses.retrieve("resp_1")


def by_a_stream_that_goes_on(server: FakeServer, record: Path) -> None:
    with OpenAI(base_url=server.url, api_key="k", record=record) as client:
        leave(client)
        go_on(server)
        assert len(list(client.responses.retrieve("resp_1", stream=True, starting_after=2))) == 2


def by_a_stream_of_the_async_client(server: FakeServer, record: Path) -> None:
    async def ask() -> None:
        async with AsyncOpenAI(base_url=server.url, api_key="k", record=record) as client:
            async with await client.responses.create(**ASKED, stream=True) as stream:
                assert (await anext(stream)).type == "response.created"
            go_on(server)
            async for _ in await client.responses.retrieve("resp_1", stream=True, starting_after=2):
                pass

    asyncio.run(ask())


def by_a_stream_of_the_instrument(server: FakeServer, record: Path) -> None:
    try:
        with instrument(record=record).program("p"):
            leave(openai.OpenAI(base_url=server.url, api_key="k"))
            go_on(server)
            list(openai.OpenAI(base_url=server.url, api_key="k").responses.retrieve("resp_1", stream=True))
    finally:
        uninstrument()


def by_a_stream_of_the_proxy(server: FakeServer, record: Path) -> None:
    with through(server, record, "headers") as client:
        with suppress(httpx.HTTPError):
            client.post("/v1/responses", json={**ASKED, "stream": True})
        go_on(server)
        answer = client.get("/v1/responses/resp_1", params={"stream": True, "starting_after": 2})
        assert answer.text == server.pages[JOB][1]


@pytest.mark.parametrize(
    "ask",
    [
        *(by_client, by_async_client, by_instrument, by_proxy, by_another_client, by_another_async_client, by_a_copy),
        *(by_a_stream_that_is_left, by_a_stream_that_goes_on, by_a_stream_of_the_async_client),
        *(by_a_stream_of_the_instrument, by_a_stream_of_the_proxy),
    ],
)
def test_the_turn_is_the_retrieved_answer(ask: Callable[[FakeServer, Path], None], tmp_path: Path) -> None:
    with serving() as server:
        ask(server, tmp_path)
    (turn,) = read_turns(tmp_path)
    assert (turn.error, turn.prompt_tokens, turn.output_tokens) == (None, 10, 2)
    assert (tmp_path / "trace.jsonl").read_text().count('"kind":"turn"') == 1


def with_facts(status: str, **facts: Any) -> dict[str, Any]:
    return {**response("completed"), "status": status, **facts}


PARTLY = with_facts("in_progress", usage=None)
AT_LIMIT = with_facts("incomplete", incomplete_details={"reason": "max_output_tokens"})
FILTERED = with_facts("incomplete", incomplete_details={"reason": "content_filter"})
BROKEN = with_facts("failed", output=[], usage=None, error={"code": "server_error", "message": "it broke"})
NONE: dict[str, Any] = {"error": {"message": "no"}}


@pytest.mark.parametrize(
    ("polls", "error"),
    [
        ([(200, response("queued")), (200, response("in_progress")), (200, response("completed"))], None),
        ([(200, PARTLY), (200, PARTLY), (200, response("completed"))], None),  # its text counts once
        ([(429, NONE), (503, NONE), (200, response("completed"))], None),
        ([(200, AT_LIMIT)], None),
        ([(200, FILTERED)], "content_filter"),
        ([(200, BROKEN)], "it broke"),
        ([(200, response("cancelled"))], "cancelled"),
        ([(404, NONE)], "never retrieved"),
    ],
)
def test_polls_until_a_job_has_ended(polls: list[tuple[int, Any]], error: str | None, tmp_path: Path) -> None:
    with serving() as server:
        client = OpenAI(base_url=server.url, api_key="k", record=tmp_path, content="full", max_retries=0)
        client.responses.create(**ASKED)
        for poll in polls:
            server.pages[JOB] = poll
            with suppress(openai.APIStatusError):
                client.responses.retrieve("resp_1")
        client.close()
    (turn,) = read_turns(tmp_path)
    assert (turn.error is None) == (error is None)
    assert (error or "") in str(turn.error)
    assert ('"text":"hi"' in (tmp_path / "trace.jsonl").read_text()) == (error is None)


def test_a_job_that_the_proxy_s_program_never_retrieves(tmp_path: Path) -> None:
    with serving() as server, through(server, tmp_path, "headers") as client:
        client.post("/v1/responses", json=ASKED)
    (turn,) = read_turns(tmp_path)
    assert turn.error == "accepted, and never retrieved"


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
