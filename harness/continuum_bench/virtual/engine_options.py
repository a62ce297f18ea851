"""Converts a command's options to the virtual engine's configuration."""

from __future__ import annotations

from continuum_server.policy.program_table import Guards
from continuum_server.step_times.speculation import read_speculation
from continuum_server.virtual.config import EngineConfig, EngineDescription, describe
from continuum_server.virtual.offload import OffloadError, default_preset, read_offload

from continuum_bench.errors import BenchError
from continuum_bench.options.run import RunOptions


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
    config = {
        **options.shared_with(EngineConfig),
        "prefix_caching": not options.no_prefix_caching,
        "guards": Guards(**options.shared_with(Guards)),
        "offload": offload,
        "speculation": None if options.speculative is None else read_speculation(options.speculative),
        "profile": str(options.profile) if options.profile else None,
    }
    engine = EngineConfig(**config)
    return engine, describe(engine)
