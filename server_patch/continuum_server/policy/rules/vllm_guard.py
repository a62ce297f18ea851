"""``vllm-guard``: stock vLLM that keeps the checkpoints of running requests."""

from __future__ import annotations

from typing import ClassVar

from continuum_server.policy.rules.vllm import Vllm


class VllmGuard(Vllm):
    """Stock vLLM that keeps the windows and states at the end of a prompt while its answer is generated."""

    name: ClassVar[str] = "vllm-guard"
    guards_checkpoints: ClassVar[bool] = True
