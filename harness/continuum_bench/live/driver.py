"""The load generator: programs arrive as planned, each plays its turns in a closed loop, tool gaps are slept.

Latency counts from the instant a turn was due, not from when it was sent: a generator that falls behind shows as
lateness, never as a faster server.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

import aiohttp
from continuum_traces.schema import ArrivalRecord, Tags, TurnRecord

from continuum_bench.live.conversation import TextConversation, TokenConversation
from continuum_bench.live.http import READ_BUFFER, Reply, RequestFailed, StreamingClient
from continuum_bench.live.load import Lanes, LivePlay, LoadCounters, LoadOptions, Prompts
from continuum_client.tagging import merged_body, tag_body, tag_headers

KEEPALIVE_S = 4.0
"""Idle connections are dropped before the server drops them (uvicorn, and so vLLM and SGLang: after 5 s)."""

PROBE_S = 0.02
"""The event loop is asked this often whether it keeps up."""

MAX_RETRY_AFTER_S = 600.0
EXACT_LENGTHS = ("vllm", "sglang")
"""Dialects whose servers take ``ignore_eos`` and ``min_tokens`` in chat requests too."""


class Sink(Protocol):
    """Where records go, as they come."""

    def arrived(self, record: ArrivalRecord) -> None: ...

    def turn(self, record: TurnRecord) -> None: ...


@dataclass(slots=True)
class _UnderWay:
    """A program being played; ``turn`` while a request is out."""

    play: LivePlay
    due_s: float
    index: int = 0
    turn: TurnRecord | None = None
    failed_tries: tuple[str, ...] = ()


class LoadDriver:
    """Plays programs against one endpoint.

    Args:
        options: where and how.
        sink: gets each program's arrival and each turn's end.
        clock: seconds.
    """

    def __init__(
        self,
        options: LoadOptions,
        sink: Sink,
        clock: Callable[[], float] = time.perf_counter,  # noqa: TID251 - the default of an injected clock
    ) -> None:
        self._options = options
        self._sink = sink
        self._clock = clock
        self._zero_s = clock()
        self.counters = LoadCounters()
        self._url = options.base_url.rstrip("/")
        self._session: aiohttp.ClientSession
        self._client: StreamingClient
        self._abandoned: list[str] = []

    def now_s(self) -> float:
        return self._clock() - self._zero_s

    async def run(self, plays: Sequence[LivePlay], lanes: Lanes | None = None, zero_s: float | None = None) -> None:
        """Play everything. Cancelling it (Ctrl-C) records what was under way as unfinished.

        Args:
            plays: in order of arrival; with ``lanes`` their arrival times do not count.
            lanes: None where programs arrive by themselves.
            zero_s: the clock's reading at the run's instant 0; None: now.
        """
        with _no_collection():
            await self._connected(plays, lanes, zero_s)

    async def _connected(self, plays: Sequence[LivePlay], lanes: Lanes | None, zero_s: float | None) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30.0)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
        session = aiohttp.ClientSession(
            timeout=timeout, connector=connector, read_bufsize=READ_BUFFER, cookie_jar=aiohttp.DummyCookieJar()
        )
        async with session:
            self._session = session
            self._client = StreamingClient(session, self.now_s, self._options.request_limit_s)
            await asyncio.gather(*(self._release(play.program_id) for play in plays if play.again))
            self._zero_s = self._clock() if zero_s is None else zero_s
            try:
                async with asyncio.timeout(self._options.time_limit_s):
                    await self._run(plays, lanes)
            except TimeoutError:
                if self.counters.programs_stopped:
                    self.counters.errors["time-limit"] += self.counters.programs_stopped
            finally:
                await asyncio.gather(*(self._release(program_id) for program_id in self._abandoned))

    async def _run(self, plays: Sequence[LivePlay], lanes: Lanes | None) -> None:
        """The first error ends everything and comes out."""
        if lanes is None:
            played = [self._play(play, play.arrival_s) for play in plays]
        else:
            waiting, start_s = iter(plays), max(0.0, self.now_s())
            step_s = lanes.ramp_s / lanes.number
            played = [self._lane(waiting, start_s + lane * step_s) for lane in range(lanes.number)]
        along = [asyncio.create_task(one) for one in (self._probe(), self._client.read_along())]
        tasks = [asyncio.create_task(one) for one in played]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in (*along, *tasks):
                task.cancel()
            await asyncio.gather(*along, *tasks, return_exceptions=True)

    async def _lane(self, waiting: Iterator[LivePlay], first_s: float) -> None:
        """One place among the concurrent programs; all lanes take from one line."""
        await self._sleep_until(first_s)
        due_s = first_s
        for play in waiting:
            await self._play(play, due_s)
            due_s = self.now_s()

    async def _probe(self) -> None:
        while True:
            before_s = self.now_s()
            await asyncio.sleep(PROBE_S)
            self.counters.loop_lag_s.append(self.now_s() - before_s - PROBE_S)

    # ------------------------------------------------------------------------------------- one program

    async def _play(self, play: LivePlay, due_s: float) -> None:
        await self._sleep_until(due_s)
        self._sink.arrived(ArrivalRecord(play.program_id, play.number, due_s, play.counted))
        under_way = _UnderWay(play, due_s)
        try:
            async with asyncio.timeout(self._options.program_limit_s):
                done = await self._turns(under_way)
        except TimeoutError:
            self._give_up(under_way)
            done = False
        except asyncio.CancelledError:
            self._stop(under_way)
            raise
        if done:
            self.counters.programs_done += 1
        else:
            self.counters.programs_failed += 1
            await self._release(play.program_id)

    def _give_up(self, under_way: _UnderWay) -> None:
        """The program took too long: its turn failed, or, between turns, the next one was never sent."""
        self.counters.errors["program-limit"] += 1
        now_s = self.now_s()
        record = under_way.turn or self._begun(under_way, now_s)
        error = f"program-limit: the program took over {self._options.program_limit_s:g} s"
        self._sink.turn(replace(record, finish_s=now_s, error=error, failed_tries=under_way.failed_tries))

    def _stop(self, under_way: _UnderWay) -> None:
        """The run ends here: a turn that is out has no end."""
        self.counters.programs_stopped += 1
        self._abandoned.append(under_way.play.program_id)
        if under_way.turn is not None:
            tries = under_way.failed_tries
            self._sink.turn(replace(under_way.turn, error="stopped: the run ended", failed_tries=tries))

    async def _turns(self, under_way: _UnderWay) -> bool:
        options, play = self._options, under_way.play
        program, last = play.program, len(play.program.turns) - 1
        kind = TokenConversation if options.prompts == "tokens" else TextConversation
        conversation = kind(program, f"{options.salt}/{play.number}", options.salt)
        due_s, reusable = under_way.due_s, program.reusable_tokens()
        for index, turn in enumerate(program.turns):
            under_way.index = index
            await self._sleep_until(due_s)
            content = conversation.body(index)
            record = replace(self._begun(under_way, due_s), is_last=index == last)
            if options.prompts == "tokens":  # text has other lengths than the trace
                record = replace(record, reusable_tokens=reusable[index])
            under_way.turn, under_way.failed_tries = record, ()
            try:
                reply = await self._request(under_way, conversation.path, content)
            except RequestFailed as error:
                text = self._without_key(str(error))
                tries = under_way.failed_tries
                self._sink.turn(replace(record, finish_s=self.now_s(), error=text, failed_tries=tries))
                return False
            under_way.turn = None
            conversation.answered(index, reply.answer)
            if isinstance(conversation, TextConversation) and reply.prompt_tokens:
                conversation.measured(index, reply.prompt_tokens)
            ended = _ended(record, reply, turn, options.prompts)
            self._sink.turn(replace(ended, failed_tries=under_way.failed_tries))
            due_s = reply.finish_s + turn.gap_s
        return True

    async def _request(self, under_way: _UnderWay, path: str, content: dict[str, Any]) -> Reply:
        """One turn's request, tried again with the same ids where that may help."""
        options, play, index = self._options, under_way.play, under_way.index
        body = {"model": options.model, "stream": True, "stream_options": {"include_usage": True}, **content}
        body = _lengths(body, options.dialect.name)
        tags = self._tags(play, index)
        body = merged_body(body, tag_body(tags, options.dialect, path, body.get("max_tokens")), ())
        headers = {"Content-Type": "application/json", **tag_headers(tags), **self._authorization()}
        chance = Random(f"{options.salt}/{play.number}/{index}")
        url = self._url + path
        for attempt in range(options.retries + 1):
            self.counters.requests += 1
            try:
                return await self._client.post(url, body, headers)
            except RequestFailed as error:
                self.counters.errors[error.kind] += 1
                under_way.failed_tries += (error.kind,)
                if not error.again or attempt == options.retries:
                    raise
                self.counters.retries += 1
                asked_s = min(error.retry_after_s or 0.0, MAX_RETRY_AFTER_S)
                backoff_s = max(asked_s, options.backoff_s * 2**attempt)
                await asyncio.sleep(backoff_s * chance.uniform(1.0, 1.25))
        raise AssertionError("unreachable")

    def _authorization(self) -> dict[str, str]:
        key = self._options.api_key
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def _without_key(self, text: str) -> str:
        """Some servers repeat the key they refuse."""
        key = self._options.api_key
        return text if key is None else text.replace(key, "***")

    async def _release(self, program_id: str) -> None:
        """Best effort: a server that is gone holds nothing either."""
        release = self._options.dialect.release(program_id) if self._options.release else None
        if release is None:
            return
        url, limit = self._url.removesuffix("/v1") + release.path, aiohttp.ClientTimeout(total=5.0)
        try:
            headers = self._authorization()
            async with self._session.post(url, json=release.body, headers=headers, timeout=limit) as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError):
            self.counters.errors["release"] += 1

    def _tags(self, play: LivePlay, index: int) -> Tags:
        turn = play.program.turns[index]
        slowest = max(turn.tool_calls, key=lambda call: call.start_s + (call.duration_s or 0.0), default=None)
        return Tags(
            program_id=play.program_id,
            is_last_step=index == len(play.program.turns) - 1,
            this_func_call=slowest.name if slowest is not None and self._options.hints else None,
            parent_id=play.program.parent_id,
            turn_id=self._turn_id(index),
        )

    def _begun(self, under_way: _UnderWay, due_s: float) -> TurnRecord:
        """The record of the program's present turn, as it is now."""
        program_id, index = under_way.play.program_id, under_way.index
        return TurnRecord(program_id, index, due_s, self.now_s(), turn_id=self._turn_id(index))

    def _turn_id(self, index: int) -> str:
        """Equal for every try of a turn; another run against the same server has others."""
        return f"{index}-{self._options.salt[:8]}"

    async def _sleep_until(self, instant_s: float) -> None:
        """Never early, and late by the event loop's resolution: timers may fire up to a millisecond early."""
        while (remaining := instant_s - self.now_s()) > 0:
            await asyncio.sleep(max(remaining, 0.001))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the garbage collector: walking thousands of programs stops the event loop for 100 ms at a time, and a
    request leaves no cycles behind (14,400 requests left none)."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _lengths(body: dict[str, Any], dialect: str) -> dict[str, Any]:
    """The answer's length as the server takes it: exact where it can be, under OpenAI's newer name there."""
    if "messages" not in body:
        return body
    if dialect in EXACT_LENGTHS:
        return {**body, "min_tokens": body["max_tokens"], "ignore_eos": True}
    if dialect == "openai":
        return {("max_completion_tokens" if name == "max_tokens" else name): value for name, value in body.items()}
    return body


def _ended(record: TurnRecord, reply: Reply, turn: Any, prompts: Prompts) -> TurnRecord:
    return replace(
        record,
        first_token_s=reply.first_token_s,
        finish_s=reply.finish_s,
        prompt_tokens=reply.prompt_tokens,
        output_tokens=reply.output_tokens or (turn.output_tokens if prompts == "tokens" else None),
        cached_tokens=reply.cached_tokens,
        tools=tuple(call.name for call in turn.tool_calls),
        gap_s=None if record.is_last else turn.gap_s,
    )
