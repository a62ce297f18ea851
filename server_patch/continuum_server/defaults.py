"""Default values of the options of engines and servers."""

from __future__ import annotations

from typing import Literal

POLICY = "working-set"
GPU = "h100-80gb"
MODEL = "llama-3.1-8b"
TENSOR_PARALLEL = 1
BLOCK_SIZE = 16
GPU_MEMORY_UTILIZATION = 0.9
STEP_OVERHEAD_MS: float | None = None
Band = Literal["low", "mid", "high"]
"""Which end of the uncertainty band of attention times."""
STEP_TIMES: Band = "mid"
HOST = "127.0.0.1"
PORT = 8000
TOOL_CALL_PARSER = "hermes"
DRAIN_S = 30
Recognise = Literal["ids,prompts", "ids", "none"]
RECOGNISE: Recognise = "ids,prompts"
KEY_WEIGHTS = "CONTINUUM_KEY_WEIGHTS"
"""Environment variable with the weights of API keys or tenants as a JSON object. It is no argument, because vLLM logs
those."""
TENANT_HEADER = "CONTINUUM_TENANT_HEADER"
"""Environment variable with the name of the header in which a gateway names the tenant; unset: there is none."""
NO_SCHEDULER = "this engine runs without the Continuum scheduler"
"""What a server answers whose scheduler is vLLM's own, when it is asked for its state."""
SERVER_NAME = "CONTINUUM_SERVER"
"""Environment variable that the launcher sets to a random name, which differs each time a server is started."""

KEEP_ALIVE_S = 600
"""Seconds for which a server keeps an idle connection, as tools may take that long. vLLM's own default is 5: a client
that uses its connection again just then gets an error."""
