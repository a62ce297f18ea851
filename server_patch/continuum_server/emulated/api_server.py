"""vLLM's API server for the emulated engine: ``python -m continuum_server.emulated.api_server`` with vLLM's arguments.

On a GPU vLLM forks its engine core from the API server. On a CPU it starts a new interpreter instead, because OpenMP's
threads do not survive a fork; this takes twice as long. The emulated engine has no such threads, because it computes
nothing and ``server_command`` sets OMP_NUM_THREADS to 1. So this module makes vLLM fork on a CPU too.

Python's garbage collector takes a quarter of the time while vLLM is imported, and finds nothing to free: it starts when
vLLM has its configuration, and leaves out what was loaded until then.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
from typing import TYPE_CHECKING

from continuum_server.emulated.unsupported import lacking

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def fork_the_engine_core() -> None:
    """Change vLLM's CPU platform in this process, so that vLLM forks its engine core, and does not start with what the
    emulated engine does not do."""
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415 - seconds

    check = CpuPlatform.check_and_update_config

    def check_and_fork(vllm_config: VllmConfig) -> None:
        check(vllm_config)
        if vllm_config.model_config is not None and (lack := lacking(vllm_config)) is not None:
            sys.exit(f"EmulatedError: the emulated engine cannot do this: {lack}")
        gc.freeze()
        gc.enable()
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    CpuPlatform.check_and_update_config = staticmethod(check_and_fork)  # type: ignore[method-assign]


if __name__ == "__main__":
    gc.disable()
    fork_the_engine_core()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
