"""One broken answer must not shift what comes after it: a real server's record and its client's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from continuum_analysis.metrics import RunMetrics, analyze_run
from continuum_traces.jsonl import write_programs
from continuum_traces.run_dir import read_events, read_turns
from continuum_traces.schema import Program, ToolCall, Turn
from live_server import BLOCK, Live
from small_replays import replay, run_of

pytestmark = pytest.mark.slow

LONG = 300
"""Tokens of an answer that takes two seconds: it is cut off long before its end."""


@contextmanager
def breaking(server: Live, limits: list[int]) -> Iterator[str]:
    """A proxy. Each limit breaks one connection, the first over which so many bytes of answers have come."""
    started, ended, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()
    port = 0

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, breaks: bool) -> None:
        sent = 0
        while (data := await source.read(2**10)) and not (
            breaks and limits and sent > limits[0] and b"data: {" in data
        ):
            target.write(data)
            await target.drain()
            sent += len(data)
        if data:
            limits.pop(0)
        target.close()

    async def forward(theirs: asyncio.StreamReader, ours: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", server.server.port)
        await asyncio.gather(pump(theirs, requests, False), pump(answers, ours, True), return_exceptions=True)

    async def run() -> None:
        nonlocal port
        async with await asyncio.start_server(forward, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            started.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)
    assert not limits, "an answer was to be broken and never came"


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
    # Answers are about 70 kB long: the first of one program breaks, and the second of the other.
    trace, out = tmp_path / "trace.jsonl.gz", tmp_path / "out"
    write_programs(trace, programs)
    with breaking(server, [10_000, 100_000]) as url:
        done = replay(trace, url, out, "--scheduler-records", server.record, "--dialect", "vllm")
    assert done.exit_code == 0, done.output
    folder = run_of(out)
    assert sorted(r.failed_tries for r in read_turns(folder)) == [(), (), (), (), ("stream",), ("stream",)]
    run = analyze_run(folder)

    prompts = programs[0].prompt_tokens()
    assert prompts == [100, 600, 950]
    assert sorted(joined_prompts(run).values(), reverse=True) == [
        [(2, 100, 100), (1, 600, 600), (1, 950, 950)],
        [(1, 100, 100), (2, 600, 600), (1, 950, 950)],
    ]
    assert (run.values["programs_finished"], run.values["turns_failed"]) == (2, 0)
    assert run.values["bubble_mean_s"] == pytest.approx(bubble_by_hand(folder) / 2)
    # What was there before, in whole blocks. A second try finds its own prompt, but for the last token's block. Of an
    # answer the last token is never computed: after a whole answer the second prompt finds 399 of 400 tokens.
    ideal = [[whole_blocks(99), whole_blocks(400), whole_blocks(900)], [0, whole_blocks(599), whole_blocks(900)]]
    found = [[whole_blocks(99), whole_blocks(399), whole_blocks(899)], [0, whole_blocks(599), whole_blocks(899)]]
    hits = [[turn.hit_tokens for turn in program.turns] for program in run.facts.programs]
    assert sorted(hits, reverse=True) == found
    assert run.values["prefix_hit_ratio"] == pytest.approx(sum(map(sum, found)) / (2 * sum(prompts)))
    assert run.values["prefix_hit_ratio_ideal"] == pytest.approx(sum(map(sum, ideal)) / (2 * sum(prompts)))
    assert run.values["returns_missed_share"] == 0.0
    assert [back.cause for back in run.facts.returns] == ["pinned"] * 4
    assert run.values["jct_max_s"] > 0.5  # the wait before the second try is in it, and in no queue wait
    assert all(r.turn_id and r.turn_id.startswith(f"{r.turn}-") for r in read_turns(folder))
