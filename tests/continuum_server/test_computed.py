"""Engine cpu, which computes: stock vLLM and ``working-set`` serve the same programs from a small pool. No time
is asserted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from bench_cli import succeeded
from continuum_server.server_config import STOCK
from continuum_server.step_times.profile import DecodePoint, PrefillPoint, make_profile, write_profile
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import read_turns
from continuum_traces.schema import Program, SchedulerEvent, ToolCall, Turn, TurnRecord
from live_server import Live, live, tokens

pytestmark = pytest.mark.slow

PROGRAMS, BLOCKS, BLOCK = 8, 140, 32
TURNS = (*[Turn(320, 24, tool_calls=(ToolCall("ls", 0.1),))] * 4, Turn(64, 8))


def play(server: Live, folder: Path) -> dict[tuple[str, int], TurnRecord]:
    """Play the programs, which arrive together. All finish, and the pool is whole at the end."""
    write_programs(trace := folder / "trace.jsonl", [Program(f"p{i}", TURNS) for i in range(PROGRAMS)])
    url, out = f"{server.server.url}/v1", folder / "run"
    succeeded("replay --arrivals constant --jps 50 --no-report", trace, "--base-url", url, "--out", out)
    (row,) = json.loads((out / "summary.json").read_text())["policies"].values()
    assert (row["programs"], row["programs_finished"], row["programs_failed"]) == (PROGRAMS, PROGRAMS, 0)
    (run,) = {file.parent for file in out.rglob("turns.jsonl")}
    turns = {(turn.program_id, turn.turn): turn for turn in read_turns(run)}
    assert len(turns) == PROGRAMS * len(TURNS)
    assert all(turn.output_tokens == TURNS[number].output_tokens for (_, number), turn in turns.items())
    whole_pool = server.complete(tokens((BLOCKS - 1) * BLOCK - 8, seed=1))  # vLLM keeps one block
    assert whole_pool.usage.completion_tokens == 8, "a block is lost"
    return turns


def cached(turns: Mapping[tuple[str, int], TurnRecord]) -> int:
    return sum(turn.cached_tokens or 0 for turn in turns.values())


def of_the_record(server: Live) -> dict[tuple[str, int], tuple[SchedulerEvent, SchedulerEvent]]:
    """The start and the finish of each turn, by its program and number."""
    events = [event for i in range(PROGRAMS) for event in server.events(f"p{i}", "finish")]
    starts: dict[tuple[str, int], SchedulerEvent] = {}
    for event in events:
        if event.event == "start":
            starts.setdefault((event.program_id, event.turn), event)  # a preempted turn starts again
    return {
        (event.program_id, event.turn): (starts[event.program_id, event.turn], event)
        for event in events
        if event.event == "finish"
    }


def slow_prefill(path: Path) -> Path:
    """A made-up profile, in which a prompt takes twenty times as long as the model needs here. Real pins last about as
    long as the tool, and a busy client returns after them; with this profile they outlast it."""
    prompts = [PrefillPoint(tokens, tokens / 500) for tokens in (256, 512, 1024)]
    steps = [DecodePoint(requests, 512, 0.01) for requests in (1, 4, 16)]
    write_profile(path, make_profile("made up", "any", "", prompts, steps))
    return path


def test_what_is_cached_is_what_the_record_says(tmp_path: Path) -> None:
    """The pool holds about three whole programs. ``working-set`` reuses more than stock vLLM."""
    turns = {}
    profile = slow_prefill(tmp_path / "profile.json")
    for policy in (STOCK, "working-set"):
        (folder := tmp_path / policy).mkdir()
        given = {} if policy == STOCK else {"profile": profile}
        with live(folder, engine="cpu", policy=policy, kv_blocks=BLOCKS, chunk_tokens=256, **given) as server:
            turns[policy] = play(server, folder)
            if policy != STOCK:
                assert server.state()["free_blocks"] == BLOCKS - 1
                recorded = of_the_record(server)
    reusable = sum(turn.reusable_tokens or 0 for turn in turns[STOCK].values())
    assert 0 < cached(turns[STOCK]) < cached(turns["working-set"]) <= reusable
    assert set(recorded) == set(turns["working-set"])
    for key, (start, finish) in recorded.items():
        turn = turns["working-set"][key]
        assert (start.hit_tokens, start.prompt_tokens) == (turn.cached_tokens, turn.prompt_tokens)
        assert finish.output_tokens == turn.output_tokens
