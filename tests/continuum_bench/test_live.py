"""Replay against servers: a real one (emulated GPU), and a local one that misbehaves on purpose."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from continuum_bench.cli import app
from continuum_traces.jsonl import write_programs
from continuum_traces.run_dir import read_events, read_turns
from continuum_traces.schema import Program, ToolCall, Turn
from typer.testing import CliRunner

runner = CliRunner()
Handler = Callable[[web.Request, int], Any]


def trace_of(folder: Path, programs: int = 3) -> Path:
    call = (ToolCall("ls", 0.05),)
    made = [
        Program(
            f"p{i}", (Turn(400, 20, tool_calls=call), Turn(100, 10, carried_tokens=4, tool_calls=call), Turn(50, 5))
        )
        for i in range(programs)
    ]
    path = folder / "small.jsonl.gz"
    write_programs(path, made)
    return path


class Misbehaving:
    """A server whose n-th request is answered by ``handler``."""

    def __init__(self, handler: Handler) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._handler = handler
        self.url = ""

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096}]})

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.0"})

    async def completions(self, request: web.Request) -> Any:
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        return await self._handler(request, len(self.bodies))

    async def start(self, started: threading.Event, stop: asyncio.Event) -> None:
        application = web.Application(client_max_size=2**24)
        application.router.add_get("/v1/models", self.models)
        application.router.add_get("/version", self.version)
        application.router.add_post("/v1/completions", self.completions)
        application.router.add_post("/v1/chat/completions", self.completions)
        site_runner = web.AppRunner(application)
        await site_runner.setup()
        site = web.TCPSite(site_runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{port}/v1"
        started.set()
        await stop.wait()
        await site_runner.cleanup()


@contextmanager
def misbehaving(handler: Handler) -> Iterator[Misbehaving]:
    server, loop = Misbehaving(handler), asyncio.new_event_loop()
    started, stop = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(server.start(started, stop),), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


async def good(request: web.Request, number: int, usage: bool = True) -> web.StreamResponse:
    """A whole answer, token by token."""
    body = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    count = body["max_tokens"]
    for token in range(count):
        choice = {"text": "x", "token_ids": [1000 + token]} if "prompt" in body else {"delta": {"content": "x "}}
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    if usage:
        counted = len(body["prompt"]) if "prompt" in body else 100
        details = {"cached_tokens": 16}
        final = {"prompt_tokens": counted, "completion_tokens": count, "prompt_tokens_details": details}
        await response.write(b"data: " + json.dumps({"choices": [], "usage": final}).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response


def replay(trace: Path, url: str, out: Path, *more: object) -> Any:
    arguments = ["replay", trace, "--base-url", url, "--jps", 20, "--out", out, "--no-report", *more]
    return runner.invoke(app, [str(argument) for argument in arguments])


def turns_of(out: Path) -> list[Any]:
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return list(read_turns(folder))


def test_prompts_grow_by_exactly_what_the_trace_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with misbehaving(good) as server:
        done = replay(trace_of(tmp_path, 1), server.url, tmp_path / "out")
    assert done.exit_code == 0, done.output
    first, second, third = (body["prompt"] for body in server.bodies)
    assert [len(first), len(second), len(third)] == [400, 520, 574]
    assert second[:420] == [*first, *range(1000, 1020)]
    assert third[:524] == [*second, *range(1006, 1010)]  # only the last four of ten tokens were carried
    assert [body["max_tokens"] for body in server.bodies] == [20, 10, 5]
    assert all(body["ignore_eos"] for body in server.bodies)
    xargs = [body["vllm_xargs"] for body in server.bodies]
    assert xargs[0] == {"program_id": "p0", "is_last_step": 0, "this_func_call": "ls"}
    assert xargs[2] == {"program_id": "p0", "is_last_step": 1}
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer sk-secret"}
    records = turns_of(tmp_path / "out")
    assert [(r.prompt_tokens, r.output_tokens, r.cached_tokens) for r in records] == [
        (400, 20, 16),
        (520, 10, 16),
        (574, 5, 16),
    ]
    for before, after in pairwise(records):
        assert after.due_s == pytest.approx(before.finish_s + 0.05)
        assert after.sent_s >= after.due_s
    assert not any("sk-secret" in path.read_text() for path in (tmp_path / "out").rglob("*.json*"))


def test_two_runs_share_no_prompt(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, 1)
    with misbehaving(good) as server:
        for name in ("a", "b"):
            assert replay(trace, server.url, tmp_path / name).exit_code == 0
    assert server.bodies[0]["prompt"][:16] != server.bodies[3]["prompt"][:16]


def test_text_prompts_for_servers_without_token_ids(tmp_path: Path) -> None:
    with misbehaving(good) as server:
        done = replay(trace_of(tmp_path, 1), server.url, tmp_path / "out", "--prompts", "text", "--dialect", "headers")
    assert done.exit_code == 0, done.output
    assert [len(body["messages"]) for body in server.bodies] == [1, 3, 5]
    assert "vllm_xargs" not in server.bodies[0]
    assert server.headers[0]["X-Session-ID"] == "p0"


async def busy(request: web.Request, number: int) -> Any:
    if number in (1, 2):
        return web.Response(status=429 if number == 1 else 503, text="busy")
    return await good(request, number)


def test_busy_answers_are_tried_again_with_the_same_ids(tmp_path: Path) -> None:
    with misbehaving(busy) as server:
        done = replay(trace_of(tmp_path, 1), server.url, tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "1 x http-429, 1 x http-503; 2 tries again, 0 programs failed" in done.stderr
    assert server.bodies[0] == server.bodies[1] == server.bodies[2]
    record = turns_of(tmp_path / "out")[0]
    assert record.finish_s - record.due_s > 1.0  # latency counts from the first intention


async def broken_json(request: web.Request, number: int) -> Any:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"data: {nonsense\n\n")
    return response


async def reset(request: web.Request, number: int) -> Any:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def half(request: web.Request, number: int) -> Any:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
    assert request.transport is not None
    request.transport.abort()
    return response


async def refuses(request: web.Request, number: int) -> Any:
    return web.Response(status=400, text='{"error": "no"}')


@pytest.mark.parametrize(
    ("handler", "kind"),
    [(broken_json, "invalid-json"), (reset, "connection"), (half, "stream"), (refuses, "http-400")],
)
def test_programs_that_cannot_go_on_stay_in_the_count(tmp_path: Path, handler: Handler, kind: str) -> None:
    with misbehaving(handler) as server:
        done = replay(trace_of(tmp_path, 2), server.url, tmp_path / "out", "--retries", 0)
    assert done.exit_code == 1
    assert f"2 x {kind}" in done.stderr
    assert "2 programs failed" in done.stderr
    assert all(kind in record.error for record in turns_of(tmp_path / "out"))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (row,) = summary["policies"].values()
    assert row["programs_failed"] == 2


async def without_usage(request: web.Request, number: int) -> Any:
    return await good(request, number, usage=False)


def test_a_server_that_counts_nothing(tmp_path: Path) -> None:
    with misbehaving(without_usage) as server:
        done = replay(trace_of(tmp_path, 1), server.url, tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert [record.cached_tokens for record in turns_of(tmp_path / "out")] == [None, None, None]


async def slow_loris(request: web.Request, number: int) -> Any:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b'data: {"choices": [{"text": "x"}]}\n\n')
        await asyncio.sleep(0.1)
    return response


def test_a_program_over_its_limit_is_given_up(tmp_path: Path) -> None:
    with misbehaving(slow_loris) as server:
        done = replay(trace_of(tmp_path, 1), server.url, tmp_path / "out", "--program-limit-s", 0.5)
    assert done.exit_code == 1
    assert "1 x program-limit" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base-url", "http://127.0.0.1:9/v1"], "no OpenAI-compatible server answers"),
        (["--base-url", "localhost"], "expected http:// or https://"),
    ],
)
def test_no_server_there(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = runner.invoke(app, ["replay", str(trace_of(tmp_path)), *arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_wrong_names_list_what_exists(tmp_path: Path) -> None:
    trace = trace_of(tmp_path)
    with misbehaving(good) as server:
        for arguments, message in (
            (["--dialect", "x"], "there are headers, vllm"),
            (["--prompts", "x"], "there are tokens and text"),
            (["--served-model", "x"], "the server has m"),
        ):
            done = replay(trace, server.url, tmp_path / "out", *arguments)
            assert done.exit_code == 2
            assert message in done.stderr


@pytest.mark.slow
def test_a_real_server_and_its_own_record(tmp_path: Path) -> None:
    from continuum_server.emulated.settings import EmulatedSettings  # noqa: PLC0415
    from continuum_server.launcher import Server, ServerConfig  # noqa: PLC0415

    record = tmp_path / "record"
    config = ServerConfig(
        policy="static-ttl",
        policy_options={"ttl_s": 5.0},
        port=0,
        record=record,
        kv_blocks=2000,
        max_model_len=16_000,
        emulated=EmulatedSettings(time_scale=10.0),
    )
    with Server(config, tmp_path / "server.log") as server:
        url = f"{server.url}/v1"
        done = replay(trace_of(tmp_path), url, tmp_path / "out", "--scheduler-records", record)
        assert done.exit_code == 0, done.output
        profiled = runner.invoke(
            app, ["profile", "--base-url", url, "--out", str(tmp_path / "profile.json"), "--repeats", "1"]
        )
        assert profiled.exit_code == 0, profiled.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert "emulated" in summary["manifest"]["modelled"][0]
    row = summary["policies"]["static-ttl"]
    assert row["programs_finished"] == 3
    assert row["pin_hit_ratio"] == 1.0
    (folder,) = [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    cached = {(r.program_id, r.turn): r.cached_tokens for r in read_turns(folder)}
    assert all(cached["p0", turn] == hit for turn, hit in ((1, 416), (2, 512)))  # whole blocks of the context before
    starts = {(e.program_id, e.turn): e.hit_tokens for e in read_events(folder) if e.event == "start"}
    assert starts == cached
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert profile["kv_tokens"] == 32_000
    assert profile["decode"]["base"] == pytest.approx(0.0007, rel=1.0)  # about 7 ms of an H100, ten times faster
