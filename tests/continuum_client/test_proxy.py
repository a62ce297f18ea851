"""A program behind ``continuum-proxy``: what the server gets, what the program gets, and how both may end."""

from __future__ import annotations

import asyncio
import gc
import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
from aiohttp import web
from any_values import json_values
from anyio.from_thread import start_blocking_portal
from continuum_traces.importers.registry import read_any
from continuum_traces.programs.jsonl import validate
from continuum_traces.records import read_turns
from fake_server import FakeServer, Planned, good
from hypothesis import given
from hypothesis import strategies as st
from waiting import until

from continuum_client.changing_lines import ChangingLines
from continuum_client.conversation import shape_of
from continuum_client.proxy import Proxy, call_of, with_fields
from continuum_client.proxy_command import proxy_state
from continuum_client.reply import Reply

CHAT = "/v1/chat/completions"
ASKED = {"include_usage": True}
HELLO = [{"role": "user", "content": "hello"}]
GREP = [{"type": "function", "function": {"name": "grep", "parameters": {"type": "object", "properties": {}}}}]


@contextmanager
def through(
    server: FakeServer,
    record: Path | None = None,
    dialect: str = "vllm",
    content: str = "digest",
    changing: ChangingLines | None = None,
) -> Iterator[httpx.Client]:
    """An HTTP client whose requests go through a proxy of a program ``p``, which has ended in the end."""
    state = proxy_state(dialect, None if record is None else str(record), content)
    proxy = Proxy(server.url, state, "p", changing=changing)
    limits = httpx.Limits(max_connections=None)

    async def tasks() -> int:
        return len(asyncio.all_tasks())

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(proxy):
        idle = portal.call(tasks)
        with httpx.Client(base_url=proxy.address, timeout=300.0, limits=limits) as client:
            yield client
        until(lambda: portal.call(tasks) == idle)  # no request is under way


