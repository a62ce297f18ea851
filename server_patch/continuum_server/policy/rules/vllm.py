"""``vllm``: stock vLLM."""

from __future__ import annotations

from typing import ClassVar

from continuum_server.policy.base import Policy


class Vllm(Policy):
    """Stock vLLM: requests run in order of arrival; the KV of a finished turn is evicted when others need room."""

    name: ClassVar[str] = "vllm"
    soft_holds: ClassVar[bool] = False
    guards_checkpoints: ClassVar[bool] = False
