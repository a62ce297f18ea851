"""One broken answer must not shift what comes after it: a real server's record and its client's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from continuum_analysis.metrics import RunMetrics, analyze_run
from continuum_traces.jsonl import write_programs
from continuum_traces.run_dir import read_events, read_turns
from continuum_traces.schema import Program, ToolCall, Turn
from live_server import BLOCK, Live
from small_replays import replay, run_of

pytestmark = pytest.mark.slow

LONG = 300
"""Tokens of an answer that takes two seconds: it is cut off long before its end."""


class Breaking:
    """A proxy that breaks answers.

    Args:
        url: of the server.
        fates: the program and turn id's number of answers that end after their first piece, each once.
    """

    def __init__(self, url: str, fates: set[tuple[str, str]]) -> None:
        self._server = url
        self._fates = fates
        self.url = ""
        self.stop: Any = None

    async def run(self, started: threading.Event) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self.stop = lambda: loop.call_soon_threadsafe(stop.set)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._forward)
        async with aiohttp.ClientSession() as self._session:
            runner = web.AppRunner(application, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
            started.set()
            await stop.wait()
            await runner.cleanup()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        own = {"host", "content-length", "transfer-encoding", "accept-encoding", "connection"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in own}
        number = request.headers.get("X-Turn-ID", "").partition("-")[0]
        fate = (request.headers.get("X-Session-ID", ""), number)
        sent = self._session.request(
            request.method, self._server + request.path_qs, data=await request.read(), headers=headers
        )
        async with sent as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
                if fate in self._fates:
                    self._fates.remove(fate)
                    assert request.transport is not None
                    request.transport.abort()
                    break
            return response


@contextmanager
def breaking(server: Live, fates: set[tuple[str, str]]) -> Iterator[str]:
    proxy, started = Breaking(server.server.url, fates), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(proxy.run(started)), daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield f"{proxy.url}/v1"
    finally:
        proxy.stop()
        thread.join(60)
    assert not fates, "an answer was to be broken and was never asked for"


def bubble_by_hand(folder: Path) -> float:
    """Every request's first wait, from the bare events."""
    events = list(read_events(folder))
    arrived_s = {event.request_id: event.t for event in events if event.event == "arrive"}
    return sum(event.t - arrived_s[event.request_id] for event in events if event.event == "start")


def whole_blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def joined_prompts(run: RunMetrics) -> dict[str, list[tuple[int, int, int | None]]]:
    """By program: attempts, the prompt by the server's record, the prompt by the client's that was joined to it."""
    return {
        program.program_id: [(t.attempts, t.prompt_tokens, t.client and t.client.prompt_tokens) for t in program.turns]
        for program in run.facts.machine
    }


def test_a_replay_in_which_streams_break(server: Live, tmp_path: Path) -> None:
    call = (ToolCall("ls", 0.05),)
    turns = (Turn(100, LONG, tool_calls=call), Turn(200, LONG, tool_calls=call), Turn(50, 5))
    programs = [Program(f"replayed{i}", turns) for i in range(2)]
    trace, out = tmp_path / "trace.jsonl.gz", tmp_path / "out"
    write_programs(trace, programs)
    with breaking(server, {("replayed0", "0"), ("replayed1", "1")}) as url:
        done = replay(trace, url, out, "--scheduler-records", server.record, "--dialect", "vllm")
    assert done.exit_code == 0, done.output
    folder = run_of(out)
    assert sorted(r.failed_tries for r in read_turns(folder)) == [(), (), (), (), ("stream",), ("stream",)]
    run = analyze_run(folder)

    prompts = programs[0].prompt_tokens()
    assert prompts == [100, 600, 950]
    assert joined_prompts(run) == {
        "replayed0": [(2, 100, 100), (1, 600, 600), (1, 950, 950)],
        "replayed1": [(1, 100, 100), (2, 600, 600), (1, 950, 950)],
    }
    assert (run.values["programs_finished"], run.values["turns_failed"]) == (2, 0)
    assert run.values["bubble_mean_s"] == pytest.approx(bubble_by_hand(folder) / 2)
    # What was there before, in whole blocks. A second try finds its own prompt, but for the last token's block. Of an
    # answer the last token is never computed: the second prompt of replayed0 finds 399 tokens of the 400 before it.
    ideal = [[whole_blocks(99), whole_blocks(400), whole_blocks(900)], [0, whole_blocks(599), whole_blocks(900)]]
    found = [[whole_blocks(99), whole_blocks(399), whole_blocks(899)], [0, whole_blocks(599), whole_blocks(899)]]
    by_name = sorted(run.facts.programs, key=lambda program: program.program_id)
    assert [[turn.hit_tokens for turn in program.turns] for program in by_name] == found
    assert run.values["prefix_hit_ratio"] == pytest.approx(sum(map(sum, found)) / (2 * sum(prompts)))
    assert run.values["prefix_hit_ratio_ideal"] == pytest.approx(sum(map(sum, ideal)) / (2 * sum(prompts)))
    assert run.values["returns_missed_share"] == 0.0
    assert [back.cause for back in run.facts.returns] == ["pinned"] * 4
    assert run.values["jct_max_s"] > 0.5  # the wait before the second try is in it, and in no queue wait
    assert all(r.turn_id and r.turn_id.startswith(f"{r.turn}-") for r in read_turns(folder))
