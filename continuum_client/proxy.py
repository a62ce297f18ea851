"""``Proxy``, between agents and a model server: ``continuum-proxy --upstream URL -- COMMAND ...``.

The proxy forwards each request to the server, and each answer byte for byte to the agent. It adds the tags of one
program to the requests that generate text. Each further conversation of the agent becomes a child program; of a
standing proxy, which serves many agents, a program of its own. The time between two turns of a conversation counts as
the time of the tools that the first turn's reply calls.

The proxy changes three things: it adds tags to requests, it does not let the server compress answers (if the server
does so nevertheless, the agent gets the plain bytes), and it asks for the token counts of a stream that is recorded
(which it removes again if the agent did not ask for them). Only if asked, it moves lines of prompts
(``changing_lines``).
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp import web
from continuum_traces.schema import MAX_PROGRAM_ID_CHARS
from continuum_traces.wire.answers import ToolAsked
from continuum_traces.wire.urls import address_of, base_of, checked_url, path_of, root_of, web_proxy_of
from yarl import URL

from continuum_client.call import GENERATING, MESSAGES, RAW, Call, Outgoing
from continuum_client.changing_lines import ChangingLines, appended
from continuum_client.child_process import Tally
from continuum_client.conversation import Conversations
from continuum_client.dialects import Release
from continuum_client.errors import MAX_FAILURE_CHARS, InvalidTag, is_servers_fault
from continuum_client.forwarding import BrokenOff, kept, pass_on, received, runner_of, session_to, target_of
from continuum_client.observe import Events, WatchedReply, job_of, parsed
from continuum_client.options import ClientState
from continuum_client.own_requests import OWN_TIMEOUT_S
from continuum_client.recorder import tool_by_command
from continuum_client.reply import Reply
from continuum_client.state import TaggedProgram
from continuum_client.tagging import check_tool
from continuum_client.tools import ToolRun
from continuum_client.turns import key_of

ASK_TIMEOUT, RELEASE_TIMEOUT = (aiohttp.ClientTimeout(total=seconds) for seconds in (OWN_TIMEOUT_S, 10.0))
"""Time limits of the proxy's own requests: ``GET /models`` for ``auto``, and the release of a program."""
_KEYS = ("authorization", "x-api-key", "api-key")
ENCODING = "content-encoding"
_GZIP = 0x1F
"""The first byte of gzip's header."""
DUMMY_KEY = "EMPTY"
LOCAL = "127.0.0.1"
_WEB_PROXIES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
"""Variables that name a web proxy. The agent must not use it for its requests to this proxy."""


class Watcher(Protocol):
    """Receives the events of a proxy."""

    def turn(self, reply: Reply) -> None:
        """Receive a reply that has ended."""

    def tool(self, name: str, seconds: float) -> None:
        """Receive a tool that ran between two turns."""

    def server(self, failure: str | None) -> None:
        """Receive how the server has failed a request, and None when it answers one that was sent after that."""


class Refused(Exception):
    """The server answered with an error. It has the attributes of openai's ``APIStatusError`` that ``Call`` reads."""

    def __init__(self, answer: aiohttp.ClientResponse, raw: bytes) -> None:
        self.status_code = answer.status
        self.body = Unpacker(answer.headers.get(ENCODING, "")).feed(raw).decode("utf-8", "replace")
        self.answer = answer
        self.raw = raw
        super().__init__(f"{answer.status} {self.body}")


