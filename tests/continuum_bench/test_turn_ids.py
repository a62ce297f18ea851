"""One broken answer must not shift what comes after it: a real server's record and its client's."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from continuum_analysis.metrics import RunMetrics, analyze_run
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_turns
from continuum_traces.schema import Program, ToolCall, Turn
from fake_server import FakeServer, Handler, hang_up, streaming
from live_server import BLOCK, Live
from small_replays import replay, run_of

pytestmark = pytest.mark.slow

LONG = 300
"""Tokens of an answer that takes two seconds: it is cut off long before its end."""


def breaking(server: Live, breaks: set[tuple[str, str]]) -> Handler:
    """Passes requests on to the server. The first answer to each of these programs and turns breaks half-way."""

    async def handler(request: web.Request, number: int) -> web.StreamResponse:
        sent, body = 0, {**await request.json(), "model": server.model}
        ids = {name: value for name, value in request.headers.items() if name.startswith("X-")}
        asked = body["vllm_xargs"]["program_id"], body["vllm_xargs"]["turn_id"].partition("-")[0]
        url = f"{server.server.url}/v1/completions"
        async with aiohttp.ClientSession() as client, client.post(url, json=body, headers=ids) as answer:
            response = await streaming(request)
            async for data in answer.content.iter_any():
                if asked in breaks and sent > 10_000:
                    breaks.remove(asked)
                    return hang_up(request, response)
                await response.write(data)
                sent += len(data)
        return response

    return handler


def whole_blocks(tokens: int) -> int:
    return tokens // BLOCK * BLOCK


def joined_prompts(run: RunMetrics) -> dict[str, list[tuple[int, int, int | None]]]:
    """By program: earlier tries, the prompt by the server's record, the prompt by the client's that was joined."""
    return {
        program.program_id: [
            (len(t.earlier), t.prompt_tokens, t.client and t.client.prompt_tokens) for t in program.turns
        ]
        for program in run.facts.machine
    }


def test_a_replay_in_which_streams_break(server: Live, tmp_path: Path) -> None:
    call = (ToolCall("ls", 0.05),)
    turns = (Turn(100, LONG, tool_calls=call), Turn(200, LONG, tool_calls=call), Turn(50, 5))
    programs = [Program(f"replayed{i}", turns) for i in range(2)]
    # Answers are about 70 kB long.
    trace, out = tmp_path / "trace.jsonl.gz", tmp_path / "out"
    write_programs(trace, programs)
    breaks = {("replayed0", "0"), ("replayed1", "1")}
    with FakeServer("vllm", handler=breaking(server, breaks)) as between:
        done = replay(trace, between.url, out, "--scheduler-records", server.record)
    assert (done.exit_code, breaks) == (0, set()), done.output
    folder = run_of(out)
    assert sorted(r.failed_tries for r in read_turns(folder)) == [(), (), (), (), ("stream",), ("stream",)]
    run = analyze_run(folder)

    prompts = programs[0].prompt_tokens()
    assert prompts == [100, 600, 950]
    assert sorted(joined_prompts(run).values(), reverse=True) == [
        [(1, 100, 100), (0, 600, 600), (0, 950, 950)],
        [(0, 100, 100), (1, 600, 600), (0, 950, 950)],
    ]
    assert (run.values["programs_finished"], run.values["turns_failed"]) == (2, 0)
    # What was there before, in whole blocks. A second try finds its own prompt, but for the last token's block. Of an
    # answer the last token is never computed: after a whole answer the second prompt finds 399 of 400 tokens.
    found = [[whole_blocks(99), whole_blocks(399), whole_blocks(899)], [0, whole_blocks(599), whole_blocks(899)]]
    hits = [[turn.hit_tokens for turn in program.turns] for program in run.facts.programs]
    assert sorted(hits, reverse=True) == found
    assert all(returned.hit for returned in run.facts.returns)
    assert [back.cause for back in run.facts.returns] == ["pinned"] * 4
    assert run.values["jct_max_s"] > 0.5  # the wait before the second try is in it, and in no queue wait
    assert all(r.turn_id and r.turn_id.startswith(f"{r.turn}-") for r in read_turns(folder))
