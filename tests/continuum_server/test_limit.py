"""``benchmarks/limit.py``: no schedule is below its bounds, on the real scheduler with real step times."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from continuum_server.step_times.model import Batch, PrefillChunk
from continuum_server.step_times.table import TableStepTimes
from continuum_server.virtual.config import EngineConfig, EngineShape, shape_of, times_of
from continuum_server.virtual.engine import build_engine, settings_of
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, ToolCall, Turn, TurnRecord
from hypothesis import given, settings
from hypothesis import strategies as st
from limit import Machine, in_order, limits_of, shortest_first

GPUS = ("h100-80gb", "a100-80gb")
BLOCKS = 1200


@cache
def hardware(gpu: str) -> tuple[EngineConfig, TableStepTimes, EngineShape, Machine]:
    config = EngineConfig(gpu=gpu, kv_blocks=BLOCKS)
    times, shape = times_of(config), shape_of(config)
    assert isinstance(times, TableStepTimes)
    return config, times, shape, Machine(times, shape)


@st.composite
def workloads(draw: st.DrawFn) -> list[Job]:
    """Up to ten programs that arrive within 3 s, with contexts of up to 15,000 tokens in a pool of 19,000."""
    shared = draw(st.sampled_from([0, 0, 500]))
    jobs = []
    for number in range(draw(st.integers(1, 10))):
        new, output, gap_s = st.integers(500, 3000), st.integers(1, 120), st.floats(0, 2)
        turns = [
            Turn(draw(new), draw(output), tool_calls=(ToolCall("ls", draw(gap_s)),))
            for _ in range(draw(st.integers(1, 4)))
        ]
        prefix = {"shared_prefix_id": "s", "shared_prefix_tokens": shared} if shared else {}
        jobs.append(Job(Program(f"p{number}", tuple(turns), **prefix), draw(st.floats(0, 3))))
    return sorted(jobs, key=lambda job: job.arrival_s)


def played(gpu: str, jobs: list[Job], policy: str) -> dict[str, float]:
    config, times, shape, _ = hardware(gpu)
    turns: list[TurnRecord] = []
    engine = build_engine(shape, times, settings_of(config, policy, {}), jobs, turns.append)
    engine.play(jobs)
    ends = {turn.program_id: turn.finish_s or 0.0 for turn in turns}
    jct = float(np.mean([ends[job.program_id] - job.arrival_s for job in jobs]))
    return {"jct": jct, "wall": engine.loop.now_s, "busy": engine.loop.counters.busy_s}


@pytest.mark.parametrize("policy", ["vllm", "working-set", "oracle-working-set"])
@given(gpu=st.sampled_from(GPUS), jobs=workloads())
@settings(max_examples=12)
def test_no_policy_is_below_the_limit(policy: str, gpu: str, jobs: list[Job]) -> None:
    limits = limits_of(jobs, hardware(gpu)[3])
    run = played(gpu, jobs, policy)
    assert run["jct"] >= limits.jct - 1e-6
    assert run["wall"] - jobs[0].arrival_s >= limits.wall - 1e-6
    assert run["busy"] >= limits.work - 1e-6


@pytest.mark.parametrize("gpu", GPUS)
@given(
    contexts=st.lists(st.integers(1, 9000), min_size=1, max_size=40),
    chunks=st.lists(st.tuples(st.integers(1, 900), st.integers(0, 40_000)), max_size=2),
)
def test_no_step_takes_less_than_its_parts(gpu: str, contexts: list[int], chunks: list[tuple[int, int]]) -> None:
    """Any batch that fits the pool: the work of its decodes and chunks, and what each decode takes at least."""
    _, times, _, machine = hardware(gpu)
    while sum(contexts) > machine.pool_tokens:
        contexts = contexts[: len(contexts) // 2]
    batch = Batch([PrefillChunk(*chunk) for chunk in chunks], len(contexts), sum(contexts))
    took_s = batch.step_s(times)
    for line in machine.lines:
        pieces = [machine._decodes(np.array([context]), 0, line) for context in contexts]
        pieces += [machine._prefill(*chunk, line) for chunk in chunks]
        assert sum(work_s for _, work_s in pieces) <= took_s + 1e-9
    assert all(machine._decodes(np.array([context]), 0, machine.lines[0])[0] <= took_s + 1e-9 for context in contexts)


def test_shortest_first_by_hand() -> None:
    """10 s of work at 0; at 2, 3 s of work overtake it; at 4, 20 s come last."""
    assert shortest_first([(0.0, 10.0), (2.0, 3.0), (4.0, 20.0)]) == [5.0, 13.0, 33.0]


def test_the_ideal_engine_keeps_the_order() -> None:
    """Two equal programs in a pool for one: the second waits for the first."""
    machine = hardware("h100-80gb")[3]
    turns = (Turn(15_000, 200, tool_calls=(ToolCall("ls", 0.0),)), Turn(100, 200))
    jobs: list[Any] = [Job(Program(name, turns), arrival_s) for name, arrival_s in (("a", 0.0), ("b", 0.1))]
    (alone,) = in_order(jobs[:1], machine)
    first, second = in_order(jobs, machine)
    assert first == pytest.approx(alone, rel=0.01)
    assert second == pytest.approx(2 * alone, rel=0.01)
