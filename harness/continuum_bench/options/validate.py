"""Options of ``validate``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from continuum_server import defaults
from continuum_server.step_times.attention import BANDS

from continuum_bench.options.declare import FINITE, SHARE, Option, Options, at_least, at_most, named, one_of
from continuum_bench.options.run import ENGINE, MOST_BLOCKS, PIPELINE, Json

KV_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
"""The types of vLLM's --kv-cache-dtype that are modelled."""


@dataclass(frozen=True)
class ValidateOptions(Options):
    """The settings of the logged server that its log does not record, or records wrongly.

    Attributes:
        gpu: GPU that the server ran on. `doctor` lists the known GPUs.
        model: Model that it served. `doctor` lists the known models. Default: as in the log.
        tp: The server's --tensor-parallel-size. Default: as in the log, or 1.
        pp: The server's --pipeline-parallel-size: stages, each with --tp GPUs. Default: as in the log, or 1.
        data_parallel_size: The server's --data-parallel-size: engines that share the requests, each with its own GPUs.
            Default: as in the log, or 1.
        max_num_seqs: The server's --max-num-seqs. Default: as in the log, or vLLM's default for the GPU.
        chunk: The server's --max-num-batched-tokens. Default: as in the log, or vLLM's default for the GPU.
        enable_prefix_caching: Whether the server used prefix caching. Default: as in the log, or yes.
        kv_cache_dtype: Data type of the KV cache. Default: as in the log, or auto (the model's own).
        kv_blocks: Number of KV blocks, from the server's start-up messages. Default: as in the log, or as many as fit
            the GPU.
        block_size: Number of tokens in one KV block. Default: as in the log, or 16.
        gpu_memory_utilization: Share of the GPU's memory that the server used, if the number of KV blocks is not known.
            Default: as in the log, or 0.9.
        vllm: Version of vLLM. Default: as in the log, or the newest.
        step_overhead_ms: Milliseconds added to every modelled step. Default: the time of vLLM's own work, which depends
            on its version and the number of requests.
        step_times: Estimate of attention times for GPUs on which prompt chunks together with decodes were never
            measured: low, mid or high.
        fit: Fit the overhead and a factor on attention to the first half of the requests, and report the second half.
    """

    panel = ENGINE
    usual = (
        *("log", "gpu", "model", "tp", "pp", "chunk", "max_num_seqs", "kv_blocks"),
        *("vllm", "fit", "json_output"),
    )

    log: Annotated[Path, Option("Request log of a real server, or the folder that holds it or several.", argument=True)]
    gpu: str | None = None
    model: str | None = None
    tp: Annotated[int | None, at_least(1), named("--tp", "--tensor-parallel-size")] = None
    pp: Annotated[int | None, at_least(1), PIPELINE] = None
    data_parallel_size: Annotated[int | None, at_least(1), at_most(1000)] = None
    max_num_seqs: Annotated[int | None, at_least(1)] = None
    chunk: Annotated[int | None, at_least(1), named("--chunk", "--chunk-tokens", "--max-num-batched-tokens")] = None
    enable_prefix_caching: bool | None = None
    kv_cache_dtype: Annotated[str | None, one_of(*KV_DTYPES)] = None
    kv_blocks: Annotated[int | None, at_least(2), at_most(MOST_BLOCKS)] = None
    block_size: Annotated[int | None, at_least(1)] = None
    gpu_memory_utilization: Annotated[float | None, SHARE] = None
    vllm: str | None = None
    step_overhead_ms: Annotated[float | None, FINITE] = defaults.STEP_OVERHEAD_MS
    step_times: Annotated[str, one_of(*BANDS)] = defaults.STEP_TIMES
    fit: bool = False
    json_output: Json = False
