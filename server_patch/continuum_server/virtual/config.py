"""The virtual engine's configuration and its description in a manifest. Does not import vLLM, which takes seconds."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from continuum_traces.names import which
from continuum_traces.schema import Engine, Hardware, Program
from continuum_traces.typed import from_json

from continuum_server import defaults
from continuum_server.engine_settings import GpuSettings, SchedulerSettings
from continuum_server.log_once import LogOnce
from continuum_server.policy.facts import DecodeLine
from continuum_server.policy.program_table import Guards
from continuum_server.routers import ROUTERS
from continuum_server.step_times.cache_groups import CacheLayout, layout_of
from continuum_server.step_times.catalog import KvCapacity, find_model, kv_capacity, load_step_times
from continuum_server.step_times.curves import fit_decode, fit_prefill
from continuum_server.step_times.model import StepTimes
from continuum_server.step_times.profile import ProfileStepTimes, read_profile
from continuum_server.step_times.specs import Model
from continuum_server.step_times.speculation import Speculation, SpeculativeStepTimes, draft_share
from continuum_server.step_times.stages import staged
from continuum_server.virtual.offload import GB, Offload
from continuum_server.vllm_plugin.versions import check_version, has_short_loops


class EngineError(Exception):
    """A run cannot start or cannot continue. The message says why."""


NETWORK = "network and tokenizer (take no time)"
MODELLED = (
    "GPU step times (from the step-time source named under hardware)",
    "the clock (virtual; no real time passes)",
    "the model's answers (lengths from the trace, no text)",
    NETWORK,
)
NETWORK_OF_PROFILE = "network and tokenizer (constants of the profile, for each request and each prompt token)"

OWN_LOOPS = "vLLM's own: results are equal, runs take longer"
"""What a manifest's versions say of a run in which ``block_pool`` replaces nothing."""
SWITCH = "CONTINUUM_VLLM_LOOPS"
"""The environment variable that keeps vLLM's own loops when its value is ``own``."""
_warn = LogOnce()

MODELLED_TRANSFERS = "transfers between GPU memory, DRAM and SSD (bandwidth and latency of each link)"

MODELLED_DRAFTS = "speculative decoding (a constant acceptance length; nothing is drafted)"


@dataclass(frozen=True)
class EngineConfig(GpuSettings, SchedulerSettings):
    """One engine, or several equal engines behind a router."""

    pp: int = 1
    """Pipeline stages, each with ``tp`` GPUs."""
    block_size: int = defaults.BLOCK_SIZE
    prefix_caching: bool = True
    """A prompt's KV blocks that are still in the pool are not computed again."""
    vllm: str | None = None
    """The vLLM version whose overhead and admission are modelled; None: the newest's overhead, no late admission."""
    max_model_len: int | None = None
    """Longest prompt plus output; None: the model's maximum."""
    guards: Guards = field(default_factory=Guards)
    recognise: defaults.Recognise = defaults.RECOGNISE
    """How conversations without our tags are recognised."""
    offload: Offload | None = None
    """Memory tiers below the GPU; None: KV that leaves the GPU is lost."""
    profile: str | None = None
    """Profile file. Its step times replace the GPU's, and so does its KV size if ``kv_blocks`` is None."""
    speculation: Speculation | None = None
    """Speculative decoding; None: a step yields one token."""
    replicas: int = 1
    """Number of engines. Each has its own GPUs, scheduler and cache."""
    router: str = "affinity"
    """Chooses the replica of a turn: a name in ``routers.ROUTERS``. A single engine needs no router."""


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """The manifest's part about the engine."""

    hardware: Hardware
    engine_options: Engine
    modelled: tuple[str, ...]
    versions: dict[str, str]

    def without_offload(self) -> EngineDescription:
        """Return the description of the engine for a run without tiers."""
        modelled = tuple(line for line in self.modelled if line != MODELLED_TRANSFERS)
        return replace(self, engine_options=replace(self.engine_options, offload=None), modelled=modelled)


