"""Pass HTTP requests and answers on byte for byte, as ``continuum-proxy`` does.

Needs aiohttp, which is not installed with the client alone.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from multidict import CIMultiDict
from yarl import URL

IDLE_S = 2.0
"""The time for which an unused connection to a server stays open: less than vLLM's 5 s, so that vLLM does not close it
while a request is on its way."""
HOP = frozenset(("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"))
HOP |= {"trailer", "transfer-encoding", "upgrade", "content-length", "host", "expect"}
"""Headers that are not passed on: those of one connection, and those that the HTTP libraries write themselves."""
LONGEST_LINE, LONGEST_BODY = 2**20, 2**40


_LOGGER = logging.getLogger("continuum.forwarding")


def _hide_request(record: logging.LogRecord) -> bool:
    """Leave the request out of a line about one that is no HTTP: the part that was not understood may be a key."""
    if record.exc_info is not None and isinstance(record.exc_info[1], HttpProcessingError):
        record.exc_info = None
        record.msg, record.args = "a request that is not HTTP was refused", ()
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


_LOGGER.addFilter(_hide_request)


class BrokenOff(Exception):
    """A server closed its connection before the end of an answer."""

    response: web.StreamResponse | None = None
    """The part that the client has received already."""


def session_to(connect_s: float, proxy: str | None = None) -> aiohttp.ClientSession:
    """Return an HTTP client that adds no headers or cookies to requests, and does not decompress answers.

    Args:
        connect_s: seconds after which a server that does not accept a connection counts as unreachable.
        proxy: URL of a web proxy.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
        proxy=proxy,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
    )


def runner_of(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], shutdown_timeout: float = 60.0
) -> web.AppRunner:
    """Return a server that answers every request with ``answer``, which is cancelled if the client disconnects."""
    app = web.Application(client_max_size=LONGEST_BODY)
    app.router.add_route("*", "/{path:.*}", answer)
    return web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        logger=_LOGGER,
        auto_decompress=False,
        shutdown_timeout=shutdown_timeout,
        max_line_size=LONGEST_LINE,
        max_field_size=LONGEST_LINE,
    )


def target_of(request: web.Request) -> str:
    """Return path and query as the client sent them; of a target with a host (RFC 9112, 3.2.2), without the host."""
    sent = request.raw_path
    return sent if sent.startswith("/") else URL(sent, encoded=True).raw_path_qs


def kept(raw: Iterable[tuple[bytes, bytes]], *without: str) -> CIMultiDict[str]:
    """Return the headers that are passed on. ``without``: further names in lower case that are not."""
    headers = CIMultiDict((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in raw)
    named = {name.strip().lower() for value in headers.getall("connection", ()) for name in value.split(",")}
    for name in {name.lower() for name in headers} & HOP.union(named, without):
        headers.popall(name)
    return headers


async def received(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the bytes of an answer.

    Raises:
        BrokenOff: the server closed the connection.
    """
    try:
        async for chunk in answer.content.iter_any():
            yield chunk
    except aiohttp.ClientError as error:
        raise BrokenOff(f"broke off its answer: {error}") from error


async def pass_on(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    chunks: AsyncIterator[bytes],
    changed: bool = False,
    without: tuple[str, ...] = (),
) -> web.StreamResponse:
    """Send an answer to the client. If the server closes its connection early, abort the connection to the client.

    Args:
        request: the client's request.
        answer: the server's answer.
        chunks: its bytes.
        changed: they may be more or fewer than the server sends.
        without: names, in lower case, of the answer's headers that are not sent, because the bytes were changed.

    Raises:
        BrokenOff: the server closed the connection.
    """
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    response.headers.extend(kept(answer.raw_headers, *without))
    if not changed:
        response.content_length = answer.content_length
    await response.prepare(request)
    try:
        async for chunk in chunks:
            if chunk:
                await response.write(chunk)
        await response.write_eof()
    except BaseException as error:
        if request.transport is not None:
            request.transport.abort()
        if isinstance(error, BrokenOff):
            error.response = response
        raise
    return response
