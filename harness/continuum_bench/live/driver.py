"""The load generator. Programs arrive as planned. Each plays its turns one after another, with pauses for its tools.

Latency is measured from the instant at which a turn was due, not from the instant at which it was sent. A delay of the
generator is therefore not mistaken for a faster server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import aiohttp
from continuum_traces.playing.closed_loop import ClosedLoop, Lanes
from continuum_traces.playing.conversation import Conversation, Ended, Send, Wait, converse, go_on
from continuum_traces.playing.sub_programs import SubPrograms
from continuum_traces.schema import ArrivalRecord, TurnRecord
from continuum_traces.wire.urls import joined, root_of

from continuum_bench.live.contexts import SentTexts, SentTokens, TokenRates
from continuum_bench.live.http import RequestFailed, StreamedAnswer, StreamingClient, open_session, post
from continuum_bench.live.load_settings import LivePlay, LoadCounters, LoadOptions
from continuum_bench.live.timers import Timers
from continuum_client.tagging import merged_body, tag_body, tag_headers

MAX_RETRY_AFTER_S = 600.0
EXACT_LENGTHS = ("vllm", "sglang")
"""Dialects whose servers accept ``ignore_eos`` and ``min_tokens`` in chat requests, and count tokens in each chunk if
asked."""


Sink = Callable[[ArrivalRecord | TurnRecord], None]
"""Receives each record of a run as soon as it is complete."""


@dataclass(slots=True)
class _UnderWay:
    """The state of a program that is being played."""

    play: LivePlay
    context: SentTokens | SentTexts
    conversation: Conversation[StreamedAnswer]
    prompt_tokens: list[int]
    """The prompt lengths of the trace, by turn."""
    sent_s: float | None = None
    """The instant at which the current turn was sent; None between turns."""
    failed_tries: tuple[str, ...] = ()
    """Kinds of the errors of the current turn's failed tries."""
    reply: StreamedAnswer | None = None
    """What came of the answer to the current try; None between tries and turns."""


