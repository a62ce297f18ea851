"""Options of ``serve``, ``profile``, ``top`` and ``doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from continuum_server import defaults
from continuum_server.policy.program_table import FairBetween, Guards
from msgspec import Meta

from continuum_bench.options.declare import WRITABLE, OptionGroup, named
from continuum_bench.options.run import EngineOptions, GpuOptions, Json, PolicyOption, ServedModel, Wait
from continuum_bench.options.together import Needs

GUARDS = Guards()


@dataclass(frozen=True)
class ServeOptions(EngineOptions):
    """Options of ``serve``."""

    usual = (
        *("engine", "model", "gpu", "tp", "policy", "policy_option", "host", "port", "max_model_len"),
        *("data_parallel_size", "record", "statistics", "profile"),
    )

    engine: str = "emulated"
    """Engine: gpu (vLLM on this machine's GPUs), emulated (no GPU: step times are modelled, answers are scripted or
    filler), cpu (vLLM computes on this machine's CPU)."""
    model: str | None = None  # type: ignore[assignment]  # wider than its base
    """gpu: the model that vLLM loads. cpu: the same, or tiny-random (the default) or random-25m; a folder without
    weights gets random ones. emulated: the model to compute step times for, by default llama-3.1-8b."""
    policy: Annotated[str, named("--policy", "--scheduling-policy")] = defaults.POLICY
    """Scheduling policy, or stock for vLLM without Continuum's plugin."""
    policy_option: PolicyOption = None
    host: str = defaults.HOST
    """Address on which the server listens."""
    port: Annotated[int, Meta(le=65_535)] = defaults.PORT
    """Port on which the server listens. 0 takes a free one."""
    data_parallel_size: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Number of vLLM's engines, each with its own GPUs. All turns of a program go to the same engine."""
    time_scale: Annotated[float, Meta(gt=0), Needs("engine", "emulated")] = 1.0
    """Emulated engine: modelled seconds that pass in one real second."""
    speculative: Annotated[str | None, Needs("engine", "emulated")] = None
    """Emulated engine: speculative decoding as a model, DRAFTS:LENGTH, such as 3:2.8: drafted tokens, and tokens that a
    step yields in the mean."""
    replies: Annotated[Path | None, Needs("engine", "emulated")] = None
    """Emulated engine: file of scripted answers (JSON lines)."""
    block_size: Annotated[int | None, Meta(ge=1)] = None
    """Number of tokens in one KV block. Default: the engine's choice."""
    max_model_len: Annotated[int | None, Meta(ge=1)] = None
    """Largest number of tokens of a prompt and its output together."""
    record: Path | None = None
    """Folder for scheduler_timestamps.jsonl. Engine N of several, but the first, writes into the folder rankN in it."""
    statistics: Path | None = None
    """File of tool statistics, read at the start and kept up to date. Engine N of several, but the first, uses
    FILE.rankN."""
    profile: Path | None = None
    """File of `continuum-bench profile` with the measured prefill times."""
    tool_call_parser: str | None = defaults.TOOL_CALL_PARSER
    """vLLM's parser of tool calls. With none, tool calls are not parsed."""
    max_pinned_share: float = GUARDS.max_pinned_share
    """Largest share of the KV pool that may be pinned at the same time."""
    max_pins_per_client: int | None = GUARDS.max_pins_per_client
    """Largest number of pins that the programs of one API key may hold at once. Default: no limit."""
    max_programs: int = GUARDS.max_programs
    """Number of idle programs that the server remembers."""
    max_overtake_s: float = GUARDS.max_overtake_s
    """A request that has waited this many seconds is scheduled before all that came after it."""
    fair: FairBetween = GUARDS.fair
    """With two or more API keys: keys (each has a fair share of the engine and of the KV pool), none (the order of
    requests does not depend on keys)."""
    key_lag: float = GUARDS.key_lag
    """By how much the requests of one API key may be ahead of those of another that wait, in times to fill the KV pool
    with prompts of 8,192 tokens."""
    key_weight: list[str] | None = None
    """Weight of an API key, or of a tenant, among those that share the engine: NAME=WEIGHT. Repeatable. Default: 1."""
    tenant_header: str | None = None
    """Header in which a gateway names the tenant of a request. Tenants then share the engine as keys do. Requires
    --api-key."""
    session_header: list[str] | None = None
    """Header in which clients name the conversation of a request, beside the ids that the server knows. Repeatable."""
    log: Path | None = None
    """File for the server's output. Default: standard error."""
    drain_s: int = defaults.DRAIN_S
    """Seconds that running requests get to finish after SIGTERM."""
    ready_timeout_s: Annotated[float, Meta(gt=0)] = 900.0
    """Seconds that the server may take to start."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(GpuOptions):
    """Options of ``profile``."""

    out: Annotated[Path, WRITABLE]
    """File to write."""
    base_url: str | None = None
    """Server to measure (its URL up to /v1). Without it, the profile is computed from the modelled step times."""
    wait: Wait = False
    served_model: Annotated[ServedModel, Needs("base_url")] = None
    repeats: Annotated[int, Meta(ge=1), Needs("base_url")] = 3
    """Number of measurements of each point; their median is used."""
    longest_prompt: Annotated[int | None, Meta(ge=1024), Needs("base_url")] = None
    """Longest prompt to measure, in tokens. Default: lengths double until a prompt takes 10 seconds, or up to the
    server's longest."""


@dataclass(frozen=True, kw_only=True)
class TopOptions(OptionGroup):
    """Options of ``top``."""

    base_url: list[str]
    """Server to show (its URL up to /v1). Repeatable."""
    wait: Wait = False
    once: bool = False
    """Print one table, and exit."""
    json_output: Annotated[Json, Needs("once")] = False
    limit: Annotated[int | None, Meta(ge=1, le=9999)] = None
    """Number of programs to show. Default: what fits on the screen; with --once, 40."""
    interval: Annotated[float, Meta(ge=0.1)] = 2.0
    """Seconds between two readings."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key."""


@dataclass(frozen=True)
class DoctorOptions(OptionGroup):
    """Options of ``doctor``."""

    base_url: str | None = None
    """Send three turns of a program to this server or gateway (its URL up to /v1), and show what arrived."""
    wait: Wait = False
    served_model: Annotated[ServedModel, Needs("base_url")] = None
    server_url: Annotated[list[str] | None, Needs("base_url")] = None
    """Root of a server behind the gateway, to ask what arrived there. Repeatable."""
    dialect: Annotated[str | None, Needs("base_url")] = None
    """How tags are sent to the server. Default: auto."""
    api_key_env: Annotated[str, Needs("base_url")] = "OPENAI_API_KEY"
    """Environment variable that holds the API key."""
    json_output: Json = False
