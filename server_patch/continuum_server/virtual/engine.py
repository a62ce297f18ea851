"""The virtual engine's front door: a configuration, a policy, jobs in; a run directory out.

What is real: vLLM's scheduler, KV cache manager and prefix cache, the plugin. What is modelled: how long a GPU
step takes (``step_times``) and the clock.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from continuum_traces.run_dir import ENGINE, EVENTS, TURNS, JsonLines, write_json

from continuum_server.policy.core import Guards
from continuum_server.policy.facts import PrefillCurve
from continuum_server.step_times.catalog import find_model, kv_capacity, load_step_times
from continuum_server.step_times.model import StepTimes
from continuum_server.virtual.loop import EngineError, Job, Progress, VirtualLoop
from continuum_server.virtual.vllm_setup import EngineShape, build_scheduler
from continuum_server.vllm_plugin.scheduler import ProgramScheduler
from continuum_server.vllm_plugin.settings import Settings
from continuum_server.vllm_plugin.touch_points import check_supported

__all__ = ["EngineConfig", "EngineDescription", "EngineError", "Job", "Progress", "describe", "simulate"]

MODELLED = (
    "GPU step times (from the step-time source named under hardware)",
    "the clock (virtual; no real time passes)",
    "the model's answers (lengths from the trace, no text)",
    "network and tokenizer (take no time)",
)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One replica of an engine."""

    gpu: str = "h100-80gb"
    model: str = "llama-3.1-8b"
    tensor_parallel: int = 1
    max_num_seqs: int = 256
    """Most requests running at once."""
    chunk_tokens: int = 2048
    """Tokens of one step at most (vLLM's max_num_batched_tokens): the chunk size of chunked prefill."""
    block_size: int = 16
    kv_blocks: int | None = None
    """KV blocks; None: what fits, from geometry, memory and utilisation."""
    gpu_memory_utilization: float = 0.9
    step_overhead_ms: float = 1.0
    """Added to every step: what kernel times leave out."""
    max_model_len: int | None = None
    """Longest prompt plus output; None: the model's own."""
    event_skipping: bool = True
    """Take stretches of undisturbed decode steps in one scheduler call; results are the same without."""
    pins_yield_to: str = "never"
    """Who may take a pin while others run: never, later (a program that arrived earlier), anyone."""
    max_ttl_s: float = 600.0
    max_pinned_share: float = 0.95


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What a manifest says about the engine."""

    hardware: dict[str, Any]
    engine_options: dict[str, Any]
    modelled: tuple[str, ...]
    versions: dict[str, str]


def describe(config: EngineConfig) -> EngineDescription:
    """The manifest's part about this engine.

    Raises:
        StepTimesError: unknown GPU or model, or weights that do not fit.
        EngineError: options that cannot work.
    """
    shape, times = _shape(config), _times(config)
    capacity = kv_capacity(
        config.gpu, config.model, config.tensor_parallel, config.gpu_memory_utilization, config.block_size
    )
    kv = {**asdict(capacity), "num_blocks": shape.num_blocks, "tokens": shape.num_blocks * config.block_size}
    kv["computed"] = config.kv_blocks is None
    hardware = {
        "gpu": times.provenance.gpu,
        "model": times.provenance.model,
        "tensor_parallel": config.tensor_parallel,
        "kv_capacity": kv,
        "step_times": asdict(times.provenance),
        "prefill_curve": asdict(fit_prefill(times, shape.max_model_len)),
        "calibrated_on_a_live_server": False,
    }
    versions = {"vllm": check_supported(), "python": platform.python_version(), "numpy": np.__version__}
    return EngineDescription(hardware, asdict(config), MODELLED, versions)


def simulate(
    config: EngineConfig,
    policy: str,
    policy_options: Mapping[str, Any],
    jobs: Sequence[Job],
    seed: int,
    out: Path,
    on_progress: Callable[[Progress], None] | None = None,
) -> None:
    """Play the jobs under the policy and write scheduler_timestamps.jsonl, turns.jsonl and engine.json into ``out``.

    Deterministic: equal arguments write equal bytes (``seed`` is recorded; nothing here draws from it).

    Raises:
        StepTimesError: unknown hardware, or a batch outside what was measured.
        PolicyError: unknown policy or option.
        EngineError: a program that cannot fit, or a run that cannot go on.
    """
    shape, times = _shape(config), _times(config)
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
    scheduler: Any = build_scheduler(shape, settings, ProgramScheduler)
    free_at_start = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    with JsonLines(out / EVENTS, flush_every=512) as events, JsonLines(out / TURNS, flush_every=512) as turns:
        loop = VirtualLoop(scheduler, times, jobs, turns.write, max_stretch=512 if config.event_skipping else 1)
        scheduler.attach(loop.clock, events)
        loop.run(on_progress)
        scheduler.release_all("shutdown")
    leaked = free_at_start - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    if leaked:
        raise EngineError(f"{leaked} KV blocks leaked under policy {policy!r}: a bug, please report it")
    write_json(
        out / ENGINE,
        {**asdict(loop.counters), "virtual_s": loop.now_s, "seed": seed, "blocks_leaked": leaked},
    )


def fit_prefill(times: StepTimes, max_tokens: int) -> PrefillCurve:
    """The quadratic through prefill times at 1K, 2K, 4K ... (SPEC 3), weighted so that short prompts count too."""
    lengths = [1024]
    while lengths[-1] * 2 <= min(max_tokens, 131072):
        lengths.append(lengths[-1] * 2)
    seconds = [times.prefill_s(n) for n in lengths]
    a, b, c = np.polyfit(lengths, seconds, 2, w=1.0 / np.asarray(seconds))
    return PrefillCurve(float(a), float(b), float(c), times.provenance.kind)


def _times(config: EngineConfig) -> StepTimes:
    return load_step_times(config.gpu, config.model, config.tensor_parallel, config.step_overhead_ms)


def _shape(config: EngineConfig) -> EngineShape:
    model = find_model(config.model)
    blocks = config.kv_blocks
    if blocks is None:
        blocks = kv_capacity(
            config.gpu, config.model, config.tensor_parallel, config.gpu_memory_utilization, config.block_size
        ).num_blocks
    for name in ("max_num_seqs", "chunk_tokens", "block_size"):
        if getattr(config, name) < 1:
            raise EngineError(f"{name} = {getattr(config, name)}: must be at least 1")
    if blocks < 2:
        raise EngineError(f"kv_blocks = {blocks}: must be at least 2")
    if config.chunk_tokens < config.max_num_seqs:
        raise EngineError(
            f"chunk_tokens = {config.chunk_tokens} is below max_num_seqs = {config.max_num_seqs}: every running "
            "request needs a token of each step"
        )
    return EngineShape(
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        hidden=model.hidden,
        query_heads=model.query_heads,
        max_model_len=config.max_model_len or model.max_context_tokens,
        num_blocks=blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        chunk_tokens=config.chunk_tokens,
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
