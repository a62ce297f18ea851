"""The table of stream shapes (tests/stream_shapes.jsonl): load generator, client, instrument and proxy read each alike.

A row has a stream's events, where the shape is documented, and what it means: text of the first choice, tool calls with
arguments, counts, and how the answer ended, by a request that asked for ``asked`` tokens, or for no length, and for
``n`` answers, or for one. An event is JSON, the data as text, or its bytes: ``raw``, with CRLF (``crlf``), or with its
data in several lines (``lines``). ``chunks``: the tokens came in one chunk, or none could be seen to come (0).
``typed`` is the end as openai's client sees it, which hides [DONE] and raises errors.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from aiohttp import web
from continuum_traces.records import read_turns
from continuum_traces.wire.answers import Answer, asked_in
from fake_server import FakeServer, streaming
from test_proxy import through

from continuum_client import OpenAI, instrument, uninstrument
from continuum_client.observe import Events, OnEnd, WatchedReply
from continuum_client.reply import Reply

if TYPE_CHECKING:
    from continuum_bench.live.http import StreamedAnswer

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "stream_shapes.jsonl").read_text().splitlines()]
Row = dict[str, Any]


def bytes_of(event: Any) -> bytes:
    if isinstance(event, dict) and "raw" in event:
        return str(event["raw"]).encode()
    if isinstance(event, dict) and "lines" in event:
        lines = json.dumps(event["lines"], indent=1).splitlines()
        return "".join([*(f"data: {line}\n" for line in lines), "\n"]).encode()
    if isinstance(event, dict) and "crlf" in event:
        return bytes_of(event["crlf"]).replace(b"\n", b"\r\n")
    name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
    return f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()


def server_of(row: Row) -> FakeServer:
    async def handler(request: web.Request, number: int) -> web.StreamResponse:
        stream = await streaming(request)
        for event in row["events"]:
            await stream.write(bytes_of(event))
        return stream

    return FakeServer("anything", handler=handler)


def body_of(row: Row) -> Row:
    prompt = {"/completions": {"prompt": "q"}, "/responses": {"input": "q"}}
    said = prompt.get(row["path"], {"messages": [{"role": "user", "content": "q"}]})
    lengths = {"max_tokens": row["asked"], "min_tokens": row["asked"], "ignore_eos": True} if "asked" in row else {}
    return {"model": "m", "stream": True, **said, **lengths, **({"n": row["n"]} if "n" in row else {})}


def facts(answer: Answer, row: Row) -> Row:
    """What a row says, by an answer that was read."""
    calls = [[tool.name, "".join(tool.arguments)] for tool in answer.asked]
    counts = {"prompt_tokens": answer.prompt_tokens, "output_tokens": answer.output_tokens}
    more = {"reasoning": answer.reasoning_tokens, "cached": answer.cached_tokens, "choice": answer.choice_tokens}
    return {"text": answer.text, "tools": calls, **counts, **{name: more[name] for name in more if name in row}}


def meant(row: Row) -> Row:
    kept = ("text", "prompt_tokens", "output_tokens", "reasoning", "cached", "choice")
    return {"tools": row.get("tools", []), **{name: row[name] for name in kept if name in row}}


def ended_into(errors: list[str | None]) -> OnEnd:
    return lambda reply, at_s, error: errors.append(error)


def test_the_table_is_large_and_every_row_says_where_it_comes_from() -> None:
    assert len(ROWS) >= 40
    assert len({row["name"] for row in ROWS}) == len(ROWS)
    assert all(row["documented"] for row in ROWS)
    assert {row["end"] for row in ROWS} == {"finished", "cut", "refused", "failed"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["name"]))
def test_the_reader_means_what_the_row_says_however_the_bytes_are_cut(row: Row) -> None:
    whole = b"".join(map(bytes_of, row["events"]))
    for size in (1, 7, len(whole)):
        asked = asked_in(body_of(row))
        reply = Reply(content="full", alone=asked.choices == 1)
        errors: list[str | None] = []
        watched = WatchedReply(reply, lambda: 1.0, [ended_into(errors)], asked=asked)
        events = Events(watched)
        for start in range(0, len(whole), size):
            events.feed(whole[start : start + size])
        events.finish()
        assert facts(reply, row) == meant(row)
        assert reply.ending(watched.asked).end == row["end"]
        assert [error is None for error in errors] == [row["end"] == "finished"]
        if row["end"] == "finished":
            assert (reply.first_token_s is None) == (row.get("chunks") == 0)
            assert reply.parts == row.get("chunks", reply.parts)
            assert (reply.parts > 1) == ("chunks" not in row)


def by_client(row: Row, server: FakeServer, record: Path) -> None:
    client = OpenAI(base_url=server.url, record=record, content="full", max_retries=0, dialect="headers")
    with client.program("p"):
        ask(row, client)


def by_instrument(row: Row, server: FakeServer, record: Path) -> None:
    try:
        with instrument(record=record, content="full", dialect="headers").program("p"):
            ask(row, openai.OpenAI(base_url=server.url, max_retries=0))
    finally:
        uninstrument()


def ask(row: Row, client: openai.OpenAI) -> None:
    body = body_of(row)
    extra = {name: body.pop(name) for name in ("min_tokens", "ignore_eos") if name in body}
    routes = {"/completions": client.completions, "/responses": client.responses}
    made: Any = routes.get(row["path"], client.chat.completions)
    with suppress(openai.APIError, json.JSONDecodeError):
        for _ in made.create(**body, extra_body=extra or None):
            pass


def by_proxy(row: Row, server: FakeServer, record: Path) -> None:
    with through(server, record, "headers", "full") as client, suppress(httpx.HTTPError):
        client.post(f"/v1{row['path']}", json=body_of(row))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::continuum_client.ContinuumWarning")
@pytest.mark.parametrize("reader", [by_client, by_instrument, by_proxy])
def test_records_mean_what_the_rows_say(reader: Callable[[Row, FakeServer, Path], None], tmp_path: Path) -> None:
    wrong = []
    for number, row in enumerate(ROWS):
        if row["path"] == "/messages" and reader is not by_proxy:
            continue
        record = tmp_path / str(number)
        with server_of(row) as server:
            reader(row, server, record)
        (turn,) = read_turns(record)
        end = row["end"] if reader is by_proxy else row.get("typed", row["end"])
        counts = (turn.prompt_tokens, turn.output_tokens)
        tools = [name for name, _ in row.get("tools", [])]
        well = turn.error is None
        expected = counts if end == "raises" else (row["prompt_tokens"], row["output_tokens"])
        instants = (turn.first_token_s is not None, turn.token_gaps_ms)
        if well and instants != {0: (False, None), 1: (True, {})}.get(row.get("chunks", 2), (True, None)):
            wrong.append((row["name"], "instants", instants))
        if (well, counts) != (end == "finished", expected) or (well and list(turn.tools) != tools):
            wrong.append((row["name"], turn.error, counts, turn.tools))
        in_trace = '"kind":"turn"' in (record / "trace.jsonl").read_text()
        if in_trace != (end == "finished" and row["prompt_tokens"] is not None):
            wrong.append((row["name"], "in the trace", in_trace))
    assert wrong == []


def test_the_load_generator_means_what_the_rows_say() -> None:
    http = pytest.importorskip("continuum_bench.live.http")

    async def post(row: Row, url: str) -> StreamedAnswer | str:
        async with http.open_session(url) as session:
            client = http.StreamingClient(session, lambda: 1.0, 60.0)
            try:
                reply: StreamedAnswer = await client.post(f"{url}{row['path']}", body_of(row), {})
                return reply
            except http.RequestFailed as error:
                return str(error.kind)

    wrong = []
    for row in ROWS:
        with server_of({**row, "path": "/chat/completions"}) as server:
            answer = asyncio.run(post({**row, "path": "/chat/completions"}, server.url))
        if (not isinstance(answer, str)) != (row["end"] == "finished"):
            wrong.append((row["name"], answer))
        elif not isinstance(answer, str) and facts(answer, row) != meant(row):
            wrong.append((row["name"], facts(answer, row)))
        elif not isinstance(answer, str) and (answer.gaps_ms() == {}) != ("chunks" in row):
            wrong.append((row["name"], "instants", answer.gaps_ms()))
    assert wrong == []
