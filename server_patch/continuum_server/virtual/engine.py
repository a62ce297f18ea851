"""Build and run the virtual engine: play jobs under a policy, and write a run directory.

vLLM's scheduler, KV cache manager and prefix cache, and the plugin, are real. The time of a GPU step (``step_times``)
and the clock are modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from math import inf
from pathlib import Path
from typing import Any

from continuum_traces.json_io import JsonLines, write_json
from continuum_traces.playing.closed_loop import Lanes
from continuum_traces.playing.conversation import Job, skipped_note
from continuum_traces.records import rows_of
from continuum_traces.records.run_dir import ARRIVALS, ENGINE, EVENTS, SCHEDULER_TIME, TURNS
from continuum_traces.schema import TurnRecord
from vllm.v1.core.sched.scheduler import Scheduler

from continuum_server.policy.tool_statistics import merge_statistics
from continuum_server.routers import ROUTERS
from continuum_server.step_times.curves import fit_prefill
from continuum_server.step_times.model import StepTimes
from continuum_server.step_times.overhead import is_asynchronous
from continuum_server.virtual.config import (
    EngineConfig,
    EngineError,
    EngineShape,
    check_programs,
    decode_of,
    shape_of,
    times_of,
)
from continuum_server.virtual.loop import Counters, VirtualClock, VirtualLoop
from continuum_server.virtual.oracle import ForeseeingScheduler, show_future
from continuum_server.virtual.replicas import ReplicaLoops, ReplicaSink
from continuum_server.virtual.scheduler_time import facts_of
from continuum_server.virtual.token_times import TokenTimes
from continuum_server.virtual.vllm_setup import build_scheduler
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.scheduler import Discard, EventSink, ProgramSchedulerMixin
from continuum_server.vllm_plugin.statistics_files import FILE
from continuum_server.vllm_plugin.touch_points import free_block_count
from continuum_server.vllm_plugin.versions import check_version

__all__ = ["EngineConfig", "EngineError", "VirtualEngine", "build_engine", "settings_of", "simulate"]


def simulate(
    config: EngineConfig,
    policy: str,
    policy_options: Mapping[str, Any],
    jobs: Sequence[Job],
    seed: int,
    out: Path,
    on_progress: Callable[[int], None] | None = None,
    token_times: bool = False,
    lanes: Lanes | None = None,
    time_limit_s: float | None = None,
    most_idle_s: float | None = None,
) -> None:
    """Play the jobs under the policy and write scheduler_timestamps.jsonl, turns.jsonl, scheduler_time.json and
    engine.json into ``out``.

    A policy that learns also writes tool_statistics.json, with which another run can start. With several replicas, the
    files contain the records of all replicas: events have the replica's number, and statistics are merged.

    Equal arguments write equal bytes, except in scheduler_time.json, which is measured. ``seed`` is only recorded. With
    ``token_times``, the turns' records contain the gaps between output tokens. With ``lanes`` the jobs start in a
    closed loop, in their order, and their arrival times are ignored. At ``time_limit_s`` the run stops; programs that
    run then stay unfinished. arrivals.jsonl is written if some job may not count or not start. ``most_idle_s`` is as in
    ``ReplicaLoops``.

    Raises:
        StepTimesError: unknown hardware, or a batch outside the measured range.
        PolicyError: an unknown policy or option.
        EngineError: a program does not fit, or the run cannot continue.
        PolicyFailed: a hook of the policy raised an exception.
    """
    check_version()
    shape, times = shape_of(config), times_of(config)
    check_programs((job.program for job in jobs), config, shape)
    settings = settings_of(config, policy, policy_options)
    all_start = lanes is None and time_limit_s is None and all(job.counted for job in jobs)
    with ExitStack() as files:
        events, turns = (files.enter_context(JsonLines(out / name, flush_every=512)) for name in (EVENTS, TURNS))
        arrivals = None if all_start else files.enter_context(JsonLines(out / ARRIVALS, flush_every=512))

        def engine(sink: EventSink) -> VirtualEngine:
            return build_engine(
                shape,
                times,
                settings,
                jobs,
                turns.write,
                sink,
                on_arrival=lambda play: None if arrivals is None else arrivals.write(play.arrival),
                admits_late=config.vllm is not None and is_asynchronous(config.vllm),
                token_times=TokenTimes() if token_times else None,
                speculation=config.speculation,
            )

        alone = config.replicas == 1
        engines = [engine(events if alone else ReplicaSink(index, events)) for index in range(config.replicas)]
        limits = [inf if limit is None else limit for limit in (time_limit_s, most_idle_s)]
        facts, skipped_s = _play(config, engines, times, jobs, lanes, limits, on_progress)
        leaked = sum(one.close() for one in engines)
    if leaked:
        raise EngineError(f"{leaked} KV blocks leaked under policy {policy!r}: a bug, please report it")
    learned = [statistics for one in engines if (statistics := one.scheduler.table.policy.export_statistics())]
    if learned:
        write_json(out / FILE, learned[0] if len(engines) == 1 else merge_statistics(learned))
    write_json(out / SCHEDULER_TIME, facts_of(one.loop.scheduler_time for one in engines))
    notes = [*times.notes(), *skipped_note(skipped_s)]
    said = {"notes": notes} if notes else {}
    write_json(out / ENGINE, {**facts, **said, "seed": seed, "blocks_leaked": leaked, **rows_of(out)})


def settings_of(config: EngineConfig, policy: str, policy_options: Mapping[str, Any]) -> Settings:
    """Return the plugin's settings for this engine."""
    shape, times = shape_of(config), times_of(config)
    return Settings(
        policy=policy,
        policy_options=dict(policy_options),
        guards=config.guards,
        recognise=config.recognise,
        prefill=fit_prefill(times, shape.max_model_len),
        swap_token_s=shape.swap_token_s,
        deep_token_s=shape.ssd_token_s,
        decode=decode_of(config, times),
    )


