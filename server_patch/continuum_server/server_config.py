"""The configuration of one vLLM server. Does not import vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from continuum_server import defaults
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.engine_settings import SchedulerSettings
from continuum_server.policy.program_table import Guards

EngineName = Literal["gpu", "emulated", "cpu"]
STOCK = "stock"
"""The policy name of vLLM's own scheduler, without the plugin."""


class ServerError(Exception):
    """A server cannot start, or it died. The message says why, and quotes the end of the log of a server that died."""


@dataclass(frozen=True)
class ServerConfig(SchedulerSettings):
    """The configuration of one server. An emulated GPU has its own ``gpu_memory_utilization``."""

    engine: EngineName = "emulated"
    policy: str = defaults.POLICY
    policy_options: dict[str, Any] = field(default_factory=dict)
    guards: Guards = field(default_factory=Guards)
    recognise: defaults.Recognise = defaults.RECOGNISE
    model: str | None = None
    """Folder or name of a model. emulated: a model that ``step_times`` knows. cpu: also a name of
    ``local_model.RANDOM``; None is the smallest of these."""
    emulated: EmulatedSettings = field(default_factory=EmulatedSettings)
    host: str = defaults.HOST
    port: int = defaults.PORT
    """0: any free port."""
    block_size: int | None = None
    """None: vLLM chooses (gpu), 16 (emulated), 32 (cpu)."""
    max_model_len: int | None = None
    record: Path | None = None
    statistics: Path | None = None
    profile: Path | None = None
    """File from ``continuum-bench profile``: prefill and decode times of this server. Not needed by engine emulated."""
    tool_call_parser: str | None = defaults.TOOL_CALL_PARSER
    """vLLM's parser for the model's tool calls; None: tool calls are not parsed."""
    key_weights: dict[str, float] = field(default_factory=dict)
    """Weights of API keys, or of tenants, among those that share the engine. Those that are not here have 1."""
    tenant_header: str | None = None
    """Header in which a gateway with a valid API key names the tenant; None: keys are the tenants."""
    session_headers: tuple[str, ...] = ()
    """Headers in which the operator's clients name their conversations."""
    drain_s: int = defaults.DRAIN_S
    """After SIGTERM, running requests have this many seconds to finish."""
    gpus: int = 1
    """Number of GPUs of one engine (engine gpu)."""
    data_parallel_size: int = 1
    """Number of engines."""
    vllm_arguments: tuple[str, ...] = ()
    """Arguments that are appended to vLLM's command line unchanged."""
