"""Streamed requests, with as little work for each chunk as possible.

Unless ``--token-times`` is given, the instants of the chunks between the first token and the end are not recorded.
These chunks stay in the buffer until the stream ends, or until all streams are read, which happens every few seconds.
Reading every chunk immediately would delay requests that are due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
from continuum_traces.records.token_gaps import gaps_ms
from continuum_traces.wire.answers import Answer, Ending, EventBytes, asked_in
from continuum_traces.wire.urls import web_proxy_of

from continuum_bench.options.declare import number_in

Clock = Callable[[], float]

READ_EVERY_S = 5.0
READ_BUFFER = 2**26
"""Bytes of one answer that may stay unread before the server has to wait."""
KEEPALIVE_S = 2.0
"""Idle connections are closed after this time, before the server closes them (vLLM and SGLang: after 5 s)."""


def open_session(url: str) -> aiohttp.ClientSession:
    """Open a session for ``post`` to the server of this URL, without cookies or a limit of connections."""
    reuse = aiohttp.TraceConfig()
    reuse.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0),
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        read_bufsize=READ_BUFFER,
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[reuse],
        proxy=web_proxy_of(url),
    )


async def _note_reuse(_session: aiohttp.ClientSession, context: Any, _parameters: Any) -> None:
    context.trace_request_ctx.append("reused")


async def post(session: aiohttp.ClientSession, url: str, **request: Any) -> aiohttp.ClientResponse:
    """Send a POST request. It is sent again if it met an idle connection that the server was just closing.

    Raises:
        aiohttp.ClientError: no answer began, on a connection of the request's own.
    """
    while True:
        connection: list[str] = []
        try:
            return await session.post(url, trace_request_ctx=connection, **request)
        except aiohttp.ClientConnectionError:
            if not connection:
                raise


class RequestFailed(Exception):
    """A request got no complete answer.

    Attributes:
        kind: http-429, http-500 ..., connection, timeout, or the code of an ``Ending``: stream, short ...
        again: whether another try may help.
        retry_after_s: seconds that the server asks to wait before another try; None: it does not say.
        missing: by how many tokens the answer was too short.
    """

    def __init__(
        self, kind: str, message: str, again: bool, retry_after_s: float | None = None, missing: int = 0
    ) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.again = again
        self.retry_after_s = retry_after_s
        self.missing = missing


@dataclass(slots=True)
class StreamedAnswer(Answer):
    """The answer to a streamed request. Instants are on the driver's clock."""

    finish_s: float = 0.0

    def gaps_ms(self) -> dict[str, int] | None:
        """Return the gaps between the answer's tokens, as records have them: none if they all came in one chunk."""
        chunks = [] if self.parts < 2 else self.counted_chunks()
        return None if chunks is None else gaps_ms(chunks)


_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class StreamingClient:
    """Posts requests, and reads and times their streamed answers.

    Args:
        session: the connections.
        clock: returns seconds.
        limit_s: a request that takes longer fails with kind ``timeout``.
        every_chunk: read each chunk immediately.
    """

    def __init__(self, session: aiohttp.ClientSession, clock: Clock, limit_s: float, every_chunk: bool = False) -> None:
        self._session = session
        self._clock = clock
        self._limit_s = limit_s
        self._every_chunk = every_chunk
        self._open: set[_Stream] = set()

    def reply(self) -> StreamedAnswer:
        """Return an answer of which nothing was read yet."""
        return StreamedAnswer(with_text=True, done=False, chunks=[] if self._every_chunk else None)

    async def post(
        self, url: str, body: Mapping[str, Any], headers: Mapping[str, str], reply: StreamedAnswer | None = None
    ) -> StreamedAnswer:
        """Send a POST request and read its stream to the last byte, so that the connection can be used again.

        Args:
            reply: is filled with the answer as it comes, so that a caller that gives up has what came until then.

        Raises:
            RequestFailed: no complete answer; ``kind`` says why.
        """
        asked, reply = asked_in(body), reply or self.reply()
        reply.alone = asked.choices == 1
        try:
            async with (
                asyncio.timeout(self._limit_s),
                await post(self._session, url, data=_encode(body), headers=headers) as response,
            ):
                if response.status != 200:
                    raise _refusal(response, await response.text(errors="replace"))
                await self._read(_Stream(reply, response, self._clock))
        except aiohttp.ClientError as error:  # before TimeoutError, of which it is a subclass
            kind = "connection" if reply.first_token_s is None else "stream"
            raise RequestFailed(kind, str(error) or type(error).__name__, again=True) from error
        except TimeoutError as error:
            raise RequestFailed("timeout", "the request took too long", again=True) from error
        ended = reply.ending(asked)
        if ended.error is None and reply.first_token_s is None and not reply.output_tokens:
            raise RequestFailed("stream", "ended without a token", again=True)
        _check(ended)
        return reply

    async def _read(self, stream: _Stream) -> None:
        content = stream.content
        while (self._every_chunk or stream.reply.first_token_s is None) and not content.at_eof():
            stream.take(await content.readany())
        self._open.add(stream)
        try:
            await stream.ended()
        finally:
            self._open.discard(stream)
        stream.take(content.read_nowait(), whole=True)
        stream.reply.finish_s = stream.reply.finish_s or self._clock()

    async def read_along(self) -> None:
        """Read all streams every ``READ_EVERY_S`` until cancelled, so that long answers do not fill the buffer and
        errors are noticed early."""
        while True:
            await asyncio.sleep(READ_EVERY_S)
            for stream in list(self._open):
                stream.read_along()
                await asyncio.sleep(0)


