"""Listening to a reply without changing it, whichever way the caller reads it.

A parsed answer is looked at once. A ``Stream`` is followed object by object. The raw styles (``with_raw_response``,
``with_streaming_response``) are followed byte by byte, since only the caller knows what will be read. What we hook are
instance attributes; types and behaviour stay openai's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import openai

from continuum_client.errors import once
from continuum_client.reply import Reply, only_usage

MAX_BODY_BYTES = 64 * 2**20
"""Of a raw answer, or of one line of a raw stream, looked at; a longer one is not understood."""


class Listener(Protocol):
    """Told once how a turn ended."""

    def __call__(self, reply: Reply, finish_s: float, error: str | None) -> None: ...


class Turn:
    """One reply on its way; what goes wrong in looking at it is one warning, never the caller's."""

    def __init__(self, reply: Reply, clock: Callable[[], float], listener: Listener) -> None:
        self.reply = reply
        self.reading = False
        """The caller is waiting for the next piece: a close meanwhile is the end of the body, not the caller's."""
        self._clock = clock
        self._listener = listener
        self._lock = threading.Lock()
        self._ended = False

    def piece(self, item: Any) -> None:
        """A piece of a stream has come."""
        if not self._ended:
            try:
                seen = self.reply.first_token_s  # the clock is read until the first token, and not for those after it
                self.reply.take(item, self._clock() if seen is None else seen)
            except Exception as error:  # noqa: BLE001 - as in _guarded, without its cost for every chunk
                _told(error)

    def whole(self, answer: Any) -> None:
        """The answer has come, all at once."""
        _guarded(lambda: self.reply.take(answer))
        self.end()

    def end(self, error: BaseException | str | None = None) -> None:
        """The reply is over; only the first word counts."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        said = _words(error) if isinstance(error, BaseException) else error
        _guarded(lambda: self._listener(self.reply, self._clock(), said))

    def closed(self) -> None:
        """The connection was closed: an early end, unless the server had said it was done."""
        if not self.reading:
            self.end(None if self.reply.finished else "closed before its end")


def _guarded(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - recording is a guest: what it raises must not reach the agent
        _told(error)


def _told(error: Exception) -> None:
    once.warn("recording", f"a reply could not be recorded: {error!r}")


def _words(error: BaseException) -> str:
    status = getattr(error, "status_code", None)
    return f"{type(error).__name__} {status}" if status else type(error).__name__


def watch(result: Any, turn: Turn, hide_usage: bool) -> None:
    """Follow a reply to its end.

    Args:
        result: what openai's ``request()`` gave.
        turn: told of every piece and of the end.
        hide_usage: keep from the caller the last chunk, which only we asked for.
    """
    if isinstance(result, openai.BaseModel):
        turn.whole(result)
        return
    raw = getattr(result, "http_response", None)
    if raw is not None and hasattr(result, "parse"):
        _watch_raw(raw, turn)
    elif hasattr(result, "_iterator") and hasattr(result, "response"):
        _on_close(result.response, turn)
        follow = _Async if hasattr(result._iterator, "__anext__") else _Sync
        result._iterator = follow(result._iterator, turn, hide_usage)
    else:
        turn.whole(result)


class _Sync:
    def __init__(self, inner: Iterator[Any], turn: Turn, hide_usage: bool) -> None:
        self._inner, self._turn, self._hide = inner, turn, hide_usage

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            self._turn.reading = True
            try:
                item = next(self._inner)
            except StopIteration:
                self._turn.end()
                raise
            except BaseException as error:
                self._turn.end(error)
                raise
            finally:
                self._turn.reading = False
            self._turn.piece(item)
            if not (self._hide and only_usage(item)):
                return item


class _Async:
    def __init__(self, inner: AsyncIterator[Any], turn: Turn, hide_usage: bool) -> None:
        self._inner, self._turn, self._hide = inner, turn, hide_usage

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            self._turn.reading = True
            try:
                item = await self._inner.__anext__()
            except StopAsyncIteration:
                self._turn.end()
                raise
            except BaseException as error:
                self._turn.end(error)
                raise
            finally:
                self._turn.reading = False
            self._turn.piece(item)
            if not (self._hide and only_usage(item)):
                return item


# -------------------------------------------------------------------------------------- raw responses


def _watch_raw(response: Any, turn: Turn) -> None:
    body = _Body(turn, "text/event-stream" in response.headers.get("content-type", ""))
    if response.is_closed:  # read already
        body.feed(response.content)
        body.finish()
        return
    _on_close(response, turn, body)
    plain, plain_async = response.iter_bytes, response.aiter_bytes

    def iter_bytes(chunk_size: int | None = None) -> Iterator[bytes]:
        turn.reading = True
        try:
            for chunk in plain(chunk_size):
                body.feed(chunk)
                turn.reading = False
                yield chunk
                turn.reading = True
            body.finish()
        finally:
            turn.reading = False

    async def aiter_bytes(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        turn.reading = True
        try:
            async for chunk in plain_async(chunk_size):
                body.feed(chunk)
                turn.reading = False
                yield chunk
                turn.reading = True
            body.finish()
        finally:
            turn.reading = False

    response.iter_bytes, response.aiter_bytes = iter_bytes, aiter_bytes


def _on_close(response: Any, turn: Turn, body: _Body | None = None) -> None:
    plain, plain_async = response.close, response.aclose

    def ended() -> None:
        if body is not None and not turn.reading:
            body.last_line()
        turn.closed()

    def close() -> None:
        try:
            plain()
        finally:
            ended()

    async def aclose() -> None:
        try:
            await plain_async()
        finally:
            ended()

    response.close, response.aclose = close, aclose


class _Body:
    """A raw body: server-sent events line by line, or one JSON document."""

    def __init__(self, turn: Turn, events: bool) -> None:
        self._turn = turn
        self._events = events
        self._rest = b""
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        if not self._events:
            self._size += len(chunk)
            if self._size <= MAX_BODY_BYTES:
                self._parts.append(chunk)
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._rest = self._rest[:MAX_BODY_BYTES]
        for line in lines:
            self._line(line)

    def last_line(self) -> None:
        """A line without an end, if there is one."""
        rest, self._rest = self._rest, b""
        if rest:
            self._line(rest)

    def finish(self) -> None:
        """The body is complete."""
        if self._events:
            self.last_line()
            self._turn.end()
        elif self._size > MAX_BODY_BYTES:
            self._turn.end("too long to look at")
        else:
            self._turn.whole(_json(b"".join(self._parts)))

    def _line(self, line: bytes) -> None:
        if line.startswith(b"data:"):
            item = _json(line[5:])
            if isinstance(item, dict):
                self._turn.piece(item)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
