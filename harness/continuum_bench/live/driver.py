"""The load generator: programs arrive as drawn, each plays its turns in a closed loop, tool gaps are slept.

Latency counts from the instant a turn was due, not from when it was sent: a generator that falls behind shows as
lateness, never as a faster server.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import aiohttp
from continuum_traces.schema import Program, Tags, TurnRecord

from continuum_bench.live.conversation import TextConversation, TokenConversation
from continuum_bench.live.http import Reply, RequestFailed, stream
from continuum_client.dialects import Dialect
from continuum_client.tagging import merged_body, tag_body, tag_headers

Prompts = Literal["tokens", "text"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to play."""

    base_url: str
    """Up to and including /v1."""
    model: str
    dialect: Dialect
    prompts: Prompts = "tokens"
    api_key: str | None = None
    salt: str = ""
    """Part of every fresh token's seed: runs with different salts share no prefix in the server's cache."""
    hints: bool = True
    """Send which tool the trace says comes next (``this_func_call``): a replayed output does not name it."""
    retries: int = 3
    backoff_s: float = 0.5
    request_timeout_s: float = 3600.0
    program_limit_s: float | None = None
    """A program that takes longer is given up and counted as failed."""


@dataclass(slots=True)
class LoadCounters:
    """What the generator did; written to engine.json."""

    requests: int = 0
    retries: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Failed tries by kind, the ones that a retry made good included."""
    lateness_s: list[float] = field(default_factory=list)
    """Sent - due of every turn."""
    programs_done: int = 0
    programs_failed: int = 0


@dataclass(frozen=True, slots=True)
class LivePlay:
    """One program on its way."""

    program: Program
    program_id: str
    arrival_s: float
    number: int


class LoadDriver:
    """Plays programs against one endpoint.

    Args:
        options: where and how.
        on_turn: called with each turn's record as it ends.
        clock: seconds; the run starts at 0.
    """

    def __init__(
        self,
        options: LoadOptions,
        on_turn: Callable[[TurnRecord], None],
        clock: Callable[[], float] = time.perf_counter,  # noqa: TID251 - the default of an injected clock
    ) -> None:
        self._options = options
        self._on_turn = on_turn
        self._raw_clock = clock
        self._start_s = clock()
        self.counters = LoadCounters()
        self._url = options.base_url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    def now_s(self) -> float:
        return self._raw_clock() - self._start_s

    async def run(self, plays: Sequence[LivePlay]) -> None:
        """Play everything. Cancelling it (Ctrl-C) leaves what was recorded as it is."""
        timeout = aiohttp.ClientTimeout(total=self._options.request_timeout_s, sock_connect=30.0)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=600.0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=2**20) as session:
            self._session = session
            self._start_s = self._raw_clock()
            async with asyncio.TaskGroup() as group:
                for play in plays:
                    group.create_task(self._play(play))

    async def _play(self, play: LivePlay) -> None:
        await self._sleep_until(play.arrival_s)
        try:
            async with asyncio.timeout(self._options.program_limit_s):
                done = await self._turns(play)
        except TimeoutError:
            self.counters.errors["program-limit"] += 1
            done = False
        if done:
            self.counters.programs_done += 1
        else:
            self.counters.programs_failed += 1

    async def _turns(self, play: LivePlay) -> bool:
        options, program = self._options, play.program
        kind = TokenConversation if options.prompts == "tokens" else TextConversation
        conversation = kind(program, f"{options.salt}/{play.number}", options.salt)
        due_s, reusable = play.arrival_s, program.reusable_tokens()
        for index, turn in enumerate(program.turns):
            await self._sleep_until(due_s)
            sent_s = self.now_s()
            self.counters.lateness_s.append(sent_s - due_s)
            record = TurnRecord(play.program_id, index, due_s, sent_s, is_last=index == len(program.turns) - 1)
            if options.prompts == "tokens":  # text has other lengths than the trace
                record = replace(record, reusable_tokens=reusable[index])
            try:
                reply = await self._request(play, index, conversation.path, conversation.body(index))
            except RequestFailed as error:
                self._on_turn(replace(record, finish_s=self.now_s(), error=str(error)))
                return False
            conversation.answered(index, reply.answer)
            if isinstance(conversation, TextConversation) and reply.prompt_tokens:
                conversation.measured(index, reply.prompt_tokens)
            self._on_turn(_ended(record, reply, turn, options.prompts))
            due_s = reply.finish_s + turn.gap_s
        return True

    async def _request(self, play: LivePlay, index: int, path: str, content: dict[str, Any]) -> Reply:
        """One turn's request, tried again with the same ids where that may help."""
        options = self._options
        body = {"model": options.model, "stream": True, "stream_options": {"include_usage": True}, **content}
        tags = self._tags(play, index)
        body = merged_body(body, tag_body(tags, options.dialect, path), ())
        headers = {"Content-Type": "application/json", **tag_headers(tags)}
        if options.api_key is not None:
            headers["Authorization"] = f"Bearer {options.api_key}"
        assert self._session is not None
        for attempt in range(options.retries + 1):
            self.counters.requests += 1
            try:
                return await stream(self._session, self._url + path, body, headers, self.now_s)
            except RequestFailed as error:
                self.counters.errors[error.kind] += 1
                if not error.again or attempt == options.retries:
                    raise
                self.counters.retries += 1
                await asyncio.sleep(options.backoff_s * 2**attempt)
        raise AssertionError("unreachable")

    def _tags(self, play: LivePlay, index: int) -> Tags:
        turn = play.program.turns[index]
        slowest = max(turn.tool_calls, key=lambda call: call.start_s + (call.duration_s or 0.0), default=None)
        return Tags(
            program_id=play.program_id,
            is_last_step=index == len(play.program.turns) - 1,
            this_func_call=slowest.name if slowest is not None and self._options.hints else None,
            parent_id=play.program.parent_id,
        )

    async def _sleep_until(self, instant_s: float) -> None:
        """To within the event loop's resolution: a timer for most of it, then short ones."""
        while (remaining := instant_s - self.now_s()) > 0:
            await asyncio.sleep(remaining)


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
