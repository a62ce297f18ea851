"""The virtual engine's front door: a configuration, a policy, jobs in; a run directory out.

What is real: vLLM's scheduler, KV cache manager and prefix cache, the plugin. What is modelled: how long a GPU
step takes (``step_times``) and the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from continuum_traces.conversation import Job
from continuum_traces.run_dir import ENGINE, EVENTS, SCHEDULER_TIME, TURNS, JsonLines, write_json

from continuum_server.policy.program_table import Guards
from continuum_server.policy.tool_statistics import merge_statistics
from continuum_server.step_times.curves import fit_prefill
from continuum_server.step_times.model import StepTimes
from continuum_server.virtual.config import EngineConfig, EngineError, EngineShape, decode_of, shape_of, times_of
from continuum_server.virtual.loop import Counters, Progress, VirtualLoop, plays_of
from continuum_server.virtual.oracle import ForeseeingScheduler, show_future
from continuum_server.virtual.replicas import ReplicaLoops, ReplicaSink
from continuum_server.virtual.routers import ROUTERS
from continuum_server.virtual.scheduler_time import facts_of
from continuum_server.virtual.vllm_setup import build_scheduler
from continuum_server.vllm_plugin.scheduler import EventSink
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
    """Play the jobs under the policy and write scheduler_timestamps.jsonl, turns.jsonl, scheduler_time.json and
    engine.json into ``out``.

    A policy that learns also leaves tool_statistics.json, from which another run may start. With several replicas the
    records are of all, events with the replica's number, statistics merged.

    Deterministic: equal arguments write equal bytes (``seed`` is recorded; nothing here draws from it), but for
    scheduler_time.json, which is measured.

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
        swap_token_s=shape.swap_token_s,
        deep_token_s=shape.ssd_token_s,
        tier_tokens=shape.tier_tokens,
        decode=decode_of(config, times),
    )
    max_stretch = 512 if config.event_skipping else 1
    with JsonLines(out / EVENTS, flush_every=512) as events, JsonLines(out / TURNS, flush_every=512) as turns:

        def replica(own_jobs: Sequence[Job], sink: EventSink) -> _Replica:
            scheduler: Any = build_scheduler(shape, settings, ForeseeingScheduler)
            show_future(scheduler, jobs, times)
            loop = VirtualLoop(scheduler, times, own_jobs, turns.write, max_stretch)
            scheduler.attach(loop.clock, sink)
            loop.transfers = _transfers(scheduler, shape, loop)
            return _Replica(scheduler, loop)

        if config.replicas == 1:
            replicas = [replica(jobs, events)]
            replicas[0].loop.run(on_progress)
            facts = replicas[0].facts()
        else:
            replicas = [replica((), ReplicaSink(index, events)) for index in range(config.replicas)]
            facts = _run_behind_router(config, replicas, times, jobs, on_progress)
        leaked = sum(one.close() for one in replicas)
    if leaked:
        raise EngineError(f"{leaked} KV blocks leaked under policy {policy!r}: a bug, please report it")
    learned = [found for one in replicas if (found := one.scheduler.table.policy.export_statistics())]
    if learned:
        write_json(out / FILE, learned[0] if len(replicas) == 1 else merge_statistics(learned))
    write_json(out / SCHEDULER_TIME, facts_of(one.loop.scheduler_time for one in replicas))
    write_json(out / ENGINE, {**facts, "seed": seed, "blocks_leaked": leaked})


class _Replica:
    """A scheduler, its loop, and the blocks it must give back."""

    def __init__(self, scheduler: Any, loop: VirtualLoop) -> None:
        self.scheduler = scheduler
        self.loop = loop
        self._pool = scheduler.kv_cache_manager.block_pool
        self._free_at_start = self._pool.get_num_free_blocks()

    def facts(self) -> dict[str, Any]:
        """Its part of engine.json."""
        transfers = self.loop.transfers
        return {
            **asdict(self.loop.counters),
            "virtual_s": self.loop.now_s,
            "transfers": transfers.facts() if transfers is not None else None,
        }

    def close(self) -> int:
        """Let go of what is held; the number of blocks that did not come back."""
        self.scheduler.release_all("shutdown")
        return int(self._free_at_start - self._pool.get_num_free_blocks())


def _run_behind_router(
    config: EngineConfig,
    replicas: Sequence[_Replica],
    times: StepTimes,
    jobs: Sequence[Job],
    on_progress: Callable[[Progress], None] | None,
) -> dict[str, Any]:
    """Play the jobs on all of them; what engine.json says of it."""
    loops = [one.loop for one in replicas]
    least_step_s = 0.5 * times.step_s((), 1, 1)  # half: measured tables need not be monotonic
    driver = ReplicaLoops(
        loops, ROUTERS[config.router](), plays_of(jobs, config.block_size), least_step_s, config.replica_death
    )
    driver.run(on_progress)
    sums = {field.name: sum(getattr(loop.counters, field.name) for loop in loops) for field in fields(Counters)}
    return {
        **sums,
        "virtual_s": driver.now_s,
        "turns_sent_again": driver.sent_again,
        "replicas": [one.facts() for one in replicas],
    }


def _transfers(scheduler: Any, shape: EngineShape, loop: VirtualLoop) -> Any:
    if shape.offload is None:
        return None
    from continuum_server.virtual.vllm_offload import transfers_of  # noqa: PLC0415 - older vLLM lacks parts of it

    return transfers_of(scheduler, shape, loop.clock)


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