def describe(config: EngineConfig) -> EngineDescription:
    """Return the manifest's part about this engine.

    Raises:
        StepTimesError: an unknown GPU or model, or the weights do not fit.
        EngineError: an invalid option.
    """
    shape, times = shape_of(config), times_of(config)
    capacity = capacity_of(config)
    kv = {**asdict(capacity), "num_blocks": shape.num_blocks, "tokens": shape.kv_tokens}
    hardware = {
        "gpu": times.provenance.gpu,
        "model": times.provenance.model,
        "tensor_parallel": config.tp,
        "pipeline_parallel": config.pp,
        "kv_capacity": {**kv, "computed": config.kv_blocks is None},
        "step_times": asdict(times.provenance),
        "prefill_curve": asdict(fit_prefill(times, shape.max_model_len)),
        "calibrated_on_a_live_server": False,
    }
    versions = {"vllm": check_version(), "python": platform.python_version(), "numpy": np.__version__}
    if not replaces_loops():
        versions["vllm_loops"] = OWN_LOOPS
        _warn(OWN_LOOPS, "vLLM %s: the virtual engine's inner loops are %s", versions["vllm"], OWN_LOOPS)
    modelled: tuple[str, ...] = MODELLED if config.offload is None else (*MODELLED, MODELLED_TRANSFERS)
    if config.speculation is not None:
        modelled = (*modelled, MODELLED_DRAFTS)
    if times.request_s(0) > 0:
        modelled = tuple(NETWORK_OF_PROFILE if line == NETWORK else line for line in modelled)
    named = {"gpu": config.gpu, "tensor_parallel": config.tp, "pipeline_parallel": config.pp}
    router = config.router if config.replicas > 1 else None
    options = {**named, **asdict(config), **asdict(config.guards), "router": router}
    if config.profile is not None:
        options |= {"gpu": times.provenance.gpu, "model": times.provenance.model}
    del options["guards"], options["tp"], options["pp"]
    return EngineDescription(from_json(Hardware, hardware), from_json(Engine, options), modelled, versions)


def replaces_loops() -> bool:
    """Whether ``block_pool`` replaces vLLM's inner loops, which depends on vLLM's version and on ``SWITCH``."""
    return os.environ.get(SWITCH) != "own" and has_short_loops(check_version())


@dataclass(frozen=True, slots=True)
class EngineShape:
    """The properties of model and memory that the scheduler needs."""

    model: Model
    max_model_len: int
    num_blocks: int
    block_size: int
    """vLLM's ``--block-size``, which is the blocks' size unless the model has states (``layout``)."""
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool = True
    gpus: int = 1
    tensor_parallel: int = 1
    speculation: Speculation | None = None
    offload: Offload | None = None

    @property
    def kv_copies(self) -> int:
        """Number of GPUs that store the same KV."""
        return self.model.kv_copies(self.tensor_parallel)

    @property
    def layout(self) -> CacheLayout:
        """The KV cache groups."""
        drafts = self.speculation.drafts if self.speculation is not None else 0
        return layout_of(self.model, self.tensor_parallel, self.block_size, drafts)

    @property
    def kv_tokens(self) -> int:
        """The tokens of the longest contexts that fit the pool."""
        return self.layout.tokens(self.num_blocks, self.max_model_len, self.max_num_batched_tokens)

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's keys and values on all GPUs together."""
        return self.model.kv_bytes_per_token * self.kv_copies

    @property
    def swap_token_s(self) -> float | None:
        """Seconds to load one token's KV from DRAM to the GPUs; None: there is no tier."""
        if self.offload is None:
            return None
        return self.kv_token_bytes / (self.offload.dram.read_gb_s * self.gpus * GB)

    @property
    def ssd_token_s(self) -> float:
        """Seconds to load one token's KV from the SSD to DRAM; 0.0: there is no SSD."""
        ssd = self.offload.ssd if self.offload is not None else None
        return self.kv_token_bytes / (ssd.read_gb_s * self.gpus * GB) if ssd is not None else 0.0