class LoadDriver:
    """Plays programs against one endpoint.

    Args:
        options: server and settings.
        sink: receives a record when a program arrives and when a turn ends.
        clock: returns seconds.
    """

    def __init__(self, options: LoadOptions, sink: Sink, clock: Callable[[], float]) -> None:
        self._options = options
        self._sink = sink
        self._clock = clock
        self._zero_s = 0.0
        self.counters = LoadCounters()
        self._url = options.base_url
        self._session: aiohttp.ClientSession
        self._client: StreamingClient
        self._tasks: asyncio.TaskGroup
        self._closed: ClosedLoop[LivePlay] | None
        self._sub_programs: SubPrograms[LivePlay]
        self._abandoned: list[str] = []
        self._rates = TokenRates()
        self._timers: Timers

    def now_s(self) -> float:
        return self._clock() - self._zero_s

    async def run(self, plays: Sequence[LivePlay], lanes: Lanes | None, zero_s: float) -> None:
        """Play all programs. If cancelled (Ctrl-C), record the turns that have no answer yet as unfinished.

        Args:
            plays: the programs in order of arrival. With ``lanes`` their arrival times are ignored.
            lanes: a closed loop; None: programs arrive at their arrival times.
            zero_s: the clock's value at instant 0 of the run.
        """
        self._zero_s = zero_s
        async with open_session(self._url) as session:
            self._session = session
            self._client = StreamingClient(
                session, self.now_s, self._options.request_limit_s, self._options.token_times
            )
            try:
                async with asyncio.timeout(self._options.time_limit_s):
                    await self._run(plays, lanes)
            except TimeoutError:
                if self.counters.programs_stopped:
                    self.counters.errors["time-limit"] += self.counters.programs_stopped
            finally:
                await asyncio.gather(*(self._release(program_id) for program_id in self._abandoned))

    async def _run(self, plays: Sequence[LivePlay], lanes: Lanes | None) -> None:
        """Play all programs. The first error ends the run and is raised."""
        self._timers = Timers(self.now_s, self._options.max_idle_all_s)
        self._sub_programs = SubPrograms((play, play.job) for play in plays)
        roots = self._sub_programs.roots
        self._closed = None if lanes is None else ClosedLoop(roots, lanes)
        starts = [(each, each.job.arrival_s) for each in roots]
        if self._closed is not None:
            starts = self._closed.begin(self.now_s())
        reader = asyncio.create_task(self._client.read_along())
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._timers.begin()
                self._start(starts)
        except ExceptionGroup as errors:  # noqa: F821 - Python 3.11, as asyncio.TaskGroup
            raise errors.exceptions[0] from None
        finally:
            self.counters.skipped_s += self._timers.skipped_s
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _start(self, starts: Sequence[tuple[LivePlay, float]]) -> None:
        """Start these programs, each at its time. In a closed loop further ones follow when a root, and all that it
        started, have ended."""

        async def play_and_start(play: LivePlay, due_s: float) -> None:
            await self._play(play, due_s)
            if self._sub_programs.ended(play.job.program_id) and self._closed is not None:
                self._start(self._closed.ended(self.now_s()))

        for start in starts:
            self._tasks.create_task(play_and_start(*start))

    # ------------------------------------------------------------------------------------- one program

    async def _play(self, play: LivePlay, due_s: float) -> None:
        due_s, job = await self._timers.until(due_s), play.job
        self._sink(ArrivalRecord(job.program_id, play.number, due_s, job.counted, job.program.started_by))
        under_way = self._begin(play, due_s)
        try:
            async with asyncio.timeout(self._options.program_limit_s):
                done = await self._converse(under_way)
        except TimeoutError:
            self.counters.errors["program-limit"] += 1
            limit_s = self._options.program_limit_s
            self._cut_short(under_way, self.now_s(), f"program-limit: the program took over {limit_s:g} s")
            done = False
        except asyncio.CancelledError:
            self.counters.programs_stopped += 1
            self._abandoned.append(play.job.program_id)
            if under_way.sent_s is not None:
                self._cut_short(under_way, None, "stopped: the run ended")
            raise
        if done:
            self.counters.programs_done += 1
        else:
            self.counters.programs_failed += 1
            await self._release(play.job.program_id)

    def _begin(self, play: LivePlay, due_s: float) -> _UnderWay:
        salt, job = self._options.salt, play.job
        exact, names = self._options.prompts == "tokens", (f"{salt}/{play.number}", salt)
        context = SentTokens(job.program, *names) if exact else SentTexts(job.program, *names, self._rates)
        conversation = converse(
            job.program,
            job.program_id,
            due_s,
            context,
            lambda index: f"{index}-{play.number}-{salt[:8]}",  # every run against a server has turn ids of its own
            exact,
            job.hints,
            job.sends,
            lambda: self._timers.skipped_s,
        )
        return _UnderWay(play, context, conversation, job.program.prompt_tokens())

    async def _converse(self, under_way: _UnderWay) -> bool:
        """Carry out the actions of the program's conversation. Returns False if a turn got no answer."""
        result: Ended[StreamedAnswer] | None = None
        while (action := go_on(under_way.conversation, result, self._sink)) is not None:
            if isinstance(action, Wait):
                await self._timers.until(action.until_s)
                result = None
            else:
                with self._timers.open_request():
                    result = await self._send(under_way, action)
                if result.finish_s is not None and result.error is None:
                    program_id = under_way.play.job.program_id
                    self._start(self._sub_programs.started(program_id, action.index, result.finish_s))
        return result is None or result.error is None

    def _cut_short(self, under_way: _UnderWay, finish_s: float | None, error: str) -> None:
        """Record a failure of the program's current turn, or of its next turn if none was sent."""
        sent_s = self.now_s() if under_way.sent_s is None else under_way.sent_s
        first_token_s = None if under_way.reply is None else under_way.reply.first_token_s
        failed: Ended[StreamedAnswer] = Ended(
            sent_s, finish_s, error=error, first_token_s=first_token_s, failed_tries=under_way.failed_tries
        )
        go_on(under_way.conversation, failed, self._sink)

    async def _send(self, under_way: _UnderWay, send: Send) -> Ended[StreamedAnswer]:
        content = under_way.context.body(send.turn)
        sent_s = under_way.sent_s = self.now_s()
        try:
            reply = await self._request(under_way, send, content)
        except RequestFailed as error:
            reason = self._without_key(str(error))
            return Ended(sent_s, self.now_s(), error=reason, failed_tries=under_way.failed_tries)
        self.counters.count(reply, under_way.prompt_tokens[send.index], send.turn.output_tokens)
        gaps = reply.gaps_ms()
        self.counters.unplaced_turns += self._options.token_times and gaps is None
        answered = Ended(
            sent_s=sent_s,
            finish_s=reply.finish_s,
            answer=reply,
            first_token_s=reply.first_token_s,
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens or (send.turn.output_tokens if under_way.context.exact_lengths else None),
            cached_tokens=reply.cached_tokens,
            failed_tries=under_way.failed_tries,
            token_gaps_ms=gaps,
        )
        under_way.sent_s, under_way.failed_tries, under_way.reply = None, (), None
        return answered

    async def _request(self, under_way: _UnderWay, send: Send, content: dict[str, Any]) -> StreamedAnswer:
        """Send the request of one turn. A failed try is repeated with the same ids if that may help."""
        options, path = self._options, under_way.context.path
        counts = {"include_usage": True}
        if options.token_times and options.dialect.name in EXACT_LENGTHS:
            counts["continuous_usage_stats"] = True
        body = {"model": options.model, "stream": True, "stream_options": counts, **content}
        body = _lengths(body, options.dialect.name)
        headers = {"Content-Type": "application/json", **tag_headers(send.tags), **self._authorization()}
        untagged = under_way.play.job.sends == "none"
        if not untagged:
            body = merged_body(body, tag_body(send.tags, options.dialect, path, body.get("max_tokens")), ())
        chance = Random(f"{options.salt}/{under_way.play.number}/{send.index}")
        url = joined(self._url, path)
        for attempt in range(options.retries + 1):
            self.counters.requests += 1
            if untagged:  # names no program; the record is joined by it
                headers["X-Request-Id"] = f"{send.turn_id}-{attempt}"
            try:
                under_way.reply = self._client.reply()
                return await self._client.post(url, body, headers, under_way.reply)
            except RequestFailed as error:
                self.counters.errors[error.kind] += 1
                self.counters.short_answers += error.missing > 0
                self.counters.missing_tokens += error.missing
                under_way.failed_tries += (error.kind,)
                under_way.reply = None
                if not error.again or attempt == options.retries:
                    raise
                self.counters.retries += 1
                await asyncio.sleep(
                    pause_s(attempt, options.backoff_s, error.retry_after_s) * chance.uniform(1.0, 1.25)
                )
        raise AssertionError("unreachable")

    def _authorization(self) -> dict[str, str]:
        key = self._options.api_key
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    def _without_key(self, text: str) -> str:
        """Remove the API key from a message: some servers quote a key that they refuse."""
        key = self._options.api_key
        return text if key is None else text.replace(key, "***")

    async def _release(self, program_id: str) -> None:
        """Ask the server to release the program's KV cache. Errors are only counted."""
        release = self._options.dialect.release(program_id) if self._options.release else None
        if release is None:
            return
        url, limit = root_of(self._url) + release.path, aiohttp.ClientTimeout(total=5.0)
        try:
            headers = self._authorization()
            async with await post(self._session, url, json=release.body, headers=headers, timeout=limit) as response:
                await response.read()
        except (aiohttp.ClientError, TimeoutError):
            self.counters.errors["release"] += 1


def pause_s(attempt: int, backoff_s: float, asked_s: float | None) -> float:
    """Return the seconds to wait at least after a failed try.

    The pause doubles with each try. It is longer if the server asks for more, but a server gets ten minutes at most.

    Args:
        attempt: number of the failed try; the first one has number 0.
        backoff_s: the pause after the first try.
        asked_s: what the server asks for (``Retry-After``); None: it asks for nothing.

    >>> pause_s(2, 0.5, None), pause_s(2, 0.5, 3.0)
    (2.0, 3.0)
    """
    return max(min(asked_s or 0.0, MAX_RETRY_AFTER_S), backoff_s * 2.0**attempt)


def _lengths(body: dict[str, Any], dialect: str) -> dict[str, Any]:
    """Set the answer's length as the dialect allows: the exact length if possible, for OpenAI its newer field."""
    if "messages" not in body:
        return body
    if dialect in EXACT_LENGTHS:
        return {**body, "min_tokens": body["max_tokens"], "ignore_eos": True}
    if dialect == "openai":
        return {("max_completion_tokens" if name == "max_tokens" else name): value for name, value in body.items()}
    return body
