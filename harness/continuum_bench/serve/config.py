"""Converts the options of ``serve`` to the configuration of a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.policy.limits import LimitError
from continuum_server.policy.program_table import Guards, OneOffsOrder, PinsYieldTo
from continuum_server.server_config import EngineName, ServerConfig
from continuum_server.vllm_plugin.plugin_settings import Recognise

from continuum_bench.errors import BenchError
from continuum_bench.options.serve import ServeOptions


def server_config(
    options: ServeOptions, policy_options: Mapping[str, Any], vllm_arguments: tuple[str, ...] = ()
) -> ServerConfig:
    """Return the configuration of one server.

    Args:
        options: the options of ``serve``.
        policy_options: the decoded options of the policy.
        vllm_arguments: arguments that are passed on to vLLM.

    Raises:
        BenchError: a limit on pins is out of range.
        EmulatedError: a setting of the emulated GPU is out of range.
    """
    if options.engine == "gpu":  # vLLM itself reads these two options if the GPU is real
        vllm_arguments += ("--tensor-parallel-size", str(options.tp))
        vllm_arguments += ("--gpu-memory-utilization", str(options.gpu_memory_utilization))
    return ServerConfig(
        engine=cast(EngineName, options.engine),
        policy=options.policy,
        policy_options=dict(policy_options),
        guards=_guards(options),
        recognise=cast(Recognise, options.recognise),
        model=options.model,
        emulated=EmulatedSettings(
            gpu=options.gpu,
            tensor_parallel=options.tp,
            gpu_memory_utilization=options.gpu_memory_utilization,
            step_overhead_ms=options.step_overhead_ms,
            step_times=options.step_times,
            time_scale=options.time_scale,
            replies=str(options.replies.absolute()) if options.replies else None,
        ),
        host=options.host,
        port=options.port,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.chunk_tokens,
        block_size=options.block_size,
        kv_blocks=options.kv_blocks,
        max_model_len=options.max_model_len,
        record=options.record,
        statistics=options.statistics,
        profile=options.profile,
        tool_call_parser=None if options.tool_call_parser == "none" else options.tool_call_parser,
        drain_s=options.drain_s,
        gpus=options.tp,
        vllm_arguments=vllm_arguments,
    )


def _guards(options: ServeOptions) -> Guards:
    try:
        return Guards(
            max_ttl_s=options.max_ttl_s,
            max_pinned_share=options.max_pinned_share,
            max_pins_per_client=options.max_pins_per_client,
            max_programs=options.max_programs,
            max_overtake_s=options.max_overtake_s,
            pins_yield_to=cast(PinsYieldTo, options.pins_yield_to),
            one_offs=cast(OneOffsOrder, options.one_offs),
            first_token_s=options.first_token_s,
        )
    except LimitError as error:
        raise BenchError(f"--{error.name.replace('_', '-')} {error.given}: must be {error.allowed}") from error
