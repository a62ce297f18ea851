"""What a request log says: the requests of a run, and the server that answered them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Served:
    """One request that a server answered. Instants are seconds on one clock."""

    arrival_s: float
    first_token_s: float
    finish_s: float
    prompt_tokens: int
    output_tokens: int
    program_id: str | None = None
    """The agent that sent it; None: nothing of its prompt is in another request's."""
    gap_s: float = 0.0
    """Seconds until the program's next request."""


FAILED, CUT_OFF, WARM_UP, NO_OUTPUT, NOT_THERE = "failed", "cut off", "warm-up", "without output", "not in the log"


@dataclass(frozen=True, slots=True)
class Unreported:
    """A request whose times are not compared."""

    why: str
    load: Served | None = None
    """What of it the server computed, beside the other requests; None: not known. Its times mean nothing."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a log says of its server; None where it says nothing."""

    gpu: str | None = None
    model: str | None = None
    vllm: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    replicas: int | None = None
    """Engines that share the requests (vLLM's data parallel size)."""
    max_num_seqs: int | None = None
    chunk_tokens: int | None = None
    kv_blocks: int | None = None
    block_size: int | None = None
    kv_cache_dtype: str | None = None
    prefix_caching: bool | None = None
    gpu_memory_utilization: float | None = None


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One run of a load generator, in order of arrival. The first request arrives at 0."""

    name: str
    served: tuple[Served, ...]
    server: ServerFacts = ServerFacts()
    load: tuple[Served, ...] = ()
    """Requests that the server also worked on: warm-up, and those that were cut off at the end."""
    unreported: Mapping[str, int] = field(default_factory=dict)
    """Number of requests that are not among ``served``, by why."""
