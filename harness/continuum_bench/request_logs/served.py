"""The contents of a request log: the requests of a run, and the server that answered them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec


@dataclass(frozen=True, slots=True)
class Served:
    """One request that a server answered. Instants are seconds on one clock."""

    arrival_s: float
    first_token_s: float
    finish_s: float
    prompt_tokens: int
    output_tokens: int
    program_id: str | None = None
    """The agent that sent the request; None: the prompt shares no prefix with other requests."""
    gap_s: float = 0.0
    """Seconds until the program's next request."""
    outcome: str | None = None
    """Why the request is not reported: it was only load for the others. None: it was answered."""


FAILED, CUT_OFF, WARM_UP, NO_OUTPUT, NOT_THERE = "failed", "cut off", "warm-up", "without output", "not in the log"


@dataclass(frozen=True, slots=True)
class Unreported:
    """A request whose times are not compared."""

    why: str
    load: Served | None = None
    """The part that the server computed beside the other requests, with meaningless times; None: it is not known."""


class ServerFacts(
    msgspec.Struct,
    frozen=True,
    rename={
        "tp": "tensor_parallel_size",
        "pp": "pipeline_parallel_size",
        "chunk": "max_num_batched_tokens",
        "kv_blocks": "num_gpu_blocks_override",
    },
):
    """The settings of the server that a log records; None: it does not record the setting. A log has them under vLLM's
    names."""

    gpu: str | None = None
    model: str | None = None
    vllm: str | None = None
    tp: int | None = None
    pp: int | None = None
    data_parallel_size: int | None = None
    max_num_seqs: int | None = None
    chunk: int | None = None
    kv_blocks: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    enable_prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One run of a load generator, in order of arrival. The first request arrives at 0."""

    name: str
    served: tuple[Served, ...]
    server: ServerFacts = field(default_factory=ServerFacts)
    load: tuple[Served, ...] = ()
    """Requests that are played but not compared (``Served.outcome``): those of the warm-up, and those cut off."""
    unreported: Mapping[str, int] = field(default_factory=dict)
    """Number of requests that are not in ``served``, by reason."""
