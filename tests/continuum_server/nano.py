"""A nano-sized engine: real scheduler, tiny pool, step times of round numbers; and what must hold for every run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from continuum_server.policy.facts import PrefillCurve
from continuum_server.policy.program_table import Guards
from continuum_server.policy.registry import POLICIES
from continuum_server.routers import ROUTERS
from continuum_server.step_times.model import PrefillChunk, Provenance, StepTimes
from continuum_server.step_times.specs import DeltaNet, Model
from continuum_server.step_times.speculation import Speculation
from continuum_server.virtual import loop
from continuum_server.virtual.config import EngineShape
from continuum_server.virtual.engine import build_engine
from continuum_server.virtual.loop import VirtualLoop
from continuum_server.virtual.offload import Offload, Tier
from continuum_server.virtual.oracle import ForeseeingScheduler
from continuum_server.virtual.replicas import ReplicaLoops
from continuum_server.virtual.token_times import TokenTimes
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.request_tags import CLIENT_KEY, NAMESPACE_KEY
from continuum_traces.playing.conversation import Job
from continuum_traces.schema import Program, SchedulerEvent, Tags, ToolCall, Turn, TurnRecord
from continuum_traces.wire import tags_to_xargs
from hypothesis import strategies as st

BLOCK_BYTES = 4096
NANO = Model(
    name="nano",
    layers=2,
    hidden=64,
    intermediate=256,
    query_heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=8192,
    max_context_tokens=4096,
)
GROUPED = {
    "gpt-oss": (replace(NANO, layers=4, window_layers=2, window_tokens=24), 120),
    "gemma-3": (replace(NANO, layers=12, window_layers=10, window_tokens=40), 160),
    "qwen3.6": (replace(NANO, layers=8, state_layers=6, delta=DeltaNet(1, 2, head_dim=16)), 40),
}
"""Small models with several KV cache groups, each with the number of blocks of a small pool. A block of the last model
has 32 tokens, because a state does not fit into a smaller one."""
BITING: dict[str, dict[str, Any]] = {
    **{name: {} for name in POLICIES},
    "autellix": {"first_range_s": 0.1, "first_quantum_s": 0.05, "starvation_ratio": 1.0, "queues": 4},
    "concur": {"interval_s": 0.05, "low": 0.6, "high": 0.7, "hit_low": 0.9},
    "continuum": {"cold_samples": 0},
    "continuum-v1": {"min_samples": 2},
    "oracle-ttl": {"cold_samples": 0},
    "static-ttl": {"ttl_s": 2.0},
    "thunderagent": {"interval_s": 0.3, "buffer_tokens": 8, "patience_s": 5.0},
}
"""Options with which each rule acts often in a run of a few seconds."""
SERVED = sorted(name for name, policy in POLICIES.items() if policy.label != "bound")
QUICK = ("autellix", "continuum", "working-set")
"""One that preempts, one that holds, one that admits: the policies of ``make test``. CI runs all."""


def each_policy(names: Sequence[str] = tuple(sorted(POLICIES))) -> pytest.MarkDecorator:
    """Parametrize a test with these policies."""
    marked = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]
    return pytest.mark.parametrize("policy", marked)


class PlainTimes(StepTimes):
    """10 ms a step, 0.1 ms a prefilled token, 1 us a token of decode context; nothing besides for a request, or so many
    seconds and 10 us a token of its prompt."""

    provenance = Provenance("roofline", "test", "1", "-", "-", "-", 1, 0.0)

    def __init__(self, request_s: float = 0.0) -> None:
        self._request_s = request_s

    def request_s(self, prompt_tokens: int) -> float:
        return self._request_s and self._request_s + 1e-5 * prompt_tokens

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        return 0.01 + 1e-4 * sum(chunk.tokens for chunk in chunks) + 1e-6 * decode_context_tokens


@dataclass
class Played:
    """A finished run and everything it left behind."""

    scheduler: Any
    loop: VirtualLoop
    turns: list[TurnRecord]
    events: list[SchedulerEvent]

    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def of(self, kind: str) -> list[SchedulerEvent]:
        return [event for event in self.events if event.event == kind]


class OneLoop(ReplicaLoops):
    """A single loop, and the jobs that it plays."""

    def __init__(self, loop: VirtualLoop, jobs: Sequence[Job]) -> None:
        super().__init__([loop], ROUTERS["round-robin"](), jobs, least_step_s=0.0)
        self.loop = loop


def build(
    jobs: Sequence[Job],
    policy: str,
    options: dict[str, Any],
    *,
    blocks: int = 64,
    guards: Guards | None = None,
    scheduler_type: Any = ForeseeingScheduler,
    turns: list[TurnRecord] | None = None,
    events: list[SchedulerEvent] | None = None,
    offload: Offload | None = None,
    max_num_seqs: int = 8,
    chunk_tokens: int = 256,
    token_times: bool = False,
    times: StepTimes | None = None,
    model: Model = NANO,
    speculation: Speculation | None = None,
    **limits: Any,
) -> tuple[Any, OneLoop]:
    """A scheduler and its loop with the jobs, nothing run yet. A KV block is 4,096 bytes. ``limits``: of the loop."""
    shape = EngineShape(model, 4096, blocks, 16, max_num_seqs, chunk_tokens, offload=offload, speculation=speculation)
    swap_s = {"swap_token_s": shape.swap_token_s, "deep_token_s": shape.ssd_token_s}
    settings = Settings(policy, options, guards or Guards(), PrefillCurve(0.0, 1e-4, 0.01, "test"), **swap_s)
    sink = SimpleNamespace(write=([] if events is None else events).append)
    seen: list[TurnRecord] = [] if turns is None else turns
    limits = {"max_stretch": 512, "max_calls": 200_000, "speculation": speculation, **limits}
    limits["token_times"] = TokenTimes() if token_times else None
    engine = build_engine(
        shape, times or PlainTimes(), settings, jobs, seen.append, sink, scheduler_type=scheduler_type, **limits
    )
    return engine.scheduler, OneLoop(engine.loop, jobs)


def play(jobs: Sequence[Job], policy: str = "vllm", options: dict[str, Any] | None = None, **rest: Any) -> Played:
    """Play jobs to their end, release what is held, and check that every turn was served and nothing is left."""
    turns: list[TurnRecord] = []
    events: list[SchedulerEvent] = []
    scheduler, loop = build(jobs, policy, options or {}, turns=turns, events=events, **rest)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    loop.run()
    scheduler.release_all("shutdown")
    played = Played(scheduler, loop.loop, turns, events)
    while played.loop.transfers is not None and played.loop.transfers.pending:
        played.loop.advance(lambda: float("inf"))
    assert played.free_blocks() == free, "blocks leaked"
    assert not scheduler.table.pins
    assert scheduler.table.pins.tokens == 0
    assert scheduler.kv_cache_manager.reset_prefix_cache()  # fails while any block is referred to
    assert len(played.of("pin")) == len(played.of("unpin"))
    check_turns(turns, jobs)
    if played.loop.transfers is not None:
        _check_tiers(played)
        if events:  # vLLM's own scheduler writes none
            _check_reloads(played)
    return played


def check_turns(turns: Sequence[TurnRecord], jobs: Sequence[Job]) -> None:
    """Every turn of every program once, in order, each after its gap."""
    for job in jobs:
        own = sorted((t for t in turns if t.program_id == job.program.program_id), key=lambda t: t.turn)
        assert [turn.turn for turn in own] == list(range(len(job.program.turns)))
        assert [turn.output_tokens for turn in own] == [turn.output_tokens for turn in job.program.turns]
        assert [turn.prompt_tokens for turn in own] == job.program.prompt_tokens()
        for before, after in pairwise(own):
            assert after.due_s == before.finish_s + before.gap_s  # type: ignore[operator]
            assert after.sent_s >= after.due_s


def _check_tiers(played: Played) -> None:
    """Nothing is on its way any more, everything held can be evicted, and no tier ever held more than fits."""
    transfers = played.loop.transfers
    assert transfers is not None
    assert transfers.next_s() == float("inf")
    side = played.scheduler.connector.connector_scheduler
    assert not side._jobs
    assert not side._req_status
    dram = getattr(side.manager, "primary_tier", side.manager)
    assert all(chunk.ref_cnt == 0 for chunk in dram._policy.chunks.values())
    assert dram._num_allocated_chunks - len(dram._free_list) == len(dram._policy.chunks) <= dram._num_chunks
    if transfers.ssd is not None:
        assert len(transfers.ssd._held) <= transfers.ssd.capacity
        assert not transfers.ssd._reading
        assert all(transfers.ssd._held.values())


def _check_reloads(played: Played) -> None:
    """Each reload belongs to a turn, which starts (or ends) after it, and finds at least what was brought back."""
    begun: dict[tuple[str, int], Any] = {}
    one_group = len(played.scheduler.kv_cache_config.kv_cache_groups) == 1
    for event in played.events:
        key = event.program_id, event.turn
        if event.event == "reload":
            assert key not in begun
            assert (event.bytes or 0) > 0, "with several groups these are an estimate: a mean over the context"
            assert not one_group or event.bytes == (event.tokens or 0) // 16 * BLOCK_BYTES
            begun[key] = event
        if event.event in ("start", "resume") and key in begun:
            reload = begun.pop(key)
            assert event.t >= reload.t
            assert (event.hit_tokens or 0) + 1 >= (reload.tokens or 0)  # a whole prompt's last token is computed again
    assert not begun
    moved = sum(event.bytes or 0 for event in played.of("reload"))
    assert played.loop.transfers is not None
    assert not one_group or moved == played.loop.transfers.facts()["dram_to_gpu"]["bytes"]


def mean_jct_s(played: Played, kind: str = "") -> float:
    """Mean seconds from a program's first due time to its last end, of the programs whose names begin with ``kind``."""
    first = {turn.program_id: turn.due_s for turn in reversed(played.turns) if turn.program_id.startswith(kind)}
    last = {turn.program_id: turn.finish_s or 0.0 for turn in played.turns}
    return sum(last[name] - first[name] for name in first) / len(first)


