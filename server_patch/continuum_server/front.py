"""``serve --replicas``: an HTTP server in front of several vLLM servers, which sends each turn to one of them.

It forwards requests and answers byte for byte, with all headers. A turn goes where a router of the virtual engine
(``virtual.routers``) sends it. If a server does not answer, or its engine has died, the request is sent to another
server. A release goes to all servers, because only one of them has the program. The state has the engines of all
servers. ``/health`` says which servers answer.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count, takewhile
from typing import Any

import aiohttp
from aiohttp import web
from continuum_traces.foreign_ids import find_id
from continuum_traces.forwarding import BrokenOff, kept, pass_on, received, runner_of, session_to, target_of
from continuum_traces.run_dir import replica_name
from continuum_traces.wire import tags_from_headers
from yarl import URL

from continuum_server.virtual.routers import ROUTERS, Arrival, Door
from continuum_server.vllm_plugin.request_tags import ANYBODY, gather

CHECK_S, CHECK_TIMEOUT, FAILURES = 1.0, aiohttp.ClientTimeout(total=10.0), 2
"""A server that refuses a connection, or whose health check fails twice, gets no requests until a check succeeds. A
check may take ten seconds, because a busy engine answers late, and a program that is sent to another server loses its
KV cache."""
FORGET_S, MOST_PROGRAMS = 7200.0, 100_000
"""A program is forgotten after ``FORGET_S`` seconds without a turn. If there are more than ``MOST_PROGRAMS``, the one
whose latest turn is the longest ago is forgotten."""
BYTES_PER_TOKEN = 4
"""Estimates the length of a prompt from the size of its request's body: the router does not know the tokens."""
STATE = "/continuum/state"
NONE_ANSWERS = {"error": {"message": "no replica answers", "type": "unavailable"}}


