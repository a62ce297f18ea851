"""A local OpenAI-compatible server over real sockets whose answers a test decides, and ways to replay against it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from continuum_bench.cli import app
from continuum_traces.jsonl import write_programs
from continuum_traces.run_dir import read_turns
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


class FakeEndpoint:
    """A server whose n-th request is answered by ``handler``; ``kind`` is what it says it is."""

    def __init__(self, handler: Handler, kind: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times_s: list[float] = []
        self.connections: set[Any] = set()
        self.released: list[str] = []
        self.most_at_once = 0
        self._at_once = 0
        self.plugin_errors = 7
        self._handler = handler
        self._kind = kind
        self.url = ""
        self.stop: Callable[[], Any] = lambda: None

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "max_model_len": 4096, "owned_by": self._kind}]})

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "0.0"}, status=200 if self._kind in ("vllm", "plugin") else 404)

    async def state(self, request: web.Request) -> web.Response:
        state = {"policy": "fake", "plugin_errors": self.plugin_errors}
        return web.json_response({"engines": [state] if self._kind == "plugin" else []})

    async def engine(self, request: web.Request) -> web.Response:
        return web.json_response({"emulated": None, "server": "0a1b2c3d" if self._kind == "plugin" else None})

    async def release(self, request: web.Request) -> web.Response:
        self.released.append(request.match_info["program"])
        return web.json_response({})

    async def completions(self, request: web.Request) -> Any:
        self.times_s.append(asyncio.get_running_loop().time())
        self.bodies.append(await request.json())
        self.headers.append(dict(request.headers))
        self.connections.add(request.transport)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self._handler(request, len(self.bodies))
        finally:
            self._at_once -= 1

    async def start(self, started: threading.Event) -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self.stop = lambda: loop.call_soon_threadsafe(stop.set)
        application = web.Application(client_max_size=2**24)
        application.router.add_get("/v1/models", self.models)
        application.router.add_get("/version", self.version)
        application.router.add_get("/continuum/state", self.state)
        application.router.add_get("/continuum/engine", self.engine)
        application.router.add_post("/continuum/programs/{program}/release", self.release)
        application.router.add_post("/v1/completions", self.completions)
        application.router.add_post("/v1/chat/completions", self.completions)
        site_runner = web.AppRunner(application, shutdown_timeout=0.1)
        await site_runner.setup()
        site = web.TCPSite(site_runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self.url = f"http://127.0.0.1:{port}/v1"
        started.set()
        await stop.wait()
        await site_runner.cleanup()


@contextmanager
def serving(handler: Handler, kind: str = "vllm") -> Iterator[FakeEndpoint]:
    """``kind``: vllm, plugin (vLLM with Continuum's), or an ``owned_by``."""
    server, started = FakeEndpoint(handler, kind), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(server.start(started)), daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield server
    finally:
        server.stop()
        thread.join(60)


async def good(request: web.Request, number: int, usage: bool = True) -> web.StreamResponse:
    """A whole answer, token by token."""
    body = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    count = body.get("max_tokens") or body["max_completion_tokens"]
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


def replay(trace: Path, url: str, out: Path, *more: object, resume: bool = False) -> Any:
    where = "--resume" if resume else "--out"
    rate = [] if "--arrivals" in more and "concurrency" in str(more) else ["--jps", 20]
    arguments = ["replay", trace, "--base-url", url, *rate, where, out, "--no-report", *more]
    return runner.invoke(app, [str(argument) for argument in arguments])


def run_of(out: Path) -> Path:
    """The one run below an output directory."""
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    return folder


def turns_of(out: Path) -> list[Any]:
    return list(read_turns(run_of(out)))


def replay_command(trace: Path, url: str, out: Path, *more: object) -> list[str]:
    """The same in a process of its own."""
    rate = [] if "--arrivals" in more and "concurrency" in str(more) else ["--jps", 20]
    arguments = ["replay", trace, "--base-url", url, *rate, "--out", out, "--no-report", *more]
    return [sys.executable, "-m", "continuum_bench", *map(str, arguments)]


def start(command: list[str], **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "OPENAI_API_KEY": ""}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)