def chat(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": messages, **more}


def hang_up_on(client: httpx.Client, body: dict[str, Any], server: FakeServer) -> None:
    """Ask, and leave before the answer."""
    before = len(server.asked)
    with pytest.raises(httpx.TimeoutException):
        client.post(CHAT, json=body, timeout=httpx.Timeout(300.0, read=0.2))
    until(lambda: len(server.asked) > before)


# ------------------------------------------------------------------------------------ what passes


def by_http_client(url: str, body: dict[str, Any]) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    connection.request("POST", urlsplit(url).path, json.dumps(body), {"Content-Type": "application/json"})
    return connection.getresponse().read()


def by_urllib(url: str, body: dict[str, Any]) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return bytes(answer.read())


def by_httpx(url: str, body: dict[str, Any]) -> bytes:
    with httpx.stream("POST", url, json=body) as answer:
        return answer.read()


def by_aiohttp(url: str, body: dict[str, Any]) -> bytes:
    async def ask() -> bytes:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            return await answer.read()

    return asyncio.run(ask())


OWN = [by_http_client, by_urllib, by_httpx, by_aiohttp]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", OWN)
def test_http_clients_that_no_library_of_ours_sees(
    vllm: FakeServer, ask: Callable[[str, dict[str, Any]], bytes], stream: bool, tmp_path: Path
) -> None:
    """Such as DSPy's, BAML's or Ollama's: behind the proxy their requests are turns of one program."""
    more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    with through(vllm, tmp_path) as client:
        url = str(client.base_url.join(CHAT))
        for messages in (HELLO, [*HELLO, {"role": "assistant", "content": "fine"}, *HELLO]):
            assert b"usage" in ask(url, chat(messages, **more))
    assert [(turn.error, turn.first_token_s is not None) for turn in read_turns(tmp_path)] == [(None, stream)] * 2
    assert vllm.ids == ["p", "p"]
    assert vllm.released == ["p"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/chat/completions", "/completions", "/responses"])
def test_answers_are_those_of_the_server(vllm: FakeServer, path: str, stream: bool) -> None:
    prompt = {"/completions": {"prompt": "hello"}, "/responses": {"input": "hello"}}.get(path, {"messages": HELLO})
    request = {"model": "m", **prompt, **({"stream": True} if stream else {})}
    with through(vllm) as client:
        ours, plain = client.post(f"/v1{path}", json=request), httpx.post(vllm.url + path, json=request)
    assert (ours.status_code, ours.reason_phrase, ours.content) == (200, plain.reason_phrase, plain.content)
    assert ours.headers["content-type"] == plain.headers["content-type"]
    tagged, bare = vllm.turns
    assert {name: tagged.body[name] for name in bare.body} == bare.body
    assert tagged.program_id == tagged.body["vllm_xargs"]["program_id"] == "p"


def test_other_requests_and_refusals_pass_unchanged(vllm: FakeServer) -> None:
    with through(vllm) as client:
        models = client.get("/v1/models", headers={"X-Mine": "1"})
        others = [("/v1/embeddings", b'{"input":  1e0}'), ("/nowhere%2Felse?x=%20", b"{}"), (CHAT, b"{no json")]
        answers = [models, *(client.post(path, content=content) for path, content in others)]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 400]
    listed, embeddings, nowhere = vllm.seen[:3]
    assert (listed.headers["x-mine"], listed.program_id) == ("1", None)
    assert embeddings.body == {"input": 1.0}
    assert nowhere.path == "/nowhere%2Felse"


def test_compressed_requests_and_answers_pass_unchanged(vllm: FakeServer) -> None:
    """The server is asked for no compression of its own, and what the program compressed stays so."""
    body = gzip.compress(json.dumps(chat(HELLO)).encode(), mtime=0)
    with through(vllm) as client:
        answer = client.post(CHAT, content=body, headers={"Content-Encoding": "gzip", "Accept-Encoding": "gzip"})
    assert answer.status_code == 200
    seen = next(seen for seen in vllm.asked if seen.path == CHAT)
    assert (seen.headers["content-encoding"], seen.body) == ("gzip", chat(HELLO))
    assert "accept-encoding" not in seen.headers


def _raw_deflate(plain: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(plain) + packer.flush()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZIP", lambda plain: gzip.compress(plain[:20]) + gzip.compress(plain[20:])),
        ("deflate", zlib.compress),
        ("deflate", _raw_deflate),
    ],
)
def test_an_answer_that_is_compressed_unasked_is_read(
    vllm: FakeServer, tmp_path: Path, coding: str, pack: Callable[[bytes], bytes], stream: bool
) -> None:
    body = chat(HELLO, stream=stream)
    plain = httpx.post(vllm.url + "/chat/completions", json=chat(HELLO, stream=stream, stream_options=ASKED)).content

    async def packed(request: web.Request, number: int) -> web.StreamResponse:
        kind = "text/event-stream" if stream else "application/json"
        return web.Response(body=pack(plain), headers={"Content-Type": kind, "Content-Encoding": coding})

    with FakeServer("vllm", handler=packed) as server, through(server, tmp_path) as client:
        answer = client.post(CHAT, json=body)
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers
    assert (b"usage" in answer.content) != stream  # the agent did not ask for the counts of its stream
    (turn,) = read_turns(tmp_path)
    assert (turn.error, turn.prompt_tokens is None) == (None, False)


def test_a_badly_compressed_answer_is_broken_off(tmp_path: Path) -> None:
    async def damaged(request: web.Request, number: int) -> web.StreamResponse:
        packed = bytearray(gzip.compress(b'{"choices": []}' * 9))
        packed[12:16] = b"abcd"
        return web.Response(body=bytes(packed), headers={"Content-Encoding": "gzip"})

    with FakeServer("vllm", handler=damaged) as server, through(server, tmp_path) as client:
        assert client.post(CHAT, json=chat(HELLO)).status_code == 502
    (turn,) = read_turns(tmp_path)
    assert turn.error == "the server broke off"


