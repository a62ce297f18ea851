"""The settings that an engine has wherever it runs: the command line, the virtual engine and servers declare no others.

The sentence below a field is its text in ``--help``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from continuum_server import defaults

MOST_BLOCKS = 10_000_000
"""vLLM creates an object for each KV block. Creating more would take longer than the run."""


@dataclass(frozen=True)
class GpuSettings:
    """The hardware and the model for which step times are computed."""

    gpu: str = defaults.GPU
    """GPU to compute step times for. `doctor` lists the known GPUs."""
    model: str = defaults.MODEL
    """Model to compute step times for. `doctor` lists the known models."""
    tp: Annotated[int, Meta(ge=1)] = defaults.TENSOR_PARALLEL
    """Tensor parallel size: the number of GPUs of one replica."""
    step_overhead_ms: float | None = defaults.STEP_OVERHEAD_MS
    """Milliseconds added to every modelled step. Default: the time of vLLM's own work, which depends on its version and
    the number of requests."""
    step_times: defaults.Band = defaults.STEP_TIMES
    """Estimate of attention times for GPUs on which prompt chunks together with decodes were never measured (A100,
    L40S): low, mid or high. On other GPUs the three are the same."""


@dataclass(frozen=True)
class SchedulerSettings:
    """How many requests, tokens and KV blocks vLLM's scheduler may use."""

    max_num_seqs: Annotated[int, Meta(ge=1)] = 256
    """Largest number of requests that run at the same time."""
    chunk_tokens: Annotated[int, Meta(ge=1)] = 2048
    """Largest number of tokens in one step: vLLM's max_num_batched_tokens."""
    kv_blocks: Annotated[int | None, Meta(ge=2, le=MOST_BLOCKS)] = None
    """Number of KV blocks. Default: as many as fit the GPU's memory."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1)] = defaults.GPU_MEMORY_UTILIZATION
    """Share of the GPU's memory that the engine uses."""