class Front:
    """A web application that sends each request to one of the servers. All of them must be healthy when it starts.

    Args:
        router: a name in ``ROUTERS``.
        urls: the servers' root URLs.
    """

    def __init__(self, router: str, urls: Sequence[str]) -> None:
        self._urls = urls
        self._door = Door(ROUTERS[router](), len(urls))
        self._failures = [0] * len(urls)
        self._seen: dict[str, float] = {}
        """When the latest turn of each program came, the longest ago first."""
        self._nameless = count()

    async def serve(self, host: str, port: int) -> None:
        """Serve until SIGTERM."""
        runner = runner_of(self._answer)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        async with session_to(10.0) as self._session:
            await runner.setup()
            await web.TCPSite(runner, host, port, backlog=1024).start()
            checks = [asyncio.ensure_future(self._check(index)) for index in range(len(self._urls))]
            await stop.wait()
            for check in checks:
                check.cancel()
            await runner.cleanup()

    @property
    def _serving(self) -> list[int]:
        return [index for index, failures in enumerate(self._failures) if failures < FAILURES]

    def _health(self) -> web.Response:
        """dead: no server answers. degraded: at least one does not answer."""
        serving = self._serving
        status = "serving" if len(serving) == len(self._urls) else "degraded" if serving else "dead"
        replicas = [{"name": replica_name(index), "serving": index in serving} for index in range(len(self._urls))]
        return web.json_response({"status": status, "replicas": replicas}, status=200 if serving else 503)

    async def _check(self, index: int) -> None:
        while True:
            self._failures[index] = 0 if await self._is_healthy(index) else self._failures[index] + 1
            await asyncio.sleep(CHECK_S)

    async def _is_healthy(self, index: int) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._session.get(f"{self._urls[index]}/health", timeout=CHECK_TIMEOUT) as answer:
                return answer.status == 200
        return False

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return self._health()
        body = await request.read()
        if request.path == STATE or (request.method == "POST" and request.path.startswith("/continuum/")):
            return await self._of_all(request, body)
        turn = self._turn(request.headers, body) if request.method == "POST" else None
        for _ in range(len(self._urls) + FAILURES):
            if not self._serving:
                break
            index = self._serving[0] if turn is None else self._door.send(turn, self._serving)
            try:
                return await self._forward(index, request, body)
            except aiohttp.ClientConnectorError:
                self._failures[index] = FAILURES
            except aiohttp.ClientConnectionError:  # before an answer began
                self._failures[index] += 1
            finally:
                if turn is not None:
                    self._door.answered(index, turn)
        return web.json_response(NONE_ANSWERS, status=503)

    async def _forward(self, index: int, request: web.Request, body: bytes) -> web.StreamResponse:
        async with self._sent(index, request, body) as answer:
            if answer.status >= 500 and not await self._is_healthy(index):  # its engine died
                self._failures[index] = FAILURES
                raise aiohttp.ClientConnectionError
            try:
                return await pass_on(request, answer, received(answer))
            except BrokenOff as broken:
                return broken.response or web.Response(status=502)

    async def _of_all(self, request: web.Request, body: bytes) -> web.Response:
        """Send a release, or the question for the state, to all servers. Return the answers as one."""
        asked = await asyncio.gather(*(self._whole(index, request, body) for index in self._serving))
        answers = [answer for answer in asked if answer is not None]
        good = [content for status, content in answers if status == 200]
        if request.path == STATE and good:
            return web.json_response({"engines": [engine for content in good for engine in content["engines"]]})
        if good:
            self._forget(_within_key(request.headers, good[0]["program_id"]))
            return web.json_response(max(good, key=lambda content: bool(content["released"])))
        status, content = answers[0] if answers else (503, NONE_ANSWERS)
        return web.json_response(content, status=status)

    async def _whole(self, index: int, request: web.Request, body: bytes) -> tuple[int, Any] | None:
        with suppress(aiohttp.ClientError, ValueError):
            async with self._sent(index, request, body) as answer:
                return answer.status, json.loads(await answer.read())
        return None

    def _sent(self, index: int, request: web.Request, body: bytes) -> Any:
        url = URL(self._urls[index] + target_of(request), encoded=True)
        headers = kept(request.raw_headers)
        method = "GET" if request.path == STATE and request.method == "HEAD" else request.method  # whose body is read
        return self._session.request(method, url, headers=headers, data=body or None, allow_redirects=False)

    def _turn(self, headers: Mapping[str, str], body: bytes) -> Arrival:
        """Return what the router hears of a turn."""
        named = {name.lower(): value for name, value in headers.items()}
        name, is_last = program_of(named, body)
        if name is None:
            return Arrival(f"#{next(self._nameless)}", len(body) // BYTES_PER_TOKEN, is_last=True)
        program_id, now_s = _within_key(headers, name), asyncio.get_running_loop().time()
        self._seen.pop(program_id, None)
        self._seen[program_id] = now_s
        oldest, came_s = next(iter(self._seen.items()))
        if len(self._seen) > MOST_PROGRAMS or came_s < now_s - FORGET_S:
            self._forget(oldest)
        return Arrival(program_id, len(body) // BYTES_PER_TOKEN, is_last=is_last)

    def _forget(self, program_id: str) -> None:
        self._seen.pop(program_id, None)
        self._door.forget(program_id)


def program_of(headers: Mapping[str, str], body: bytes) -> tuple[str | None, bool]:
    """Return the id of a turn's program, and whether this is known to be its last turn.

    The long body is parsed only if the headers have no id. Without any id, the conversation's opening is one: all up to
    the first message of the user.

    Args:
        headers: by lower-case name.
        body: as received.
    """
    tags, (foreign, _) = tags_from_headers(headers).tags, find_id(headers, {})
    if foreign is not None and not foreign.weak:
        return foreign.program_id, bool(tags.is_last_step)
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        return None if foreign is None else foreign.program_id, False
    xargs = {**_object(data.get("vllm_xargs")), **_object(gather(data, headers, ANYBODY)[0].get("vllm_xargs"))}
    name = xargs.get("program_id")
    return _opening(data) if name is None else str(name), bool(xargs.get("is_last_step"))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _opening(data: Mapping[str, Any]) -> str | None:
    messages = data.get("messages") or data.get("input")
    if isinstance(messages, list):
        before = list(takewhile(lambda message: _object(message).get("role") != "user", messages))
        messages = messages[: len(before) + 1]
    return json.dumps(messages) if messages else None


def _within_key(headers: Mapping[str, str], name: str) -> str:
    """Ids belong to a key: another key's program of this name is another program."""
    key = headers.get("Authorization") or headers.get("x-api-key") or ""
    return hashlib.blake2b(f"{key}\n{name}".encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--worker-urls", nargs="+", required=True)
    given = parser.parse_args()
    asyncio.run(Front(given.policy, given.worker_urls).serve(given.host, given.port))