@pytest.mark.filterwarnings("ignore:.*refuses vllm_xargs")
def test_a_compressed_refusal_of_the_tags_is_read(tmp_path: Path) -> None:
    async def strict(request: web.Request, number: int) -> web.StreamResponse:
        if "vllm_xargs" in await request.json():
            raw = gzip.compress(b'{"error": {"message": "unknown field vllm_xargs"}}')
            return web.Response(status=400, body=raw, headers={"Content-Encoding": "gzip"})
        return await good(request, number)

    with FakeServer("anything", handler=strict) as server, through(server, tmp_path) as client:
        assert client.post(CHAT, json=chat(HELLO, max_completion_tokens=3)).status_code == 200


def test_headers_that_connection_names_are_of_one_connection(vllm: FakeServer) -> None:
    """RFC 9110, 7.6.1."""
    hops = {"Connection": "keep-alive, X-Hop ,x-other", "X-Hop": "1", "X-Other": "2", "TE": "gzip", "X-Kept": "3"}
    with through(vllm) as client:
        client.get("/v1/models", headers=hops)
        client.post(CHAT, json=chat(HELLO), headers=hops)
    for seen in vllm.seen[:2]:
        assert {"x-hop", "x-other", "te"}.isdisjoint(name.lower() for name in seen.headers)
        assert seen.headers["x-kept"] == "3"


def test_a_line_that_is_no_header_is_not_logged(vllm: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    with through(vllm) as client, socket.create_connection((client.base_url.host, client.base_url.port)) as line:
        line.sendall(b"GET / HTTP/1.1\r\nAuthor\0ization: Bearer secret-key\r\n\r\n")
        assert b" 400 " in line.recv(1000)
        until(lambda: "a request that is not HTTP was refused" in caplog.text)
    assert "Author" not in caplog.text
    assert "secret-key" not in caplog.text


def test_the_program_gets_no_token_counts_that_it_did_not_ask_for(vllm: FakeServer, tmp_path: Path) -> None:
    request = chat(HELLO, stream=True)
    with through(vllm, tmp_path) as client:
        for body in (request, {**request, "stream_options": {"include_usage": True}}):
            for headers in ({}, {"X-Stainless-Raw-Response": "true"}):  # as LiteLLM reads openai's streams
                answer = client.post(CHAT, json=body, headers=headers)
                assert answer.content == httpx.post(vllm.root + CHAT, json=body).content
    assert [turn.output_tokens for turn in read_turns(tmp_path)] == [7] * 4
    assert vllm.headers[2]["X-Stainless-Raw-Response"] == "true"


def test_a_server_that_refuses_the_tags_gets_the_request_without_them(server: FakeServer) -> None:
    with pytest.warns(UserWarning, match="refuses"), through(server) as client:
        assert [client.post(CHAT, json=chat(HELLO)).status_code for _ in range(2)] == [200, 200]
    assert [seen.status for seen in server.seen] == [400, 200, 200]
    assert [set(seen.body) for seen in server.turns] == [{"model", "messages"}] * 2
    assert all(seen.program_id for seen in server.seen)


def test_the_dialect_is_the_server_s(serve: Callable[..., FakeServer]) -> None:
    server = serve("sglang")
    with through(server, dialect="auto") as client:
        client.post(CHAT, json=chat(HELLO), headers={"Authorization": "Bearer secret"})
    assert server.turns[0].body["session_id"] == "p"
    own = [seen for seen in server.seen if seen.path in ("/v1/models", "/close_session")]
    assert [seen.headers["authorization"] for seen in own] == ["Bearer secret"] * 2


@given(*(st.dictionaries(st.text(), json_values(allow_nan=False), max_size=size) for size in (4, 3)))
def test_members_are_added_behind_the_object_s_own_bytes(body: dict[str, Any], fields: dict[str, Any]) -> None:
    raw = json.dumps(body, ensure_ascii=False, indent=1).encode("utf-8", "surrogatepass") + b" \n"
    tagged = with_fields(raw, body, fields)
    assert json.loads(tagged.decode("utf-8", "surrogatepass")) == {**body, **fields}
    assert tagged.startswith(raw.rstrip()[:-1])


def test_the_environment_of_the_program(server: FakeServer) -> None:
    async def made(**environ: str) -> dict[str, str]:
        async with Proxy(server.url, proxy_state("vllm", None, "none")) as proxy:
            return {name: value for name, value in proxy.environment(environ).items() if "BASE" not in name}

    assert asyncio.run(made()) == {"OPENAI_API_KEY": "EMPTY", "ANTHROPIC_AUTH_TOKEN": "EMPTY"}
    own = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "a", "http_proxy": "http://web", "NO_PROXY": "here"}
    assert asyncio.run(made(**own)) == own | {"NO_PROXY": "here,127.0.0.1", "no_proxy": "127.0.0.1"}


