"""Watch a reply while the caller reads it, without changing what the caller gets.

A parsed answer is read once. A ``Stream`` is read chunk by chunk. Raw responses (``with_raw_response``,
``with_streaming_response``) are watched as bytes, because the caller decides how much of them is read. Only attributes
of the response objects are replaced; openai's classes stay unchanged.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from continuum_traces.wire.answers import ANY_LENGTH, Asked, EventBytes, only_usage

from continuum_client.ending import do_what_is_left, later, unless_dropped
from continuum_client.errors import once
from continuum_client.reply import Reply

MAX_BODY_BYTES = 64 * 2**20
"""The longest raw answer, and the longest line of a raw stream, that is parsed."""
NOT_RECORDED = ("recording", "a reply could not be recorded")
"""Key and text of the warning after an exception of our own code."""

_EVENT = re.compile(rb".*?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
"""An event with the blank line after it."""

_JOB = re.compile(r".*/responses/(?P<id>[^/?]+)(/cancel)?/?")
Jobs = dict[str, "WatchedReply"]
"""Replies that are under way in the background, by their ids."""
_OF_ALL: WeakValueDictionary[str, WatchedReply] = WeakValueDictionary()
"""Those of all clients: another client than the one that asked may retrieve a reply."""


def job_of(jobs: Jobs, path: str) -> WatchedReply | None:
    """Return the reply in the background for which a request asks by its path; None: it asks for something else."""
    asked = _JOB.fullmatch(path)
    if asked is None:
        return None
    do_what_is_left()  # such as the end of the stream that the caller has left
    return jobs.get(asked["id"]) or _OF_ALL.get(asked["id"])


OnEnd = Callable[[Reply, float, str | None], None]
"""A function that is called once, when a reply has ended: with the reply, the client's clock in seconds, and the error
or None."""


class WatchedReply:
    """A reply that is being received. Exceptions of our own code become one warning and never reach the caller.

    As a context manager it surrounds the caller's wait for the next chunk. An exception in the block ends the reply.

    Args:
        reply: receives the parts of the reply.
        clock: the client's clock.
        listeners: are called in this order when the reply has ended.
        hide_usage: the caller gets no chunk with only the token counts, because it did not ask for the counts.
        asked: the length that the request asks for.
        jobs: receives the reply by its id while it is under way in the background. It ends when it is retrieved.
    """

    def __init__(
        self,
        reply: Reply,
        clock: Callable[[], float],
        listeners: Sequence[OnEnd],
        hide_usage: bool = False,
        asked: Asked = ANY_LENGTH,
        jobs: Jobs | None = None,
    ) -> None:
        self.reply = reply
        self.asked = asked
        self.hide_usage = hide_usage
        self._jobs = jobs
        self.waiting = False
        """Whether the caller waits for the next chunk. If the connection is closed then, the body has ended."""
        self._clock = clock
        self._listeners = listeners
        self._lock = threading.Lock()
        self._ended = False

    def chunk(self, item: Any) -> bool:
        """Read a chunk or an event of a stream, which has just arrived. Return whether the caller gets it."""
        if not self._ended:
            try:
                first_token_s = self.reply.first_token_s  # the clock is read only until the first token
                self.reply.take(item, self._clock() if first_token_s is None else first_token_s)
            except Exception as error:  # noqa: BLE001 - like once.guard, which would cost a closure for every chunk
                self._warn(error)
        return not (self.hide_usage and only_usage(item))

    def events(self, events: bytes) -> bool:
        """Read server-sent events, which have just arrived. Return whether the caller gets the last of them."""
        item = None
        if events and not self._ended:
            try:
                item = self.reply.take_events(events, self._clock)
            except Exception as error:  # noqa: BLE001
                self._warn(error)
            if self.reply.done:
                self.end()  # before the caller gets the event, because its next turn may come at once
        return not (self.hide_usage and only_usage(item))

    @staticmethod
    def _warn(error: Exception) -> None:
        key, text = NOT_RECORDED
        once.warn(key, f"{text}: {error!r}")

    def whole(self, answer: Any) -> None:
        """Read the complete answer."""
        once.guard(*NOT_RECORDED, lambda: self.reply.take(answer))
        self.end()

    def end(self, error: BaseException | str | None = None) -> None:
        """Note that the reply has ended. Only the first call has an effect. Without an ``error`` the reply itself says
        whether it ended well."""
        if not self._ended:
            name, at_s = _name_of(error) if isinstance(error, BaseException) else error, self._clock()
            unless_dropped(error, lambda: self._end(name or self.reply.ending(self.asked).error, at_s))

    def give_up(self) -> None:
        """Note that a reply in the background will not be retrieved."""
        self._jobs = None
        self._end("accepted, and never retrieved", self._clock())

    def _end(self, error: str | None, at_s: float) -> None:
        with self._lock:
            if self._ended:
                return
            if self._jobs is not None and self.reply.job_id is not None:
                for jobs in (self._jobs, _OF_ALL):
                    jobs.pop(self.reply.job_id, None)
                if self.reply.under_way:
                    self._jobs[self.reply.job_id] = _OF_ALL[self.reply.job_id] = self
                    return
            self._ended = True
        once.guard(*NOT_RECORDED, lambda: [listener(self.reply, at_s, error) for listener in self._listeners])

    def closed(self) -> None:
        """Note that the connection was closed, perhaps because the reply is garbage. That is an error unless the server
        has sent the end of the answer."""
        if not self.waiting and not self._ended:
            at_s = self._clock()
            error = self.reply.ending(self.asked).error if self.reply.stopped else "closed before its end"
            later(lambda: self._end(error, at_s))

    def __enter__(self) -> None:
        self.waiting = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.waiting = False
        if error is not None:
            self.end(error)


def _name_of(error: BaseException) -> str:
    status = getattr(error, "status_code", None)
    return f"{type(error).__name__} {status}" if status else type(error).__name__


def watch(result: Any, watched: WatchedReply) -> None:
    """Watch a reply to its end: ``result`` is the return value of openai's ``request()``."""
    from openai import BaseModel  # noqa: PLC0415 - the proxy watches replies without it

    if isinstance(result, BaseModel):
        watched.whole(result)
        return
    raw = getattr(result, "http_response", None)
    if raw is not None and hasattr(result, "parse"):
        _watch_raw(raw, watched)
    elif hasattr(result, "_iterator") and hasattr(result, "response"):
        _on_close(result.response, watched)
        result._iterator = _Chunks(result._iterator, watched, watched.chunk, watched.end)
    else:
        watched.whole(result)


