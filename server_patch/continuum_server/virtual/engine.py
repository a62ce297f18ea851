"""The virtual engine's front door: a configuration, a policy, jobs in; a run directory out.

What is real: vLLM's scheduler, KV cache manager and prefix cache, the plugin. What is modelled: how long a GPU
step takes (``step_times``) and the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from continuum_traces.run_dir import ENGINE, EVENTS, TURNS, JsonLines, write_json

from continuum_server.policy.core import Guards
from continuum_server.virtual.config import EngineConfig, EngineError, EngineShape, fit_prefill, shape_of, times_of
from continuum_server.virtual.loop import Job, Progress, VirtualLoop
from continuum_server.virtual.oracle import ForeseeingScheduler, show_future
from continuum_server.virtual.vllm_offload import transfers_of
from continuum_server.virtual.vllm_setup import build_scheduler
from continuum_server.vllm_plugin.settings import Settings
from continuum_server.vllm_plugin.statistics_files import FILE
from continuum_server.vllm_plugin.touch_points import check_supported

__all__ = ["EngineConfig", "EngineError", "Job", "Progress", "simulate"]


def simulate(
    config: EngineConfig,
    policy: str,
    policy_options: Mapping[str, Any],
    jobs: Sequence[Job],
    seed: int,
    out: Path,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Play the jobs under the policy and write scheduler_timestamps.jsonl, turns.jsonl, engine.json into ``out``.

    A policy that learns also leaves tool_statistics.json, from which another run may start.

    Deterministic: equal arguments write equal bytes (``seed`` is recorded; nothing here draws from it).

    Raises:
        StepTimesError: unknown hardware, or a batch outside what was measured.
        PolicyError: unknown policy or option.
        EngineError: a program that cannot fit, or a run that cannot go on.
    """
    check_supported()
    shape, times = shape_of(config), times_of(config)
    _check_jobs(jobs, shape)
    settings = Settings(
        policy=policy,
        policy_options=dict(policy_options),
        guards=Guards(
            max_ttl_s=config.max_ttl_s,
            max_pinned_share=config.max_pinned_share,
            pins_yield_to=config.pins_yield_to,  # type: ignore[arg-type]
        ),
        prefill=fit_prefill(times, shape.max_model_len),
    )
    scheduler: Any = build_scheduler(shape, settings, ForeseeingScheduler)
    show_future(scheduler, jobs, times)
    free_at_start = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    with JsonLines(out / EVENTS, flush_every=512) as events, JsonLines(out / TURNS, flush_every=512) as turns:
        loop = VirtualLoop(scheduler, times, jobs, turns.write, max_stretch=512 if config.event_skipping else 1)
        scheduler.attach(loop.clock, events)
        loop.transfers = transfers_of(scheduler, shape, loop.clock)
        loop.run(on_progress)
        scheduler.release_all("shutdown")
    leaked = free_at_start - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    if leaked:
        raise EngineError(f"{leaked} KV blocks leaked under policy {policy!r}: a bug, please report it")
    statistics = scheduler.core.policy.export_statistics()
    if statistics:
        write_json(out / FILE, statistics)
    write_json(
        out / ENGINE,
        {
            **asdict(loop.counters),
            "virtual_s": loop.now_s,
            "seed": seed,
            "blocks_leaked": leaked,
            "transfers": loop.transfers.facts() if loop.transfers is not None else None,
        },
    )


def _check_jobs(jobs: Sequence[Job], shape: EngineShape) -> None:
    """Every turn must fit the model's context and the pool (one block of which vLLM keeps for itself)."""
    pool = (shape.num_blocks - 1) * shape.block_size
    for job in jobs:
        prompts = job.program.prompt_tokens()
        for index, (turn, prompt) in enumerate(zip(job.program.turns, prompts, strict=True)):
            tokens = prompt + turn.output_tokens
            limit = min(shape.max_model_len, pool)
            if tokens > limit:
                what = "the model's context" if limit == shape.max_model_len else "the KV pool"
                raise EngineError(
                    f"program {job.program.program_id!r}, turn {index}: {tokens} tokens do not fit {what} of {limit}"
                )