# ------------------------------------------------------------------------------------ programs and records


def test_a_program_its_conversations_its_tools_and_its_trace(vllm: FakeServer, tmp_path: Path) -> None:
    messages: list[Any] = list(HELLO)
    with through(vllm, tmp_path) as client:
        for _ in range(3):
            message = client.post(CHAT, json=chat(messages, tools=GREP)).json()["choices"][0]["message"]
            messages.append(message)
            for call in message.get("tool_calls") or ():
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "here"})
        client.post(CHAT, json=chat([{"role": "user", "content": "a title, please"}]))
        client.post("/v1/completions", json={"model": "m", "prompt": "hello"})
    tags = vllm.xargs
    assert [tag["program_id"] for tag in tags] == ["p", "p", "p", "p/2", "p"]
    assert tags[3]["parent_id"] == "p"
    assert [tag.get("last_func_call") for tag in tags] == [None, "grep", "grep", None, None]
    assert all(tag["last_tool_duration_s"] >= 0 for tag in tags[1:3])
    assert len({tag["turn_id"] for tag in tags}) == 5
    assert sorted(vllm.released) == sorted(vllm.released_by_header) == ["p", "p/2"]
    assert list(validate(tmp_path / "trace.jsonl")) == []
    traced = {program.program_id: program for program in read_any(tmp_path / "trace.jsonl", None)}
    assert {name: len(program.turns) for name, program in traced.items()} == {"p": 4, "p/2": 1}
    assert [len(turn.tool_calls) for turn in traced["p"].turns] == [1, 1, 0, 0]
    assert traced["p"].turns[0].tool_calls[0].duration_s is not None


# ------------------------------------------------------------------------------------ hanging up


def test_a_program_that_hangs_up_and_asks_again_goes_on_with_its_conversation(vllm: FakeServer, tmp_path: Path) -> None:
    vllm.plan.extend([Planned(status=200, delay_s=30.0), Planned(status=500)])
    with through(vllm, tmp_path) as client:
        hang_up_on(client, chat(HELLO), vllm)
        assert [client.post(CHAT, json=chat(HELLO)).status_code for _ in range(2)] == [500, 200]
    assert {seen.program_id for seen in vllm.asked} == {"p"}
    assert [turn.error is None for turn in read_turns(tmp_path)] == [False, False, True]