_END = object()


class _Chunks:
    """Watches what the caller reads, synchronously or asynchronously.

    Args:
        inner: the iterator, or asynchronous iterator.
        watched: is told when the caller waits, and of exceptions.
        take: receives each item; what it returns is true if the caller gets the item.
        finish: called at the end.
    """

    def __init__(
        self, inner: Any, watched: WatchedReply, take: Callable[[Any], object], finish: Callable[[], None]
    ) -> None:
        self._inner, self._watched, self._take, self._finish = inner, watched, take, finish

    def __iter__(self) -> Iterator[Any]:
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            with self._watched:
                item = next(self._inner, _END)
            if item is _END:
                self._finish()
                raise StopIteration
            if self._take(item):
                return item

    async def aclose(self) -> None:
        """Called by httpx2, with which openai 3 reads, when it leaves a body."""
        await self._inner.aclose()

    async def __anext__(self) -> Any:
        while True:
            with self._watched:
                item = await anext(self._inner, _END)
            if item is _END:
                self._finish()
                raise StopAsyncIteration
            if self._take(item):
                return item


# -------------------------------------------------------------------------------------- raw responses


def _watch_raw(response: Any, watched: WatchedReply) -> None:
    streamed = "text/event-stream" in response.headers.get("content-type", "")
    body = Events(watched) if streamed else _Document(watched)
    if response.is_closed:  # openai has read the body already
        body.feed(response.content)
        body.finish()
        return
    _on_close(response, watched, body)
    plain, plain_async = response.iter_bytes, response.aiter_bytes

    def iter_bytes(chunk_size: int | None = None) -> _Chunks:
        return _Chunks(plain(chunk_size), watched, body.feed, body.finish)

    def aiter_bytes(chunk_size: int | None = None) -> _Chunks:
        return _Chunks(plain_async(chunk_size), watched, body.feed, body.finish)

    response.iter_bytes, response.aiter_bytes = iter_bytes, aiter_bytes


def _on_close(response: Any, watched: WatchedReply, body: Events | _Document | None = None) -> None:
    plain, plain_async = response.close, response.aclose

    def ended() -> None:
        if body is not None and not watched.waiting:
            body.last()
        watched.closed()

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


class Events:
    """Watches server-sent events, which arrive in pieces. ``watched`` receives every event, and the end."""

    def __init__(self, watched: WatchedReply) -> None:
        self._watched = watched
        self._events = EventBytes()
        watched.reply.done = False

    def feed(self, piece: bytes) -> bytes:
        """Watch the events that the piece completes. Return the bytes for the caller."""
        events = self._events.feed(piece)
        if self._watched.hide_usage:
            return b"".join(event for event in _EVENT.findall(events) if self._watched.events(event))
        self._watched.events(events)
        self._events.rest = self._events.rest[:MAX_BODY_BYTES]
        return piece

    def last(self) -> bytes:
        """Watch the last event if no blank line follows it. Return the rest of the bytes for the caller."""
        rest = self._events.last()
        shown = self._watched.events(rest)
        return rest if self._watched.hide_usage and shown else b""

    def finish(self) -> None:
        """Note that all bytes have been received."""
        self.last()
        self._watched.end()


class _Document:
    """Watches the one JSON document of a raw body, which arrives in pieces."""

    def __init__(self, watched: WatchedReply) -> None:
        self._watched = watched
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> bytes:
        """Watch a piece. Return it for the caller."""
        self._size += len(piece)
        if self._size <= MAX_BODY_BYTES:
            self._parts.append(piece)
        return piece

    def last(self) -> None:
        """Do nothing, because half a document says nothing."""

    def finish(self) -> None:
        """Note that the whole body has been received."""
        if self._size > MAX_BODY_BYTES:
            self._watched.end("too long to look at")
        else:
            self._watched.whole(parsed(b"".join(self._parts)))


def parsed(text: bytes) -> Any:
    """Parse JSON; None if the text is something else."""
    try:
        return json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
