"""One streamed request: bytes out, events in, as little work per chunk as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec

from continuum_bench.live.conversation import Answer

Clock = Callable[[], float]


class RequestFailed(Exception):
    """A request that got no whole answer.

    Attributes:
        kind: http-429, http-500 ..., connection, timeout, stream, invalid-json.
        again: whether trying again may help.
        retry_after_s: seconds the server asked to wait before that; None where it did not.
    """

    def __init__(self, kind: str, message: str, again: bool, retry_after_s: float | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.again = again
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class Reply:
    """What a streamed request gave. Seconds on the driver's clock."""

    first_token_s: float | None = None
    finish_s: float = 0.0
    answer: Answer = field(default_factory=Answer)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """None where the server does not say."""
    ended: bool = False
    """The server said that this was all: a finish reason, or [DONE]."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


decode_chunk = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode


async def stream(
    session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], headers: Mapping[str, str], clock: Clock
) -> Reply:
    """POST and read the stream to its end.

    Raises:
        RequestFailed: no whole answer; ``kind`` says why.
    """
    reply = Reply()
    try:
        async with session.post(url, data=_encode(body), headers=headers) as response:
            if response.status != 200:
                raise _refusal(response, await response.text(errors="replace"))
            await _read(reply, response.content, clock)
    except TimeoutError as error:
        raise RequestFailed("timeout", "the request took too long", again=True) from error
    except aiohttp.ClientError as error:
        kind = "connection" if reply.first_token_s is None else "stream"
        raise RequestFailed(kind, str(error) or type(error).__name__, again=True) from error
    if reply.first_token_s is None or not reply.ended:
        what = "without a token" if reply.first_token_s is None else "in the middle of the answer"
        raise RequestFailed("stream", f"ended {what}", again=True)
    return reply


async def _read(reply: Reply, content: aiohttp.StreamReader, clock: Clock) -> None:
    """To the last byte, not only to [DONE]: a connection with unread bytes is not used again."""
    rest = b""
    async for data in content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                _take(reply, line[5:].strip(), clock)
    if not reply.finish_s:
        reply.finish_s = clock()


def _refusal(response: aiohttp.ClientResponse, text: str) -> RequestFailed:
    again = response.status in (408, 409, 429) or response.status >= 500
    return RequestFailed(f"http-{response.status}", text[:500], again, retry_after_s(response.headers))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds a server asks to wait: ``Retry-After`` as a number, or as a date beside the server's own ``Date``.

    >>> retry_after_s({"Retry-After": "2"})
    2.0
    """
    text = headers.get("Retry-After")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - parsedate_to_datetime(headers["Date"])).total_seconds()
        except (KeyError, TypeError, ValueError):
            return None
    return seconds if seconds >= 0 else None


def _take(reply: Reply, payload: bytes, clock: Clock) -> None:
    if payload == b"[DONE]":
        reply.ended, reply.finish_s = True, clock()
        return
    try:
        chunk = decode_chunk(payload)
    except msgspec.DecodeError as error:
        raise RequestFailed("invalid-json", f"{error}: {payload[:200]!r}", again=True) from error
    if chunk.error is not None:
        raise RequestFailed("stream", str(chunk.error)[:500], again=True)
    for choice in chunk.choices:
        _take_choice(reply, choice, clock)
    if chunk.usage is not None:
        usage, details = chunk.usage, chunk.usage.prompt_tokens_details
        reply.prompt_tokens, reply.output_tokens = usage.prompt_tokens, usage.completion_tokens
        reply.cached_tokens = details.cached_tokens if details is not None else None


def _take_choice(reply: Reply, choice: _Choice, clock: Clock) -> None:
    delta = choice.delta
    text = choice.text if delta is None else (delta.content or delta.reasoning_content)
    if choice.token_ids:
        reply.answer.token_ids += choice.token_ids
    if text:
        reply.answer.text += text
    if reply.first_token_s is None and (text or choice.token_ids):
        reply.first_token_s = clock()
    if choice.finish_reason is not None:
        reply.ended = True
