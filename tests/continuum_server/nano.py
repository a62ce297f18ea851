"""A nano-sized engine: real scheduler, tiny pool, step times of round numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from continuum_server.policy.facts import PrefillCurve
from continuum_server.policy.program_table import Guards
from continuum_server.step_times.model import PrefillChunk, Provenance
from continuum_server.virtual.config import EngineShape
from continuum_server.virtual.engine import build_engine
from continuum_server.virtual.loop import VirtualLoop
from continuum_server.virtual.offload import Offload
from continuum_server.virtual.oracle import ForeseeingScheduler
from continuum_server.virtual.token_times import TokenTimes
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_traces.conversation import Job
from continuum_traces.schema import Program, SchedulerEvent, ToolCall, Turn, TurnRecord


class PlainTimes:
    """10 ms a step, 0.1 ms a prefilled token, 1 us a token of decode context."""

    provenance = Provenance("roofline", "test", "1", "-", "-", "-", 1, 0.0)

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        return 0.01 + 1e-4 * sum(chunk.tokens for chunk in chunks) + 1e-6 * decode_context_tokens

    def decode_stretch_s(self, decodes: int, decode_context_tokens: int, steps: int) -> list[float]:
        return [self.step_s((), decodes, decode_context_tokens + i * decodes) for i in range(steps)]

    def prefill_s(self, tokens: int, prefix_tokens: int = 0) -> float:
        return self.step_s((PrefillChunk(tokens, prefix_tokens),), 0, 0)


class Played:
    """A finished run and everything it left behind."""

    def __init__(
        self, scheduler: Any, loop: VirtualLoop, turns: list[TurnRecord], events: list[SchedulerEvent]
    ) -> None:
        self.scheduler, self.loop, self.turns, self.events = scheduler, loop, turns, events

    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def of(self, kind: str) -> list[SchedulerEvent]:
        return [event for event in self.events if event.event == kind]


def build(
    jobs: Sequence[Job],
    policy: str,
    options: dict[str, Any],
    *,
    blocks: int = 64,
    guards: Guards | None = None,
    max_stretch: int = 512,
    scheduler_type: Any = ForeseeingScheduler,
    turns: list[TurnRecord] | None = None,
    events: list[SchedulerEvent] | None = None,
    max_calls: int = 200_000,
    offload: Offload | None = None,
    max_num_seqs: int = 8,
    chunk_tokens: int = 256,
    token_times: bool = False,
) -> tuple[Any, VirtualLoop]:
    """A scheduler and its loop, nothing run yet. A KV block is 4,096 bytes."""
    shape = EngineShape(2, 2, 16, 64, 4, 4096, blocks, 16, max_num_seqs, chunk_tokens, offload=offload)
    settings = Settings(
        policy,
        options,
        guards or Guards(),
        PrefillCurve(0.0, 1e-4, 0.01, "test"),
        swap_token_s=shape.swap_token_s,
        deep_token_s=shape.ssd_token_s,
    )

    class Sink:
        def write(self, event: SchedulerEvent, /) -> None:
            if events is not None:
                events.append(event)

    seen: list[TurnRecord] = [] if turns is None else turns
    limits = {"max_stretch": max_stretch, "max_calls": max_calls}
    engine = build_engine(
        shape, PlainTimes(), settings, jobs, seen.append, Sink(), scheduler_type=scheduler_type, **limits
    )
    engine.loop.token_times = TokenTimes() if token_times else None
    return engine.scheduler, engine.loop


def play(jobs: Sequence[Job], policy: str = "vllm", options: dict[str, Any] | None = None, **rest: Any) -> Played:
    """Play jobs to their end, release what is held, and check that nothing is left."""
    turns: list[TurnRecord] = []
    events: list[SchedulerEvent] = []
    scheduler, loop = build(jobs, policy, options or {}, turns=turns, events=events, **rest)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    loop.run()
    scheduler.release_all("shutdown")
    while loop.transfers is not None and loop.transfers.pending:
        loop.advance()
    played = Played(scheduler, loop, turns, events)
    assert played.free_blocks() == free, "blocks leaked"
    assert not scheduler.table.pins
    assert scheduler.table.pinned_tokens == 0
    assert scheduler.kv_cache_manager.reset_prefix_cache()  # fails while any block is referred to
    return played


def program(name: str, turns: int = 3, new: int = 40, output: int = 8, tool_s: float = 0.5) -> Program:
    """A program of equal turns."""
    call = (ToolCall("ls", tool_s),)
    made = tuple(Turn(new, output, tool_calls=call if i < turns - 1 else ()) for i in range(turns))
    return Program(name, made)
