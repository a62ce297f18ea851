"""One broken answer must not shift what comes after it: a real server, its record, and each kind of client's record."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from aiohttp import web
from continuum_analysis.metrics import RunMetrics, analyze_run
from continuum_traces.jsonl import write_programs
from continuum_traces.run_dir import EVENTS, read_events, read_turns, write_manifest, write_rows
from continuum_traces.schema import Engine, Manifest, Program, SchedulerEvent, ToolCall, Turn
from live_server import BLOCK, Live, tokens
from small_replays import replay, run_of

from continuum_client import OpenAI

pytestmark = pytest.mark.slow

LONG = 300
"""Tokens of an answer that takes two seconds: it is cut off long before its end."""


class Breaking:
    """A proxy that breaks answers.

    Args:
        url: of the server.
        fates: by program and turn id's number: ``broken`` after the first piece, or ``lost`` whole. Once each.
    """

    def __init__(self, url: str, fates: dict[tuple[str, str], str]) -> None:
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
        fate = self._fates.pop((request.headers.get("X-Session-ID", ""), number), None)
        sent = self._session.request(
            request.method, self._server + request.path_qs, data=await request.read(), headers=headers
        )
        async with sent as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            if fate == "lost":
                await answer.read()
                return _gone(request)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
                if fate == "broken":
                    return _gone(request)
            return response


def _gone(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@contextmanager
def breaking(server: Live, fates: dict[tuple[str, str], str]) -> Iterator[str]:
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


def add_server_record(folder: Path, events: list[SchedulerEvent]) -> None:
    """The server's events beside a client's record, and how large its blocks are."""
    write_rows(folder / EVENTS, events)
    write_manifest(folder, Manifest(engine_options=Engine(block_size=BLOCK)))


def bubble_by_hand(folder: Path, program_id: str) -> float:
    """Every request's first wait, from the bare events."""
    events = [event for event in read_events(folder) if event.program_id == program_id]
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
    with breaking(server, {("replayed0", "0"): "broken", ("replayed1", "1"): "broken"}) as url:
        done = replay(trace, url, out, "--scheduler-records", server.record, "--dialect", "vllm")
    assert done.exit_code == 0, done.output
    folder = run_of(out)
    assert sorted(r.failed_tries for r in read_turns(folder)) == [(), (), (), (), ("stream",), ("stream",)]
    run = analyze_run(folder)

    prompts = programs[0].prompt_tokens()
    assert prompts == [100, 600, 950]
    tries = {"replayed0": (2, 1, 1), "replayed1": (1, 2, 1)}
    assert joined_prompts(run) == {
        name: [(tried, prompt, prompt) for tried, prompt in zip(tried_of, prompts, strict=True)]
        for name, tried_of in tries.items()
    }
    assert run.values["programs_finished"] == 2
    assert run.values["turns_failed"] == 0
    assert run.values["bubble_mean_s"] == pytest.approx(sum(bubble_by_hand(folder, name) for name in tries) / 2)
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


def test_an_agent_whose_answers_are_lost_or_break(server: Live, tmp_path: Path) -> None:
    """openai's own retry is the same turn; a call that the agent itself makes again is another one."""
    prompt = tokens(300, 7)
    with breaking(server, {("agent", "0"): "lost", ("agent", "1"): "broken"}) as url:
        client = OpenAI(base_url=url, api_key="EMPTY", dialect="vllm", record=tmp_path)

        def ask(length: int, **more: Any) -> Any:
            body = {"model": server.model, "prompt": prompt[:length], "extra_body": {"ignore_eos": True}}
            return client.completions.create(**body, **more)

        with client.program("agent"):
            ask(100, max_tokens=4)
            with pytest.raises((openai.APIError, httpx.HTTPError)):
                list(ask(200, max_tokens=LONG, stream=True))
            assert server.wait_for(lambda: any(e.status == "abort" for e in server.events("agent")))
            ask(200, max_tokens=4)
            ask(300, max_tokens=4)
    assert server.wait_for(lambda: sum(event.event == "finish" for event in server.events("agent")) == 5)
    add_server_record(tmp_path, server.events("agent"))
    run = analyze_run(tmp_path)
    assert joined_prompts(run) == {"agent": [(2, 100, 100), (1, 200, None), (1, 200, 200), (1, 300, 300)]}
    (program,) = run.facts.programs
    assert [bool(turn.client and turn.client.error) for turn in program.turns] == [False, True, False, False]
    assert run.values["turns_failed"] == 1
    assert run.values["bubble_mean_s"] == pytest.approx(bubble_by_hand(tmp_path, "agent"))
    hits = [whole_blocks(99), whole_blocks(100), whole_blocks(199), whole_blocks(200)]
    assert [turn.hit_tokens for turn in program.turns] == hits
    assert run.values["prefix_hit_ratio_ideal"] == pytest.approx(sum(hits) / 800)
    assert run.values["returns_missed_share"] == 0.0