def test_a_server_that_breaks_off_breaks_off_for_the_program(
    vllm: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # clients that earlier tests left open would be closed in the proxy's loop, and asyncio would log that
    vllm.plan.extend([Planned(status=200, tear=True), Planned(status=200, tear=True), Planned(hang_up=True)])
    parts: list[bytes] = []
    with through(vllm, tmp_path) as client:
        with (
            pytest.raises(httpx.RemoteProtocolError),
            client.stream("POST", CHAT, json=chat(HELLO, stream=True)) as got,
        ):
            parts.extend(got.iter_bytes())
        assert [client.post(CHAT, json=chat(HELLO)).status_code for _ in range(3)] == [502, 502, 200]
    broke_off = "the server broke off"
    assert [turn.error for turn in read_turns(tmp_path)] == [broke_off, broke_off, "ServerDisconnectedError", None]
    assert {turn.program_id for turn in read_turns(tmp_path)} == {"p"}
    assert caplog.records == []  # aiohttp logs a traceback for an exception


def test_many_conversations_at_once_of_which_some_hang_up(
    vllm: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = vllm._answer

    async def slow(request: Any, seen: Any) -> Any:
        await asyncio.sleep(30 if seen.route and not seen.body.get("stream") else 0)
        return await plain(request, seen)

    def one(number: int) -> bytes:
        body = chat([{"role": "user", "content": f"agent {number}"}])
        if number % 3 == 0:
            hang_up_on(client, body, vllm)
        return client.post(CHAT, json={**body, "stream": True}).content

    monkeypatch.setattr(vllm, "_answer", slow)
    with through(vllm, tmp_path) as client, ThreadPoolExecutor(30) as pool:
        assert all(said.endswith(b"data: [DONE]\n\n") for said in pool.map(one, range(30)))
    released = vllm.released
    assert len(released) == len(set(released)) >= 30
    assert set(released) >= set(vllm.ids)
    ended = [turn for turn in read_turns(tmp_path) if turn.error is None]
    assert len({turn.program_id for turn in ended}) >= 30
    assert list(validate(tmp_path / "trace.jsonl")) == []


# ------------------------------------------------------------------------------------ Anthropic's API


def events_of_anthropic() -> list[dict[str, Any]]:
    usage = {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 1}
    tool = {"type": "tool_use", "id": "t", "name": "bash", "input": {}}
    parts = ({"type": "input_json_delta", "partial_json": part} for part in ('{"command"', ': "ls"}'))
    return [
        {"type": "message_start", "message": {"model": "m", "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Let me see."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": tool},
        *({"type": "content_block_delta", "index": 1, "delta": part} for part in parts),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 25}},
        {"type": "message_stop"},
    ]


def test_anthropic_s_stream_and_answer_are_read_alike() -> None:
    stream, whole = Reply(content="full"), Reply(content="full")
    for number, event in enumerate(events_of_anthropic()):
        stream.take(event, float(number))
    tool = {"type": "tool_use", "id": "t", "name": "bash", "input": {"command": "ls"}}
    usage = {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 25}
    content = [{"type": "text", "text": "Let me see."}, tool]
    whole.take({"type": "message", "model": "m", "content": content, "stop_reason": "tool_use", "usage": usage})
    for reply in (stream, whole):
        assert (reply.prompt_tokens, reply.cached_tokens, reply.output_tokens) == (100, 60, 25)
        assert (reply.model, reply.stopped, reply.text) == ("m", True, "Let me see.")
        assert [(tool.name, "".join(tool.arguments)) for tool in reply.asked] == [("bash", '{"command": "ls"}')]
    assert (stream.first_token_s, whole.first_token_s) == (2.0, None)


def test_a_moved_cache_mark_does_not_change_a_conversation() -> None:
    def said(text: str, marked: bool) -> dict[str, Any]:
        mark = {"cache_control": {"type": "ephemeral"}} if marked else {}
        return {"role": "user", "content": [{"type": "text", "text": text, **mark}]}

    first = {"system": "You code.", "messages": [said("one", True)]}
    second = {"system": "You code.", "messages": [said("one", False), said("two", True)]}
    other = {"system": "You name.", "messages": first["messages"]}
    assert shape_of(second).marks[:2] == shape_of(first).marks
    assert shape_of(other).marks[0] != shape_of(first).marks[0]


# ------------------------------------------------------------------------------------ the command

CURL = """
import json, os, sys, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
assert os.environ["ANTHROPIC_BASE_URL"] + "/v1" == os.environ["OPENAI_API_BASE"] == os.environ["OPENAI_BASE_URL"]
request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"], flush=True)
"""


COMMAND = [sys.executable, "-m", "continuum_client.proxy_command"]


def command(server: FakeServer, *words: str) -> list[str]:
    """The command; its upstream has no scheme."""
    return [*COMMAND, "--upstream", f"127.0.0.1:{server.port}", "--dialect", "vllm", "--program", "p", *words]


def test_the_help_can_be_read_without_aiohttp() -> None:
    without = (
        "import sys; sys.modules['aiohttp'] = None; from continuum_client.proxy_command import main; main(sys.argv[1:])"
    )
    help_, run = (
        subprocess.run([sys.executable, "-c", without, *words], capture_output=True, text=True, check=False)
        for words in (["--help"], ["--upstream", "http://x", "--", "true"])
    )
    assert (help_.returncode, help_.stderr) == (0, "")
    assert run.returncode == 1
    assert run.stderr.endswith("pip install aiohttp\n")
    assert run.stderr.startswith("continuum-proxy needs aiohttp")


def test_the_command_s_output_and_status_are_the_program_s(vllm: FakeServer, tmp_path: Path) -> None:
    script = [sys.executable, "-c", f"{CURL}\nsys.exit(int(sys.stdin.read()))"]
    line = command(vllm, "--record", str(tmp_path), "--", *script)
    done = subprocess.run(line, input="7", capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (7, "fine\n")
    assert done.stderr == "continuum-proxy: 1 call in 1 program tagged, 4 of 9 prompt tokens from the cache\n"
    assert vllm.turns[0].program_id == "p"
    assert vllm.released == ["p"]
    assert list(validate(tmp_path / "trace.jsonl")) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 3), (signal.SIGINT, 3), (signal.SIGKILL, 128 + 9)])
