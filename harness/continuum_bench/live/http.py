"""One streamed request: bytes out, events in, as little work per chunk as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
    """

    def __init__(self, kind: str, message: str, again: bool) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.again = again


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


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
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
                text = (await response.text())[:500]
                again = response.status in (408, 409, 429) or response.status >= 500
                raise RequestFailed(f"http-{response.status}", text, again)
            async for line in response.content:
                if line.startswith(b"data:"):
                    payload = line[5:].strip()
                    if payload == b"[DONE]":
                        break
                    _take(reply, payload, clock)
    except TimeoutError as error:
        raise RequestFailed("timeout", "the request took too long", again=True) from error
    except aiohttp.ClientError as error:
        kind = "connection" if reply.first_token_s is None else "stream"
        raise RequestFailed(kind, str(error) or type(error).__name__, again=True) from error
    if reply.first_token_s is None:
        raise RequestFailed("stream", "ended without a token", again=True)
    reply.finish_s = clock()
    return reply


def _take(reply: Reply, payload: bytes, clock: Clock) -> None:
    try:
        chunk = _decode(payload)
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
