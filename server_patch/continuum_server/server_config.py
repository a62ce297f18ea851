"""What is configured of one vLLM server. Imports no vLLM."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from continuum_server import defaults
from continuum_server.emulated.settings import EmulatedSettings
from continuum_server.policy.program_table import Guards

EngineName = Literal["gpu", "emulated", "cpu"]
STOCK = "stock"
"""The policy name of vLLM's own scheduler, without the plugin."""
ServerState = Literal["serving", "unhealthy", "dead"]
"""unhealthy: the process runs, but its /health does not answer 200."""


class ServerError(Exception):
    """A server cannot start, or it died. The message says why; after a death it shows the end of the server's log."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """The configuration of one server."""

    engine: EngineName = "emulated"
    policy: str = defaults.POLICY
    policy_options: dict[str, Any] = field(default_factory=dict)
    guards: Guards = field(default_factory=Guards)
    model: str | None = None
    """What vLLM loads; emulated: a model that ``step_times`` knows. None: a tiny random one (cpu)."""
    emulated: EmulatedSettings = field(default_factory=EmulatedSettings)
    host: str = defaults.HOST
    port: int = defaults.PORT
    """0: any free port."""
    max_num_seqs: int = defaults.MAX_NUM_SEQS
    max_num_batched_tokens: int = defaults.MAX_NUM_BATCHED_TOKENS
    block_size: int | None = None
    """None: vLLM chooses (gpu), 16 (emulated), 32 (cpu)."""
    kv_blocks: int | None = None
    max_model_len: int | None = None
    record: Path | None = None
    statistics: Path | None = None
    profile: Path | None = None
    """File of ``continuum-bench profile``: how fast this server prefills and decodes. None: emulated uses its model."""
    tool_call_parser: str | None = defaults.TOOL_CALL_PARSER
    """vLLM's parser for the model's tool calls; None: tool calls are not parsed."""
    drain_s: int = defaults.DRAIN_S
    """After SIGTERM, running requests have this many seconds to finish."""
    gpus: int = 1
    """Number of GPUs that this server has for itself (engine gpu)."""
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES; None: not set by us."""
    vllm_arguments: tuple[str, ...] = ()
    """Appended to vLLM's command line unchanged."""
