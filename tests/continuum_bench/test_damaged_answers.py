"""A run's table is right, or the run says that it is not: no damaged answer is a success, no good one a failure.

A relay between the load generator and a real vLLM server with a modelled GPU damages answers at random, and notes which
of them were whole.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from fake_server import FakeServer, streaming
from live_server import Live
from small_replays import replay, trace_of, turns_of

pytestmark = pytest.mark.slow

DONE = b"data: [DONE]"
LAST = b'"finish_reason":"length"'
Damage = Callable[[bytes, Random], bytes]


def cut(answer: bytes, chance: Random) -> bytes:
    """At any byte before the reason to stop."""
    return answer[: chance.randrange(answer.index(LAST))]


def reason(answer: bytes, chance: Random) -> bytes:
    return _with_reason(answer, chance.choice(["abort", "error", "content_filter", "timeout"]))


def _with_reason(answer: bytes, reason: str) -> bytes:
    assert LAST in answer
    return answer.replace(LAST, b'"finish_reason":"%s"' % reason.encode())


def short(answer: bytes, chance: Random) -> bytes:
    """Without its first token, which the server does not count either; it says that it had a reason to stop."""
    events = answer.split(b"\n\n")
    counted = _recounted(answer, -1)
    assert counted != answer
    return _with_reason(b"\n\n".join([events[0], *counted.split(b"\n\n")[2:]]), chance.choice(["stop", "length"]))


def miscounted(answer: bytes, chance: Random) -> bytes:
    return _recounted(answer, chance.choice([-1, 1, 7]))


def _recounted(answer: bytes, more: int) -> bytes:
    """The server counts so many output tokens more, in the total too."""
    return re.sub(rb'"(completion|total)_tokens":(\d+)', lambda m: b'"%s_tokens":%d' % (m[1], int(m[2]) + more), answer)


def failed(answer: bytes, chance: Random) -> bytes:
    """An error event between two others, with all that an answer needs after it."""
    events = answer.split(b"\n\n")
    events.insert(chance.randrange(len(events) - 1), b'data: {"error": {"message": "the engine died"}}')
    return b"\n\n".join(events)


def garbled(answer: bytes, chance: Random) -> bytes:
    """One of the events up to the reason to stop. The counts after it are not needed, as the chunks have token ids."""
    events = answer.split(b"\n\n")
    number = chance.randrange(len(events) - 3)
    events[number] = events[number][: len(events[number]) // 2]
    return b"\n\n".join(events)


def same(answer: bytes, chance: Random) -> bytes:
    return answer


DAMAGES: tuple[Damage, ...] = (cut, reason, short, miscounted, failed, garbled)
HARMLESS: tuple[Damage, ...] = (
    same,
    lambda answer, chance: answer.replace(b"\n\n", b"\r\n\r\n"),
    lambda answer, chance: answer.replace(b"\n\n", b"\n\n: keep-alive\n\n"),
    lambda answer, chance: answer.rstrip(b"\n"),
    lambda answer, chance: answer[: answer.index(DONE)],  # the answer's own end decides
    lambda answer, chance: _with_reason(answer, "stop"),  # its length is what was asked for
)


@dataclass
class Relay:
    """Answers with what the server says, damaged for a share of the requests."""

    url: str
    chance: Random
    share: float
    whole: list[str] = field(default_factory=list)
    """Turn ids of the answers that were sent whole, in order."""
    damaged: list[str] = field(default_factory=list)

    async def __call__(self, request: web.Request, _number: int) -> Any:
        body = await request.json()
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}/completions", json=body) as answer:
            raw = await answer.read()
            assert answer.status == 200, raw
        bad, turn = self.chance.random() < self.share, str(body["vllm_xargs"]["turn_id"])
        (self.damaged if bad else self.whole).append(turn)
        if bad and self.chance.random() < 0.1:
            return web.Response(status=self.chance.choice([500, 502, 429]), text="no")
        await asyncio.sleep(self.chance.choice([0.0, 0.0, 0.3]))  # slow headers
        sent = self.chance.choice(DAMAGES if bad else HARMLESS)(raw, self.chance)
        return await self._send(request, sent, bad)

    async def _send(self, request: web.Request, sent: bytes, bad: bool) -> Any:
        response = await streaming(request)
        while sent:
            size = self.chance.choice([1, 7, 50, 10_000])
            await response.write(sent[:size])
            sent = sent[size:]
        if bad and self.chance.random() < 0.3:
            assert request.transport is not None
            request.transport.abort()
        return response


@pytest.mark.parametrize("share", [0.0, 0.15, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_right_or_says_that_it_is_not(server: Live, tmp_path: Path, seed: int, share: float) -> None:
    relay = Relay(f"{server.server.url}/v1", Random(f"{seed} {share}"), share)
    with FakeServer("plugin", handler=relay) as front:
        front.pages["/v1/models"] = 200, {"data": [{"id": server.model, "owned_by": "vllm", "max_model_len": 16_000}]}
        trace, out = trace_of(tmp_path, 6, f"damaged{seed}-{share}-"), tmp_path / "out"
        done = replay(trace, front.url, out, "--retries", 2, "--request-limit-s", 60, "--json")
    turns = turns_of(out)
    answered = [turn for turn in turns if turn.error is None]
    assert sorted(turn.turn_id for turn in answered) == sorted(relay.whole)
    assert sum(len(turn.failed_tries) for turn in turns) == len(relay.damaged)
    assert {turn.output_tokens for turn in answered} <= {20, 10, 5}
    failed_programs = {turn.program_id for turn in turns if turn.error is not None}
    assert done.exit_code == bool(failed_programs), done.output
    if relay.damaged:
        assert f"{len(relay.damaged) - len(failed_programs)} tries again, {len(failed_programs)} programs failed" in (
            done.stderr
        )