class _Stream:
    """The stream of one answer."""

    def __init__(self, reply: StreamedAnswer, response: aiohttp.ClientResponse, clock: Clock) -> None:
        self.reply = reply
        self.content = response.content
        self._response = response
        self._clock = clock
        self._events = EventBytes()
        self._failure: RequestFailed | None = None

    def take(self, piece: bytes, whole: bool = False) -> None:
        reply, events = self.reply, self._events.feed(piece)
        reply.take_events(events + self._events.last() if whole else events, self._clock, _decode)
        if reply.done and not reply.finish_s:
            reply.finish_s = self._clock()
        if reply.fault is not None:
            _check(reply.fault)

    def read_along(self) -> None:
        if self.content.is_eof() or self.content.exception() is not None:
            return  # ``ended`` handles the end of the stream
        try:
            self.take(self.content.read_nowait())
        except RequestFailed as error:
            self._failure = error
            self._response.close()

    async def ended(self) -> None:
        """Wait for the last byte.

        Raises:
            RequestFailed: ``read_along`` found an error.
            aiohttp.ClientError: the connection broke.
        """
        try:
            if (error := self.content.exception()) is not None:
                raise error
            await self.content.wait_eof()
        except aiohttp.ClientError as error:
            raise self._failure or error from None


def _check(ended: Ending) -> None:
    if ended.error is not None:
        raise RequestFailed(ended.code, ended.why, again=True, missing=ended.missing)


def _refusal(response: aiohttp.ClientResponse, text: str) -> RequestFailed:
    asked = response.headers.get("x-should-retry")
    again = response.status in (408, 409, 429) or response.status >= 500 if asked is None else asked.lower() == "true"
    return RequestFailed(f"http-{response.status}", text[:500], again, retry_after_s(response.headers))


def retry_after_s(
    headers: Mapping[str, str],
    wall: Clock = time.time,  # noqa: TID251 - an HTTP date is one of the calendar
) -> float | None:
    """Return the seconds that ``retry-after-ms`` or ``Retry-After`` asks to wait; None: neither says it.

    ``Retry-After`` is a number of seconds or a date (RFC 9110, 10.2.3), which is compared with the answer's own
    ``Date``, or with this machine's clock.

    >>> retry_after_s({"Retry-After": "2"})
    2.0
    >>> retry_after_s({"Retry-After": "Sun, 06 Nov 1994 08:49:37 GMT", "Date": "Sun, 06 Nov 1994 08:49:07 GMT"})
    30.0
    """
    for name, unit_s in (("retry-after-ms", 1e-3), ("Retry-After", 1.0)):
        if (number := number_in(headers.get(name, "")) * unit_s) >= 0:
            return number
    until_s = _date_s(headers.get("Retry-After", ""))
    if until_s is None:
        return None
    now_s = _date_s(headers.get("Date", ""))
    return max(0.0, until_s - (wall() if now_s is None else now_s))


def _date_s(text: str) -> float | None:
    """Return an HTTP date as seconds since the epoch; None: it is none."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
