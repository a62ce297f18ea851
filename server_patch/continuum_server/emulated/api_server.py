"""vLLM's API server for the emulated engine: ``python -m continuum_server.emulated.api_server``, then vLLM's arguments.

The engine core is forked from it, as vLLM does on a GPU, and so starts in half the time. On a CPU vLLM starts a new
interpreter instead, for the sake of OpenMP threads, which do not survive a fork. The emulated engine computes nothing;
``server_command`` sets OMP_NUM_THREADS to 1, so there are no such threads.
"""

from __future__ import annotations

import os
import runpy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def fork_the_engine_core() -> None:
    """Change vLLM's CPU platform, in this process only."""
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415 - seconds

    check = CpuPlatform.check_and_update_config

    def check_and_fork(vllm_config: VllmConfig) -> None:
        check(vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = staticmethod(check_and_fork)  # type: ignore[method-assign]


if __name__ == "__main__":
    fork_the_engine_core()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
