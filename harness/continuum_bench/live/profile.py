"""Measures a live server's prefill times by prompt length and its decode times by batch size, in a few minutes."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
import uuid
from collections.abc import Callable, Sequence

from continuum_server.step_times.profile import (
    LEAST_POINTS,
    DecodePoint,
    PrefillPoint,
    Profile,
    RequestPoint,
    make_profile,
)
from continuum_traces.names import counted
from continuum_traces.schema import KvPool
from continuum_traces.wire.urls import joined

from continuum_bench.errors import BenchError
from continuum_bench.invocation import utc_now
from continuum_bench.live.contexts import HIGHEST_ID, LOWEST_ID
from continuum_bench.live.endpoint import Endpoint
from continuum_bench.live.http import RequestFailed, StreamedAnswer, StreamingClient, open_session

DECODE_TOKENS = 64
BATCHES = (1, 4, 16, 64)
DECODE_CONTEXTS = (512, 4096)
REQUEST_LIMIT_S = 600.0
MIN_DECODE_POINTS = 4
"""One point more than the fit has coefficients."""
LONG_PROMPT_S = 10.0
"""A prompt that takes longer is measured once. No longer prompts are measured, unless the user names a length."""
CACHED_ROUNDS = 5
"""Least number of measurements of a cached prompt, which takes milliseconds."""
CACHED_SHARE = 0.5
"""Of a prompt that was just computed, at least this share must be in the cache: else the server has none."""
DECODE_ROUNDS = 6
"""Number of attempts to measure a point on a server with other load, before the profile is given up."""


def measure(
    endpoint: Endpoint,
    model: str,
    api_key: str | None,
    repeats: int,
    say: Callable[[str], None],
    longest: int | None = None,
) -> Profile:
    """Measure points, each the median of ``repeats``, and fit the curves. The server should have no other load.

    Args:
        endpoint: the server.
        model: the model to request.
        api_key: is sent with every request.
        repeats: number of measurements of each point.
        say: is told of each point.
        longest: tokens of the longest prompt; None: until one takes ``LONG_PROMPT_S``, or up to the server's.

    Raises:
        BenchError: the server accepts no token ids, or fails.
        ProfileError: there are too few points.
    """
    try:
        return asyncio.run(_Profiler(endpoint, model, api_key, repeats, say).run(longest))
    except RequestFailed as error:
        raise BenchError(f"profiling {endpoint.base_url}: {error}") from error


class _Profiler:
    def __init__(
        self, endpoint: Endpoint, model: str, api_key: str | None, repeats: int, say: Callable[[str], None]
    ) -> None:
        self._endpoint, self._model, self._repeats, self._say = endpoint, model, repeats, say
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._clock = time.perf_counter  # noqa: TID251 - this command measures
        self._random = random.Random(uuid.uuid4().hex)  # every prompt is new, so that none is in the server's cache
        self._client: StreamingClient

    async def run(self, longest: int | None) -> Profile:
        pool = self._endpoint.kv_capacity or KvPool()
        kv_tokens = pool.tokens or 2**20
        limit = min(self._endpoint.max_model_len or 32768, kv_tokens - 2 * (pool.block_size or 16))
        async with open_session(self._endpoint.base_url) as session:
            self._client = StreamingClient(session, self._clock, REQUEST_LIMIT_S)
            await self._send(self._ids(256), 8)  # the first request warms the server up
            prefill, cached = await self._prompts(min(limit - 1, longest or limit), to_the_end=longest is not None)
            grid = decode_grid(limit, kv_tokens)
            decode = [await self._decode(batch, context) for batch, context in grid]
        return make_profile(
            source=f"{self._endpoint.base_url}, vLLM {self._endpoint.vllm_version or 'or another server'}",
            model=self._model,
            created=utc_now(),
            prefill=prefill,
            decode=decode,
            request=cached,
            kv_tokens=pool.tokens,
            block_size=pool.block_size,
            notes=("times to the first token include the request's own latency, which is the constant c",),
        )

    async def _prompts(self, longest: int, to_the_end: bool) -> tuple[list[PrefillPoint], list[RequestPoint]]:
        """Measure prompts of up to ``longest`` tokens: new ones, and the same again from the server's prefix cache."""
        prefill: list[PrefillPoint] = []
        cached: list[RequestPoint | None] = []
        for length in lengths_up_to(longest):
            prompts = [self._ids(length) for _ in range(self._repeats)]
            prefill.append(await self._prefill(prompts))
            cached.append(await self._cached(prompts[0]))
            if prefill[-1].seconds > LONG_PROMPT_S and not to_the_end and len(prefill) >= LEAST_POINTS:
                self._say(f"prompts of more than {length} tokens are not measured; --longest-prompt N measures to N")
                break
        points = [point for point in cached if point is not None]
        if len(points) < LEAST_POINTS:
            self._say(
                "what a request costs besides its steps is not known: the server says of no prompt that it is cached"
            )
        return prefill, points

    async def _prefill(self, prompts: Sequence[Sequence[int]]) -> PrefillPoint:
        times: list[float] = []
        for prompt in prompts:
            times.append((await self._first_token(prompt))[0])
            if times[0] > LONG_PROMPT_S:
                break
        seconds, length = statistics.median(times), len(prompts[0])
        self._say(f"prefill of {length} tokens: {seconds * 1e3:.1f} ms")
        return PrefillPoint(length, seconds)

    async def _cached(self, prompt: Sequence[int]) -> RequestPoint | None:
        """Measure a prompt that was just computed; None: the server does not say that it is in the prefix cache."""
        sent = [await self._first_token(prompt) for _ in range(max(self._repeats, CACHED_ROUNDS))]
        cached_tokens = min(reply.cached_tokens or 0 for _, reply in sent)
        if cached_tokens < CACHED_SHARE * len(prompt):
            return None
        seconds = statistics.median(seconds for seconds, _ in sent)
        self._say(f"the same from the cache: {seconds * 1e3:.1f} ms")
        return RequestPoint(len(prompt), cached_tokens, seconds)

    async def _first_token(self, prompt: Sequence[int]) -> tuple[float, StreamedAnswer]:
        """Send a prompt, and return the seconds to its first token."""
        start_s = self._clock()
        reply = await self._send(prompt, 1)
        return (reply.first_token_s or reply.finish_s) - start_s, reply

    async def _decode(self, batch: int, context: int) -> DecodePoint:
        """Measure a decode step as the difference between batches with long and with short answers.

        Streamed chunks are not timed, because a busy server may send several at once. All prompts are put into the
        prefix cache first, so that the requests start together and only decode.
        """
        prompts = [self._ids(context) for _ in range(batch)]
        await self._together(prompts, 1)
        short: list[float] = []
        long: list[float] = []
        for _ in range(DECODE_ROUNDS):
            short += [await self._together(prompts, 1) for _ in range(self._repeats)]
            long += [await self._together(prompts, DECODE_TOKENS) for _ in range(self._repeats)]
            seconds = (statistics.median(long) - statistics.median(short)) / (DECODE_TOKENS - 1)
            if seconds > 0:
                break
        else:
            raise BenchError(
                f"profiling {self._endpoint.base_url}: {DECODE_TOKENS} tokens took no longer than one; the server "
                "is busy with something else, try again when it is not"
            )
        self._say(f"decode of {counted(batch, 'request')} at {context} tokens: {seconds * 1e3:.2f} ms a step")
        return DecodePoint(batch, context + DECODE_TOKENS // 2, seconds)

    async def _together(self, prompts: Sequence[Sequence[int]], output: int) -> float:
        """Send all prompts at once, and return the seconds until all are answered."""
        start_s = self._clock()
        await asyncio.gather(*(self._send(prompt, output) for prompt in prompts))
        return self._clock() - start_s

    async def _send(self, prompt: Sequence[int], output: int) -> StreamedAnswer:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": output,
            "min_tokens": output,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        return await self._client.post(joined(self._endpoint.base_url, "/completions"), body, self._headers)

    def _ids(self, count: int) -> list[int]:
        return self._random.choices(range(LOWEST_ID, HIGHEST_ID), k=count)


def lengths_up_to(limit: int) -> list[int]:
    """Return 1024, 2048, 4096 ... and the limit; the lengths begin at 128 if the limit is below 4096."""
    first = 1024 if limit >= 4096 else 128
    lengths = []
    while first < limit:
        lengths.append(first)
        first *= 2
    return [*lengths, limit]


def decode_grid(limit: int, kv_tokens: int) -> list[tuple[int, int]]:
    """Return the batch sizes and context lengths to measure, each pair at most half of the KV pool. If fewer than four
    pairs of the usual grid fit, or pairs of one context only, a grid of smaller values is used."""
    smaller = (BATCHES, (limit // 16, limit // 4)), ((1, 2, 4, 8), (limit // 16, limit // 4))
    for batches, contexts in ((BATCHES, DECODE_CONTEXTS), *smaller):
        grid = [
            (batch, context)
            for context in contexts
            for batch in batches
            if batch * (context + DECODE_TOKENS) < kv_tokens // 2 and 0 < context < limit - DECODE_TOKENS
        ]
        if len(grid) >= MIN_DECODE_POINTS and len({context for _, context in grid}) > 1:
            return grid
    raise BenchError(f"the server is too small to profile: {kv_tokens} tokens of KV cache, {limit} tokens in a request")