def test_signals_reach_the_program(vllm: FakeServer, number: int, status: int) -> None:
    on = "import signal\nfor n in (2, 15): signal.signal(n, lambda *_: sys.exit(3))"
    waits = "import time\nwhile True: time.sleep(0.1)"  # a signal just before signal.pause() would be waited for
    dies = "os.kill(os.getpid(), 9)" if number == signal.SIGKILL else waits
    line = command(vllm, "--", sys.executable, "-c", f"{CURL}\n{on}\nprint('on', flush=True)\n{dies}")
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["fine\n", "on\n"]
    if number != signal.SIGKILL:
        os.kill(process.pid, number)
    assert process.wait(300) == status
    process.stdout.close()
    assert vllm.released == ["p"]


def test_a_killed_proxy_leaves_no_program(server: FakeServer) -> None:
    waits = [sys.executable, "-c", "import time; print('on', flush=True); time.sleep(120); print('late')"]
    process = subprocess.Popen(command(server, "--", *waits), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    process.kill()
    assert process.stdout.read() == b""  # the program had it open, and has ended
    process.stdout.close()
    process.wait(300)


# ------------------------------------------------------------------------------------ a standing proxy


def test_a_standing_proxy_serves_many_agents(vllm: FakeServer, tmp_path: Path) -> None:
    """Each conversation is a program, and is released with its own key. A program that names itself stays as it is."""
    words = ("--upstream", vllm.url, "--dialect", "vllm", "--listen", "127.0.0.1:0", "--record", str(tmp_path))
    with subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        listening = re.match(r"continuum-proxy: listening at (\S+), upstream (\S+)\n", process.stderr.readline())
        assert listening is not None
        assert listening[2] == vllm.root
        for name in ("a", "b"):
            messages = [{"role": "user", "content": name}]
            for body in (chat(messages), chat([*messages, *HELLO])):
                httpx.post(listening[1] + CHAT, json=body, headers={"Authorization": f"Bearer {name}"}, timeout=300.0)
        named = {"X-Session-ID": "mine"}
        httpx.post(listening[1] + CHAT, json=chat(HELLO, stream=True), headers=named, timeout=300.0)
        httpx.post(f"{listening[1]}/v1/completions", json={"model": "m", "prompt": "x"}, timeout=300.0)
        process.terminate()
        said = process.stderr.read()
    assert process.returncode == 0
    assert said.startswith("continuum-proxy: 4 of 6 calls in 2 programs tagged")
    one, _, two, _, own, none = vllm.turns
    assert vllm.ids == [*[one.program_id] * 2, *[two.program_id] * 2, "mine", None]
    assert own.body == chat(HELLO, stream=True)
    assert "vllm_xargs" not in none.body
    assert "parent_id" not in one.body["vllm_xargs"]
    keys = [seen.headers["authorization"] for seen in vllm.seen if "release" in seen.path]
    assert dict(zip(vllm.released, keys, strict=True)) == {one.program_id: "Bearer a", two.program_id: "Bearer b"}
    assert len({turn.program_id for turn in read_turns(tmp_path)}) == 2


# ------------------------------------------------------------------------------------ web proxies


def test_a_web_proxy_of_the_environment(vllm: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*os.environ,):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{vllm.port}")

    async def ask() -> int:
        async with Proxy("model.example", proxy_state("vllm", None, "none")) as proxy, httpx.AsyncClient() as client:
            return (await client.post(proxy.address + CHAT, json=chat(HELLO), timeout=300.0)).status_code

    with monkeypatch.context() as direct:
        direct.setenv("NO_PROXY", "127.0.0.1")  # for httpx
        assert asyncio.run(ask()) == 200
    assert vllm.seen[0].path == f"http://model.example{CHAT}"
    assert vllm.seen[0].body["vllm_xargs"]["program_id"]


@pytest.mark.parametrize(
    ("path", "base", "root"),
    [
        ("", "/v1", ""),
        ("/v1", "/v1", ""),
        ("/openai/v1", "/openai/v1", "/openai"),
        ("/api/paas/v4", "/api/paas/v4", "/api/paas/v4"),
        ("/v1beta/openai", "/v1beta/openai", "/v1beta"),
        ("/openai/deployments/d", "/openai/deployments/d", ""),
    ],
)
def test_an_agent_reaches_any_base_path(vllm: FakeServer, path: str, base: str, root: str) -> None:
    """The agent's base URL has the server's path. ``/v1`` in its place works too, and so does Anthropic's client."""

    async def ask() -> int:
        settings = proxy_state("headers", None, "none")
        async with Proxy(vllm.root + path, settings) as proxy, httpx.AsyncClient(timeout=300.0) as client:
            environment = proxy.environment({})
            await client.post(environment["OPENAI_BASE_URL"] + "/chat/completions", json=chat(HELLO))
            await client.post(proxy.address + CHAT, json=chat(HELLO))
            await client.post(environment["ANTHROPIC_BASE_URL"] + "/v1/messages", json=chat(HELLO))
            return proxy.tally.calls

    assert asyncio.run(ask()) == 3
    assert [each.path for each in vllm.seen] == [f"{base}/chat/completions"] * 2 + [f"{root}/v1/messages"]


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/v1/chat/completions", "/chat/completions"),
        ("/openai/deployments/d/completions", "/completions"),
        ("/v1/responses", "/responses"),
        ("/v1/messages", "/messages"),
        ("/v1/threads/t/messages", None),
        ("/v1/responses/r/cancel", None),
        ("/v1/models", None),
        ("/v1/chat/completions/", "/chat/completions"),
        ("/v1/messages/", "/messages"),
    ],
)
def test_which_paths_are_calls_of_a_model(path: str, call: str | None) -> None:
    assert call_of(path) == call