class Proxy:
    """A proxy for one agent; use it with ``async with``. It sends the same tags as our clients.

    Args:
        upstream: base URL of the server; ``/v1`` is added to one without a path.
        state: the dialect, and the recorder if the program is recorded.
        program_id: the agent's program id. Default: a random id.
        watcher: receives turns and tools.
        listen: the address and port for a standing proxy, which serves any number of agents; port 0 is a free one.
            None: a free port of this machine, for one agent.
        changing: lines to move from the beginning of prompts to their end.

    Raises:
        ValueError: ``upstream`` is not the URL of a server.
    """

    def __init__(
        self,
        upstream: str,
        state: ClientState,
        program_id: str | None = None,
        watcher: Watcher | None = None,
        listen: tuple[str, int] | None = None,
        changing: ChangingLines | None = None,
    ) -> None:
        self.url = base_of(checked_url(upstream, "upstream"))
        self.root = root_of(self.url)
        self.program = state.program(program_id)._state
        self.requests = 0
        """The number of requests that came."""
        self.tally = Tally()
        self._listen = listen
        self._changing = changing
        self._state = state
        state.on_call = self._turn_ended
        self._watcher = watcher
        self._tool_key = state.recorder.tool_key if state.recorder is not None else tool_by_command
        self._conversations = Conversations(self._begin)
        self._count = 0
        self._failed_s: float | None = None
        """When the server failed a request; None: it has answered one since."""
        self._ended: WeakKeyDictionary[TaggedProgram, tuple[float, list[ToolAsked]]] = WeakKeyDictionary()
        """When each conversation's latest turn ended, and the tools that its reply calls."""

    async def __aenter__(self) -> Proxy:
        self._session = session_to(30.0, web_proxy_of(self.root))
        self._runner = runner_of(self._forward, shutdown_timeout=0.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, *(self._listen or (LOCAL, 0)), backlog=1024).start()
        except BaseException:
            await self.__aexit__()
            raise
        self.address = address_of(*self._runner.addresses[0][:2])
        return self

    async def __aexit__(self, *_: object) -> None:
        """Abort the requests that are under way, and release all programs."""
        try:
            await self._runner.cleanup()
            self._state.give_up_jobs()
            programs = (*self._conversations.forget(), self.program)
            await asyncio.gather(*(program.aclose() for program in programs), return_exceptions=True)
        finally:
            await self._session.close()

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return ``environ`` with the variables by which openai's and Anthropic's libraries find this proxy, and with
        dummy API keys if it has no keys."""
        keys = {} if environ.get("OPENAI_API_KEY") else {"OPENAI_API_KEY": DUMMY_KEY}
        if not (environ.get("ANTHROPIC_API_KEY") or environ.get("ANTHROPIC_AUTH_TOKEN")):
            keys["ANTHROPIC_AUTH_TOKEN"] = environ.get("OPENAI_API_KEY") or DUMMY_KEY  # a bearer token, as vLLM expects
        base, root = (self.address + path_of(url) for url in (self.url, self.root))
        urls = {"OPENAI_BASE_URL": base, "OPENAI_API_BASE": base, "ANTHROPIC_BASE_URL": root}
        direct = {name: ",".join(filter(None, (environ.get(name), LOCAL))) for name in ("NO_PROXY", "no_proxy")}
        return {**environ, **keys, **urls, **(direct if any(map(environ.get, _WEB_PROXIES)) else {})}

    # ------------------------------------------------------------------------------------ programs

    def _begin(self) -> TaggedProgram:
        """Return the program of a new conversation: first the proxy's own program, later a child of that program."""
        if self._listen is not None:
            return self._state.program()._state
        self._count += 1
        if self._count == 1:
            return self.program
        name = f"{self.program.id}/{self._count}"
        return self._state.program(name if len(name) <= MAX_PROGRAM_ID_CHARS else None, parent=self.program.id)._state

    def _call(self, request: Outgoing, sender: _ProxySender) -> Call | None:
        """Make the call for a request, with the tools that ran before it. None: it is forwarded without tags."""
        standing = self._listen is not None
        named = any(name.lower() == "x-session-id" for name in request.headers)
        conversation = None if standing and named else self._conversations.find(request.path, request.body)
        if conversation is None and standing:
            self._turn_ended(None, None, self._state.clock())
            return None
        program = self.program if conversation is None else conversation.program
        self._report_tools(program)
        return Call(self._state, program, request, sender, conversation)

    def _turn_ended(self, program: TaggedProgram | None, reply: Reply | None, at_s: float) -> None:
        if program is None or reply is None:
            return self.tally.add(None, None, None)
        if reply.stopped and reply.ending().error is None:
            self._ended[program] = at_s, reply.calls
        self.tally.add(program.id, reply.prompt_tokens, reply.cached_tokens)
        if self._watcher is not None:
            self._watcher.turn(reply)

    def _report_tools(self, program: TaggedProgram) -> None:
        ended_s, asked = self._ended.pop(program, (0.0, []))
        now_s = self._state.clock()
        seconds = max(0.0, now_s - ended_s)
        for name in dict.fromkeys(key_of(tool, self._tool_key) for tool in asked):
            with suppress(InvalidTag):  # models invent names of any kind
                program.ran(ToolRun(check_tool(name), now_s - seconds, now_s))
                if self._watcher is not None:
                    self._watcher.tool(name, seconds)

    # ------------------------------------------------------------------------------------ requests

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        try:
            raw = await request.read()
            call = call_of(request.path) if request.method == "POST" else None
            if call is not None:
                return await self._generate(request, raw, call)
            return await self._plain(request, raw)
        except BrokenOff as error:
            self._server_failed(f"{self.root} {error}")
            return error.response or _error(f"{self.root} {error}")
        except aiohttp.ClientError as error:
            self._server_failed(f"{self.root} does not answer: {error}")
            return _error(f"{self.root} does not answer: {error}")

    def _server_failed(self, failure: str) -> None:
        self._failed_s = self._state.clock()
        if self._watcher is not None:
            self._watcher.server(failure)

    def _server_answered(self, sent_s: float, error: str | None = None) -> None:
        """Note the answer to a request; ``error``: it did not end well, for a reason of the server's."""
        if error is not None:
            self._server_failed(f"{self.root} broke off its answer: {error}")
        elif self._failed_s is not None and sent_s > self._failed_s:
            self._failed_s = None
            if self._watcher is not None:
                self._watcher.server(None)

    async def _plain(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """Forward a request as it is."""
        to, headers = self._to(request), kept(request.raw_headers, "accept-encoding")
        sent = self._session.request(request.method, to, headers=headers, data=raw or None, allow_redirects=False)
        job = job_of(self._state.jobs, request.path)
        async with sent as answer:
            if job is None or answer.status >= 400:
                return await pass_on(request, answer, received(answer))
            return await self._retrieved(request, job, answer)

    async def _retrieved(
        self, request: web.Request, job: WatchedReply, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Forward an answer that was asked for in the background, or the rest of its stream."""
        kind, unpacker = answer.headers.get("content-type", ""), Unpacker(answer.headers.get(ENCODING, ""))
        if "text/event-stream" in kind:
            events = _watched(job, unpacker.plain(received(answer)))
            return await pass_on(request, answer, events, unpacker.on, (ENCODING,) if unpacker.on else ())
        whole = b"".join([chunk async for chunk in received(answer)])
        if "json" in kind:
            job.whole(parsed(unpacker.feed(whole)))
        return await pass_on(request, answer, _once(whole))

    def _to(self, request: web.Request) -> URL:
        return URL(forwarded(self.url, target_of(request)), encoded=True)

    async def _generate(self, request: web.Request, raw: bytes, path: str) -> web.StreamResponse:
        """Forward a turn with its tags. If the server refuses the tags, forward it again without them."""
        sent = kept(request.raw_headers, "accept-encoding")
        body = parsed(raw)
        if not isinstance(body, dict):
            body = None  # it is forwarded as it is
        lines = ""
        if body is not None and self._changing is not None:
            body, lines = self._changing.taken(body)
        keys = {name: sent[name] for name in _KEYS if name in sent}
        read = {name: value for name, value in sent.items() if name.lower() != RAW}  # counts are hidden in bytes, too
        outgoing = Outgoing(path, read, body, stream=bool(body and body.get("stream")))
        call = self._call(outgoing, _ProxySender(self._session, self.url, keys))
        if body is not None and lines:
            body = appended(body, lines)
            raw = json.dumps(body).encode()
        if call is None:
            return await self._plain(request, raw)

        def send(tagged: Outgoing) -> Awaitable[aiohttp.ClientResponse]:
            headers = sent.copy()
            for name, value in tagged.headers.items():
                headers.setdefault(name, value)
            tagged_raw = raw if body is None else with_fields(raw, body, tagged.extra_body or {})
            return self._post(request, headers, tagged_raw)

        sent_s = self._state.clock()
        try:
            answer = await call.send(send)
        except Refused as refused:
            if is_servers_fault(refused.status_code):
                self._server_failed(f"{self.root} answered {refused}"[:MAX_FAILURE_CHARS])
            else:
                self._server_answered(sent_s)
            return await pass_on(request, refused.answer, _once(refused.raw))
        async with answer:
            return await self._answered(request, call, answer, sent_s)

    async def _post(self, request: web.Request, headers: Mapping[str, str], body: bytes) -> aiohttp.ClientResponse:
        """Send a turn. Return the answer.

        Raises:
            Refused: the status of the answer is an error.
        """
        answer = await self._session.post(self._to(request), headers=headers, data=body, allow_redirects=False)
        if answer.status < 400:
            return answer
        async with answer:
            raise Refused(answer, await answer.read())

    async def _answered(
        self, request: web.Request, call: Call, answer: aiohttp.ClientResponse, sent_s: float
    ) -> web.StreamResponse:
        watched = call.begin_reply()
        assert watched is not None  # on_end is set
        unpacker = Unpacker(answer.headers.get(ENCODING, ""))
        chunks = unpacker.plain(received(answer))
        without = (ENCODING,) if unpacker.on else ()
        try:
            if "text/event-stream" in answer.headers.get("content-type", ""):
                changed = watched.hide_usage or unpacker.on
                response = await pass_on(request, answer, _watched(watched, chunks), changed, without)
            else:
                whole = b"".join([chunk async for chunk in chunks])
                watched.whole(parsed(whole))
                response = await pass_on(request, answer, _once(whole), unpacker.on, without)
            ending = watched.reply.ending(watched.asked)
            bad = ending.end in ("cut", "failed") and not watched.reply.under_way
            self._server_answered(sent_s, ending.error if bad else None)
            return response
        except BaseException as error:
            if isinstance(error, BrokenOff):
                watched.end("the server broke off")
            watched.closed()
            raise


class _ProxySender:
    """Sends the proxy's own requests, with the API key of a call."""

    asynchronous = True

    def __init__(self, session: aiohttp.ClientSession, url: str, keys: dict[str, str]) -> None:
        self.url = url
        self._session = session
        self._keys = keys

    async def models(self) -> Any:
        try:
            async with self._session.get(f"{self.url}/models", headers=self._keys, timeout=ASK_TIMEOUT) as answer:
                return parsed(await answer.read())
        except asyncio.TimeoutError:
            return None

    def post(self, release: Release, headers: Mapping[str, str]) -> None:
        """Send nothing: without its event loop the proxy has no connection. The server's TTL ends the hold."""

    async def apost(self, release: Release, headers: Mapping[str, str]) -> None:
        url, sent = URL(root_of(self.url) + release.path, encoded=True), {**headers, **self._keys}
        async with self._session.post(url, json=release.body, headers=sent, timeout=RELEASE_TIMEOUT) as answer:
            if answer.status >= 400:
                raise Refused(answer, b"")


# ------------------------------------------------------------------------------------ pure functions


def call_of(path: str) -> str | None:
    """Return which call of a model a path ends in, whatever precedes it, such as ``/chat/completions``; None: none."""
    path = path.rstrip("/")
    if path.endswith(f"/v1{MESSAGES}"):
        return MESSAGES
    return next((call for call in sorted(GENERATING) if path.endswith(call)), None)


def forwarded(base: str, target: str) -> str:
    """Return the URL to which a request goes.

    The agent's base URL has the path of the server's, so that paths pass unchanged. An agent that was set up by hand
    may write ``/v1`` for that path, and leave out what precedes ``/v1``.

    Args:
        base: the server's base URL.
        target: the request's path, with its query.
    """
    base_path, root_path = path_of(base), path_of(root_of(base))
    server = root_of(base).removesuffix(root_path)
    if target.startswith(f"{base_path}/") or (root_path and target.startswith(f"{root_path}/")):
        return server + target
    if target.startswith("/v1/") and not target.startswith(f"/v1{MESSAGES}"):
        return server + base_path + target.removeprefix("/v1")
    return server + root_path + target


def with_fields(raw: bytes, body: Mapping[str, Any], fields: Mapping[str, Any]) -> bytes:
    """Add members to the end of a JSON object without changing its other bytes.

    Args:
        raw: the object as it was received.
        body: the parsed object.
        fields: the members to add.
    """
    if not fields:
        return raw
    more = json.dumps(fields, separators=(",", ":"))[1:].encode()
    return b"".join((memoryview(raw)[: raw.rindex(b"}")], b"," if body else b"", more))  # one copy of a long body


async def _watched(watched: WatchedReply, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Watch the events of a stream. Yield the bytes for the agent."""
    events = Events(watched)
    async for chunk in chunks:
        yield events.feed(chunk)
    yield events.last()
    watched.end()


class Unpacker:
    """Makes the bytes of an answer plain that the server has compressed, though it was not asked to.

    Args:
        coding: ``gzip`` or ``deflate``, with or without zlib's header; all others pass as they are.
    """

    def __init__(self, coding: str) -> None:
        self.on = coding.strip().lower() in ("gzip", "x-gzip", "deflate")
        self._inner: zlib._Decompress | None = None

    def feed(self, piece: bytes) -> bytes:
        """Return what the piece completes.

        Raises:
            BrokenOff: the bytes are damaged.
        """
        if not self.on:
            return piece
        plain = b""
        try:
            while piece:
                if self._inner is None or self._inner.eof:  # gzip allows several members
                    headed = piece[0] & 15 == zlib.DEFLATED or piece[0] == _GZIP
                    self._inner = zlib.decompressobj(zlib.MAX_WBITS | 32 if headed else -zlib.MAX_WBITS)
                plain += self._inner.decompress(piece)
                piece = self._inner.unused_data
        except zlib.error as error:
            raise BrokenOff(f"compressed its answer badly: {error}") from error
        return plain

    async def plain(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the plain bytes of an answer."""
        async for chunk in chunks:
            yield self.feed(chunk)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _error(message: str) -> web.Response:
    error = {"type": "api_connection_error", "message": f"continuum-proxy: {message}"}
    return web.json_response({"type": "error", "error": error}, status=502)
