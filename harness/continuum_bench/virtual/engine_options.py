"""Converts a command's options to the virtual engine's configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from continuum_server import defaults
from continuum_server.policy.program_table import Guards, OneOffsOrder, PinsYieldTo
from continuum_server.step_times.attention import BANDS, kernel_of
from continuum_server.step_times.catalog import find_gpu, find_model
from continuum_server.virtual.config import EngineConfig, EngineDescription, describe
from continuum_server.virtual.offload import OffloadError, default_preset, read_offload
from continuum_server.virtual.routers import VLLM_ROUTER_NAMES
from continuum_server.vllm_plugin.plugin_settings import Recognise

from continuum_bench.errors import BenchError
from continuum_bench.options.run import BAND, RunOptions


def engine_of(options: RunOptions) -> tuple[EngineConfig, EngineDescription]:
    """Return the engine's configuration and its part of the manifest. Only arms named ``+offload`` use the tiers.

    Raises:
        BenchError: ``--offload`` is invalid.
        EngineError, StepTimesError, UnsupportedVllm: options conflict, the hardware is unknown, or vLLM is missing.
    """
    try:
        offload = read_offload(options.offload or default_preset(options.gpu), options.gpu)
    except OffloadError as error:
        raise BenchError(f"--offload {error}") from error
    config = EngineConfig(
        gpu=options.gpu,
        model=options.model,
        tensor_parallel=options.tp,
        pipeline_parallel=options.pp,
        max_num_seqs=options.max_num_seqs,
        chunk_tokens=options.chunk_tokens,
        block_size=options.block_size,
        kv_blocks=options.kv_blocks,
        gpu_memory_utilization=options.gpu_memory_utilization,
        step_overhead_ms=options.step_overhead_ms,
        step_times=defaults.STEP_TIMES if options.step_times == BAND else options.step_times,
        guards=Guards(
            pins_yield_to=cast(PinsYieldTo, options.pins_yield_to),
            one_offs=cast(OneOffsOrder, options.one_offs),
            first_token_s=options.first_token_s,
        ),
        recognise=cast(Recognise, options.recognise),
        offload=offload,
        profile=str(options.profile) if options.profile else None,
        replicas=options.replicas,
        router=VLLM_ROUTER_NAMES.get(options.router, options.router),
    )
    return config, describe(config)


def descriptions_at(options: RunOptions, config: EngineConfig) -> dict[str, EngineDescription]:
    """Return the engine at low, mid and high step times, by name.

    The result is empty without ``--step-times band``, and if the three are the same.

    Raises:
        BenchError: ``--profile`` is given: measured step times have no band.
    """
    if options.step_times != BAND:
        return {}
    if options.profile is not None:
        raise BenchError("--step-times band: the step times of --profile were measured and have no band")
    tiles = kernel_of(find_gpu(options.gpu), find_model(options.model)).tiles
    if tiles is None or tiles["low"] == tiles["high"]:
        return {}
    return {band: describe(replace(config, step_times=band)) for band in BANDS}
