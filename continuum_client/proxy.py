"""Runs any program with a proxy of its own: ``continuum-proxy --upstream URL -- COMMAND ...``.

The proxy forwards each request to the server, and each answer byte for byte to the program. It adds the tags of one
program to the requests that generate: a request that continues no conversation belongs to a child program. The time
between two turns of a conversation counts as the time of the tools that the first turn's reply calls.

Three things differ from what the program sent and would get: the tags are added to its requests, answers are not
compressed, and a stream that is recorded is asked for its token counts (which the program does not get if it did not
ask for them itself).
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from aiohttp import web
from continuum_traces.schema import MAX_PROGRAM_ID_CHARS
from continuum_traces.shell import first_program
from multidict import CIMultiDict
from yarl import URL

from continuum_client.call import GENERATING, Call
from continuum_client.conversation import NO_SHAPE, Conversations, shape_of
from continuum_client.dialects import DIALECTS, HEADERS, Dialect
from continuum_client.endpoints import endpoints, root_of
from continuum_client.errors import log_release, once
from continuum_client.observe import WatchedReply
from continuum_client.program import Program
from continuum_client.reply import ENDS, Reply, ToolAsked, only_usage
from continuum_client.settings import ClientSettings
from continuum_client.turns import key_of

ASK_TIMEOUT, RELEASE_TIMEOUT = (aiohttp.ClientTimeout(total=seconds) for seconds in (2.0, 10.0))
"""Time limits of the proxy's own requests: the models of ``auto``, and the release of a program."""
IDLE_S = 2.0
"""How long an unused connection to the server stays open: less than vLLM's 5 s, so that the proxy closes it first."""
MESSAGES = "/messages"
"""The path of Anthropic's API. Of the dialects, only vLLM's is known there."""
_HOP = frozenset(("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"))
_HOP |= {"te", "trailer", "transfer-encoding", "upgrade", "content-length", "host", "expect", "accept-encoding"}
"""Headers of one connection, and those that the two HTTP libraries write themselves."""
_KEYS = ("authorization", "x-api-key", "api-key")
DUMMY_KEY = "EMPTY"
LOCAL = "127.0.0.1"
_WEB_PROXIES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
"""Variables that name a proxy to the web, through which the program must not call this one."""


def tool_by_command(name: str, arguments: str) -> str:
    """The name under which a tool is recorded: the program that a shell tool's ``command`` runs, else the tool's name.

    The server names tools in the same way. Without the arguments (``content="none"``) it is the tool's name.
    """
    try:
        return first_program(json.loads(arguments)["command"]) or name
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return name


class Watcher(Protocol):
    """Is told what passes through a proxy."""

    def turn(self, reply: Reply) -> None:
        """A reply has ended."""

    def tool(self, name: str, seconds: float) -> None:
        """A tool ran between two turns."""


class Upstream(Exception):
    """The server has refused a request."""

    def __init__(self, status_code: int, body: str) -> None:
        super().__init__(f"{status_code} {body}")
        self.status_code = status_code
        self.body = body


@dataclass(slots=True)
class _Options:
    """A request in the form in which ``Call`` reads and changes it."""

    url: str
    headers: dict[str, str]
    json_data: Mapping[str, Any] | None
    extra_json: dict[str, Any] | None = None
    method: str = "post"


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of a conversation's latest turn."""

    at_s: float
    asked: list[ToolAsked] = field(default_factory=list)


