"""The time of a step outside the kernels: scheduling, preparing the batch, sampling, detokenising, launch gaps.

Before vLLM 0.20 the GPU waits for all this work. Since 0.20 the next step is scheduled while the GPU computes the
current step (asynchronous scheduling), and the GPU waits less. But a step cannot be shorter than this work. No step of
a measured table is that short: kernels take longer even on eight GPUs, which a test checks.
"""

from __future__ import annotations

from dataclasses import dataclass

ASYNCHRONOUS_SINCE = (0, 20)


@dataclass(frozen=True, slots=True)
class Overhead:
    """Time added to every step: ``step_ms + request_ms * requests in the step``."""

    step_ms: float
    request_ms: float = 0.0
    basis: str = "given"


SYNCHRONOUS = Overhead(
    0.55,
    0.0085,
    "vLLM before 0.20: 865 decode steps of Llama-2-70B on 4 H100 (inference-sim @ 9293b22, Apache-2.0) "
    "minus the kernels' times; 8 to 128 requests",
)
ASYNCHRONOUS = Overhead(
    0.15,
    0.0085,
    "vLLM 0.20 and later, asynchronous scheduling: a part of each step chosen by what a first check of a 14B model on "
    "one H100 (vLLM 0.23, 2 to 12 requests/s) left unexplained; each request's as before 0.20",
)


def overhead_of(vllm: str | None) -> Overhead:
    """Return the overhead of a vLLM version, by its first two numbers; None or a malformed version: the newest.

    All GPUs have the same overhead, because the host does this work. Hosts were not compared.
    """
    return ASYNCHRONOUS if is_asynchronous(vllm) else SYNCHRONOUS


def is_asynchronous(vllm: str | None) -> bool:
    """Whether this version of vLLM schedules a step while the previous step runs, by default."""
    try:
        major, minor = (int(part) for part in (vllm or "").split(".")[:2])
    except ValueError:
        return True
    return (major, minor) >= ASYNCHRONOUS_SINCE