# ------------------------------------------------------------------------------------------------- what to play


def program(name: str, turns: int = 3, new: int = 40, output: int = 8, tool_s: float = 0.5) -> Program:
    """A program of equal turns."""
    call = (ToolCall("ls", tool_s),)
    made = tuple(Turn(new, output, tool_calls=call if i < turns - 1 else ()) for i in range(turns))
    return Program(name, made)


@st.composite
def workloads(draw: st.DrawFn, wishes: bool = False) -> list[Job]:
    """Up to eight programs that fit a pool of 64 blocks of 16 tokens.

    Args:
        wishes: some turns ask for a soft hold (``kv_ttl_s``).
    """
    gaps = st.sampled_from([0.0, 0.01, 0.3, 1.0, 5.0, 1e6])
    asked = st.sampled_from([None, 0.5, 20.0] if wishes else [None])
    jobs = []
    for number in range(draw(st.integers(1, 8))):
        turns = []
        for _ in range(draw(st.integers(1, 5))):
            output = draw(st.integers(1, 40))
            carried = draw(st.sampled_from([output, output // 2]))
            calls = (ToolCall(draw(st.sampled_from(["ls", "make"])), draw(gaps)),)
            turns.append(Turn(draw(st.integers(1, 90)), output, carried_tokens=carried, tool_calls=calls))
        hints = tuple(Tags(kv_ttl_s=draw(asked)) for _ in turns)
        jobs.append(Job(Program(f"p{number}", tuple(turns)), draw(st.floats(0, 3)), hints=hints))
    return jobs


def tier(blocks: float, blocks_s: float = 1000.0, latency_s: float = 0.001) -> Tier:
    """A tier of so many blocks, moved so many a second."""
    return Tier(blocks * BLOCK_BYTES / 1e9, blocks_s * BLOCK_BYTES / 1e9, blocks_s * BLOCK_BYTES / 1e9, latency_s)


TIERED = hasattr(importlib.import_module("vllm.v1.kv_offload.base"), "Medium")
"""Whether this vLLM has what the virtual engine needs for ``--offload``; 0.26 has not."""
TIERS = {
    "tiny": Offload(tier(20), tier(60, 300.0)),
    "dram": Offload(tier(400)),
    "both": Offload(tier(60), tier(500, 300.0, 0.01)),
    "chunked": Offload(tier(400), blocks_per_chunk=4),
    "endless": Offload(tier(1e6, 1e12, 0.0)),
}
ANY_TIERS = st.none() | st.sampled_from(sorted(TIERS)).map(TIERS.get) if TIERED else st.none()


@contextmanager
def keyed(key_of: Callable[[str], str | None]) -> Iterator[None]:
    """Requests of the virtual engine have API keys, by the names of their programs."""

    def xargs(tags: Tags) -> dict[str, Any]:
        digest = key_of(str(tags.program_id))
        return {**tags_to_xargs(tags), **({} if digest is None else {CLIENT_KEY: digest, NAMESPACE_KEY: digest})}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "tags_to_xargs", xargs)
        yield