def decode_of(config: EngineConfig, times: StepTimes) -> DecodeLine | None:
    """Return the fitted time of a decode step by the tokens of its batch, from the profile or from the tables."""
    return fit_decode(times) if config.profile is None else read_profile(Path(config.profile)).decode_line


def times_of(config: EngineConfig) -> StepTimes:
    if config.profile is not None:
        if config.speculation is not None:
            raise EngineError("--speculative and --profile: a profile has the steps as its server took them")
        return ProfileStepTimes(read_profile(Path(config.profile)))
    times = load_step_times(
        config.gpu, config.model, config.tp, config.step_overhead_ms, config.vllm, config.step_times
    )
    model = find_model(config.model)
    if config.speculation is not None:
        times = SpeculativeStepTimes(times, config.speculation, draft_share(model))
    return staged(times, model.layers, config.pp, config.chunk_tokens)


def capacity_of(config: EngineConfig) -> KvCapacity:
    """The KV that fits the GPUs of one engine.

    Raises:
        StepTimesError: as ``kv_capacity``.
    """
    return kv_capacity(
        config.gpu,
        config.model,
        config.tp,
        config.gpu_memory_utilization,
        config.block_size,
        stages=config.pp,
    )


def shape_of(config: EngineConfig) -> EngineShape:
    if config.router not in ROUTERS:
        raise EngineError(f"router = {config.router}: {which(config.router, ROUTERS)}")
    model = find_model(config.model)
    blocks, longest = config.kv_blocks, config.max_model_len or model.max_context_tokens
    if config.profile is not None:
        profile = read_profile(Path(config.profile))
        longest = min(longest, max(point.tokens for point in profile.prefill_points))
        if blocks is None and profile.kv_tokens is not None:
            layout = layout_of(model, config.tp, config.block_size)
            blocks = layout.pool(profile.kv_tokens, longest, config.chunk_tokens)
    if blocks is None:
        blocks = capacity_of(config).num_blocks
    if blocks < 2:
        raise EngineError(f"kv_blocks = {blocks}: must be at least 2")
    if config.chunk_tokens < config.max_num_seqs:
        raise EngineError(
            f"chunk_tokens = {config.chunk_tokens} is below max_num_seqs = {config.max_num_seqs}: every running "
            "request needs a token of each step"
        )
    return EngineShape(
        model=model,
        max_model_len=longest,
        num_blocks=blocks,
        block_size=config.block_size,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.chunk_tokens * config.pp,
        prefix_caching=config.prefix_caching,
        gpus=config.tp * config.pp,
        tensor_parallel=config.tp,
        speculation=config.speculation,
        offload=config.offload,
    )


def check_programs(programs: Iterable[Program], config: EngineConfig, shape: EngineShape) -> None:
    """Check that every turn fits the longest request and the pool, of which vLLM reserves one block.

    Raises:
        EngineError: one does not.
    """
    layout, most = shape.layout, shape.num_blocks - 1
    for program in programs:
        for index, (turn, prompt) in enumerate(zip(program.turns, program.prompt_tokens(), strict=True)):
            tokens = prompt + turn.output_tokens
            wanted = layout.blocks(tokens, shape.max_num_batched_tokens)
            if tokens <= shape.max_model_len and wanted <= most:
                continue
            longest = "the model's context" if config.profile is None else "the longest prompt of the profile"
            limit = f"{longest} of {shape.max_model_len}"
            if tokens <= shape.max_model_len:
                limit = f"the KV pool of {most * layout.block_size}"
                if len(layout.kinds) > 1:
                    limit = f"the KV pool: {wanted} blocks of {most}"
            raise EngineError(f"program {program.program_id!r}, turn {index}: {tokens} tokens do not fit {limit}")