class Proxy:
    """A proxy for one program; use it with ``async with``. Its tags are those of ``Program``s of our client.

    Args:
        upstream: URL of the server, with or without ``/v1``.
        settings: the dialect (None: the server is asked), and the recorder if the program is recorded.
        program_id: default: a random one.
        watcher: is told about turns and tools.
    """

    def __init__(
        self,
        upstream: str,
        settings: ClientSettings,
        program_id: str | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.root = root_of(upstream)
        self.url = self.base_url = f"{self.root}/v1"
        self.program = settings.program(program_id)
        self.under_way = 0
        """Requests that are being forwarded."""
        self._settings = settings
        self._watcher = watcher
        self._tool_key = settings.recorder.tool_key if settings.recorder is not None else tool_by_command
        self._conversations = Conversations(self._begin)
        self._programs: weakref.WeakSet[Program] = weakref.WeakSet()
        self._count = 0
        self._ended: weakref.WeakKeyDictionary[Program, _Ended] = weakref.WeakKeyDictionary()
        self._keys: dict[str, str] = {}
        """The headers with the API key that the program sent last; a release needs them."""

    async def __aenter__(self) -> Proxy:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            max_line_size=2**20,
            max_field_size=2**20,
        )
        app = web.Application(client_max_size=2**40)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            handler_cancellation=True,  # a program that hangs up ends its request at the server
            auto_decompress=False,
            shutdown_timeout=0.0,
            max_line_size=2**20,
            max_field_size=2**20,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, LOCAL, 0, backlog=1024).start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the program: requests that are under way are aborted, and everything is released."""
        try:
            await self._runner.cleanup()
            programs = (*self._programs, self.program)
            await asyncio.gather(*(program.aclose() for program in programs), return_exceptions=True)
        finally:
            await self._session.close()

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """``environ`` with the addresses that openai's and Anthropic's libraries read, and keys where it has none."""
        here = f"http://{LOCAL}:{self.port}"
        keys = {} if environ.get("OPENAI_API_KEY") else {"OPENAI_API_KEY": DUMMY_KEY}
        if not (environ.get("ANTHROPIC_API_KEY") or environ.get("ANTHROPIC_AUTH_TOKEN")):
            keys["ANTHROPIC_AUTH_TOKEN"] = environ.get("OPENAI_API_KEY") or DUMMY_KEY  # sent as vLLM's keys are
        urls = {"OPENAI_BASE_URL": f"{here}/v1", "OPENAI_API_BASE": f"{here}/v1", "ANTHROPIC_BASE_URL": here}
        direct = {name: ",".join(filter(None, (environ.get(name), LOCAL))) for name in ("NO_PROXY", "no_proxy")}
        return {**environ, **keys, **urls, **(direct if any(map(environ.get, _WEB_PROXIES)) else {})}

    # ------------------------------------------------------------------------------------ programs

    def _begin(self) -> Program:
        """The program of a new conversation: first the proxy's own, then children of it."""
        self._count += 1
        if self._count == 1:
            return self.program
        name = f"{self.program.id}/{self._count}"
        program = self.program.child(name if len(name) <= MAX_PROGRAM_ID_CHARS else None)
        self._programs.add(program)
        return program

    def _call(self, options: _Options) -> Call:
        """The call for a request, with the tools that ran before it."""
        shape = shape_of(options.json_data) if options.url != "/completions" else NO_SHAPE
        found = self._conversations.program_of(shape)
        program, on_failure = (self.program, None) if found is None else found
        self._report_tools(program)
        call = Call(self._settings, program, options, self.url, shape)
        call.on_failure = on_failure
        call.on_end = lambda reply, at_s: self._turn_ended(program, reply, at_s)
        return call

    def _turn_ended(self, program: Program, reply: Reply, at_s: float) -> None:
        if reply.finished:
            self._ended[program] = _Ended(at_s, reply.asked)
        if self._watcher is not None:
            self._watcher.turn(reply)

    def _report_tools(self, program: Program) -> None:
        ended = self._ended.pop(program, None)
        if ended is None:
            return
        seconds = max(0.0, self._settings.clock() - ended.at_s)
        for name in dict.fromkeys(key_of(tool, self._tool_key) for tool in ended.asked):
            if name.isprintable() and not program.closed:
                program.ran(name, seconds)
                if self._watcher is not None:
                    self._watcher.tool(name, seconds)

    # ------------------------------------------------------------------------------------ requests

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self.under_way += 1
        try:
            raw = await request.read()
            path = request.path.removeprefix("/v1")
            if request.method == "POST" and path in (*GENERATING, MESSAGES):
                return await self._generate(request, raw, path)
            async with self._session.request(
                request.method,
                self._to(request),
                headers=_kept(request.raw_headers),
                data=raw or None,
                allow_redirects=False,
            ) as answer:
                return await _pass_on(request, answer, answer.content.iter_any())
        except aiohttp.ClientConnectionError as error:
            return _unreachable(self.root, error)
        finally:
            self.under_way -= 1

    def _to(self, request: web.Request) -> URL:
        return URL(self.root + request.raw_path, encoded=True)

    async def _generate(self, request: web.Request, raw: bytes, path: str) -> web.StreamResponse:
        """Forward a turn with its tags; without them a second time if the server refuses them."""
        sent = _kept(request.raw_headers)
        self._keys = {name: sent[name] for name in _KEYS if name in sent}
        body = _object(raw)
        options = _Options(path, dict(sent), body)
        call = self._call(options)
        call.apply_tags(await self._dialect(path), bool(body and body.get("stream")), self)
        while True:
            headers = sent.copy()
            for name, value in options.headers.items():
                headers.setdefault(name, value)
            tagged = raw if body is None else with_fields(raw, body, options.extra_json or {})
            try:
                answer = await self._session.post(
                    self._to(request), headers=headers, data=tagged, allow_redirects=False
                )
            except BaseException as error:
                call.retry_untagged(error)
                raise
            async with answer:
                refusal = await _refusal(answer)
                if refusal is None:
                    return await self._answered(request, call, answer)
                if not call.retry_untagged(refusal[0]):
                    return await _pass_on(request, answer, _once(refusal[1]))

    async def _answered(self, request: web.Request, call: Call, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        watched = call.begin_reply()
        assert watched is not None  # on_end is set
        try:
            if "text/event-stream" in answer.headers.get("content-type", ""):
                events = Events(watched, call.asked_for_usage)
                return await _pass_on(request, answer, events.of(answer.content.iter_any()), call.asked_for_usage)
            whole = await answer.read()
            watched.whole(_json(whole))
            return await _pass_on(request, answer, _once(whole))
        except BaseException:
            watched.closed()
            if call.on_failure is not None and not watched.reply.finished:
                call.on_failure()  # the program may send the same messages again
            raise

    # ---------------------------------------------------------------------------- the proxy's own requests

    async def _dialect(self, path: str) -> Dialect:
        known = self._settings.dialect or endpoints.found(self.url)
        if known is None and endpoints.begin_probe(self.url):
            known = await self._ask()
        known = known or HEADERS
        return known if path != MESSAGES or known is DIALECTS["vllm"] else HEADERS

    async def _ask(self) -> Dialect | None:
        """``auto``: the dialect that the server's model list indicates; None if nothing answers there."""
        try:
            async with self._session.get(f"{self.url}/models", headers=self._keys, timeout=ASK_TIMEOUT) as answer:
                return endpoints.end_probe(self.url, _json(await answer.read()))
        except aiohttp.ClientConnectionError:
            endpoints.abandon_probe(self.url)
            return None
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return endpoints.end_probe(self.url, None)
        except BaseException:
            endpoints.abandon_probe(self.url)
            raise

    async def _release(self, program_id: str) -> None:
        """Make the server release a program's KV; ``Program.aclose`` calls it."""
        dialect = self._settings.dialect or endpoints.found(self.url) or HEADERS
        release = dialect.release(program_id) if endpoints.accepts(self.url, "extension") else None
        if release is None:
            return
        try:
            to = URL(self.root + release.path, encoded=True)
            async with self._session.post(to, json=release.body, headers=self._keys, timeout=RELEASE_TIMEOUT) as answer:
                failure = None if answer.status in (200, 404, 405) else str(answer.status)
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            failure = repr(error)
        if failure is None:
            log_release(program_id, str(to))
        else:
            once.warn(f"release {self.url}", f"{self.url}: the release of a program failed: {failure}")

    def _release_blocking(self, program_id: str) -> None:
        raise NotImplementedError("a proxy closes its programs with aclose()")


class Events:
    """Reads the lines of a stream while they pass.

    Args:
        watched: gets every event, and the end.
        hide_usage: leave out the event with the token counts, because the program did not ask for it.
    """

    def __init__(self, watched: WatchedReply, hide_usage: bool) -> None:
        self._watched = watched
        self._hide = hide_usage
        self._rest = b""
        self._hidden = False

    async def of(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The bytes for the program."""
        async for chunk in chunks:
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            kept = [line for line in lines if self._line(line)]
            if not self._hide:
                yield chunk
            elif kept:
                yield b"\n".join((*kept, b""))
        if self._rest:
            self._line(self._rest)
            if self._hide:
                yield self._rest
        self._watched.end()

    def _line(self, line: bytes) -> bool:
        """Read a line; False if the program must not get it."""
        if not line.startswith(b"data:"):
            hidden, self._hidden = self._hidden and not line.strip(), False  # the blank line of a hidden event
            return not hidden
        item = _json(line[5:])
        if isinstance(item, dict):
            self._watched.chunk(item)
        if line[5:].strip() == b"[DONE]" or (isinstance(item, dict) and item.get("type") in ENDS):
            self._watched.end()  # before the program has it: its next turn may come at once
        self._hidden = self._hide and only_usage(item)
        return not self._hidden


# ------------------------------------------------------------------------------------ pure functions


def with_fields(raw: bytes, body: Mapping[str, Any], fields: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON object with more members at its end; its own bytes stay as they are.

    Args:
        raw: the object as received.
        body: the same, parsed.
        fields: members to add.
    """
    if not fields:
        return raw
    more = json.dumps(fields, separators=(",", ":"))[1:].encode()
    return b"".join((memoryview(raw)[: raw.rindex(b"}")], b"," if body else b"", more))  # one copy of a long body


def _object(raw: bytes) -> dict[str, Any] | None:
    """A body that is a JSON object; None if it is something else, which is forwarded as it is."""
    found = _json(raw)
    return found if isinstance(found, dict) else None


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None


def _kept(raw: Iterable[tuple[bytes, bytes]]) -> CIMultiDict[str]:
    """The headers that are forwarded."""
    headers = CIMultiDict((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in raw)
    named = {name.strip().lower() for value in headers.getall("connection", ()) for name in value.split(",")}
    for name in {name.lower() for name in headers} & (_HOP | named):
        headers.popall(name)
    return headers


async def _refusal(answer: aiohttp.ClientResponse) -> tuple[Upstream, bytes] | None:
    """The error of an answer that is one, with its body."""
    if answer.status < 400:
        return None
    body = await answer.read()
    return Upstream(answer.status, body.decode("utf-8", "replace")), body


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def _pass_on(
    request: web.Request, answer: aiohttp.ClientResponse, chunks: AsyncIterator[bytes], shorter: bool = False
) -> web.StreamResponse:
    """Send an answer to the program. If the server breaks off, so does the connection to the program."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    response.headers.extend(_kept(answer.raw_headers))
    length = answer.headers.get("content-length")
    if length is not None and not shorter:
        response.content_length = int(length)
    await response.prepare(request)
    try:
        async for chunk in chunks:
            await response.write(chunk)
        await response.write_eof()
    except BaseException:
        if request.transport is not None:
            request.transport.abort()
        raise
    return response


def _unreachable(root: str, error: Exception) -> web.Response:
    message = f"continuum-proxy: {root} does not answer: {error}"
    what = {"type": "error", "error": {"type": "api_connection_error", "message": message}}
    return web.Response(status=502, text=json.dumps(what), content_type="application/json")