def build_engine(
    shape: EngineShape,
    times: StepTimes,
    settings: Settings,
    jobs: Sequence[Job] = (),
    on_turn: Callable[[TurnRecord], None] = lambda record: None,
    sink: EventSink | None = None,
    *,
    scheduler_type: type[Scheduler] = ForeseeingScheduler,
    **of_loop: Any,
) -> VirtualEngine:
    """Build an engine, to which nothing is delivered yet.

    Args:
        shape: model and memory.
        times: the modelled times of steps.
        settings: policy and its limits.
        jobs: the programs whose future a bound knows.
        on_turn: called with each finished turn's record.
        sink: receives the scheduler's events; None: they are dropped.
        scheduler_type: a bound needs ``ForeseeingScheduler``. vLLM's own ``Scheduler`` runs without the plugin.
        of_loop: further arguments of ``VirtualLoop``.
    """
    scheduler: Any = build_scheduler(shape, settings, scheduler_type)
    clock = VirtualClock()
    if shape.offload is not None:
        from continuum_server.virtual.vllm_offload import Transfers  # noqa: PLC0415 - older vLLM lacks parts of it

        of_loop["transfers"] = Transfers(scheduler, shape.offload, shape.gpus, shape.layout.block_bytes, clock)
    loop = VirtualLoop(scheduler, times, clock, on_turn, **of_loop)
    if isinstance(scheduler, ProgramSchedulerMixin):
        scheduler.attach(clock, sink or Discard(), loop.output_tool)
        show_future(scheduler, jobs, times)
    return VirtualEngine(scheduler, loop)


class VirtualEngine:
    """A scheduler and the loop that plays programs against it."""

    def __init__(self, scheduler: Any, loop: VirtualLoop) -> None:
        self.scheduler = scheduler
        self.loop = loop
        self._free_at_start = free_block_count(scheduler)

    def facts(self) -> dict[str, Any]:
        """Return this engine's part of engine.json."""
        transfers, plugin = self.loop.transfers, isinstance(self.scheduler, ProgramSchedulerMixin)
        return {
            **asdict(self.loop.counters),
            "virtual_s": self.loop.now_s,
            "programs_fitting": self.scheduler.table.fitting.programs if plugin else None,
            "transfers": transfers.facts() if transfers is not None else None,
        }

    def play(self, jobs: Sequence[Job]) -> None:
        """Play these jobs alone on this engine, to their end."""
        ReplicaLoops([self.loop], ROUTERS["round-robin"](), jobs, least_step_s=0.0).run()

    def close(self) -> int:
        """Abort what runs and release all pins. Return the number of blocks that are missing in the pool afterwards."""
        self.loop.stop()
        self.scheduler.release_all("shutdown")
        return self._free_at_start - free_block_count(self.scheduler)


def _play(
    config: EngineConfig,
    engines: Sequence[VirtualEngine],
    times: StepTimes,
    jobs: Sequence[Job],
    lanes: Lanes | None,
    limits: Sequence[float],
    on_progress: Callable[[int], None] | None,
) -> tuple[dict[str, Any], float]:
    """Play the jobs on all engines. ``limits`` are the last arguments of ``ReplicaLoops``.

    Returns:
        the content of engine.json, and the idle seconds that were skipped.
    """
    loops = [engine.loop for engine in engines]
    least_step_s = 0.5 * times.step_s((), 1, 1)  # half, because measured tables need not be monotonic
    if config.speculation is not None:
        least_step_s /= config.speculation.drafts + 1
    driver = ReplicaLoops(loops, ROUTERS[config.router](), jobs, least_step_s, lanes, *limits)
    driver.run(on_progress)
    if len(engines) == 1:
        return engines[0].facts(), driver.skipped_s
    sums = {field.name: sum(getattr(loop.counters, field.name) for loop in loops) for field in fields(Counters)}
    facts = {**sums, "virtual_s": driver.now_s, "replicas": [engine.facts() for engine in engines]}
    return facts, driver.skipped_s
