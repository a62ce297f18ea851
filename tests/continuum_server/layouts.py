"""vLLM's scheduler with the KV cache groups of models that people run, and with a model that answers any token."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any
from unittest.mock import patch

import torch
from continuum_server.policy.facts import PrefillCurve
from continuum_server.virtual.config import EngineShape
from continuum_server.virtual.vllm_setup import _vllm_config
from continuum_server.vllm_plugin.plugin_settings import Settings
from continuum_server.vllm_plugin.scheduler import AsyncProgramScheduler, ProgramScheduler
from nano import NANO
from vllm.config import SpeculativeConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash, resolve_kv_cache_block_sizes
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

Specs = list[Any]
DENSE = None
"""Retention: a checkpoint at each block."""
LATEST = 0
"""Retention: a checkpoint at the end of the prompt only. vLLM's default since 0.29."""
DEFAULT = LATEST if "prefix_cache_retention_interval" in {field.name for field in fields(KVCacheConfig)} else DENSE
"""Before, a variable of the environment sets it."""


def _heads(size: int) -> dict[str, Any]:
    return {"block_size": size, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}


def _windows(size: int, window: int, count: int) -> Specs:
    full = FullAttentionSpec(**_heads(size))
    return [full, *[SlidingWindowSpec(**_heads(size), sliding_window=window)] * count]


def _states(size: int, count: int, draft_tokens: int) -> Specs:
    full = FullAttentionSpec(**_heads(size))
    half = (full.page_size_bytes // 4,)
    state = MambaSpec(
        block_size=size,
        shapes=(half,),
        dtypes=(torch.bfloat16,),
        mamba_cache_mode="align",
        num_speculative_blocks=draft_tokens,
        page_size_padded=full.page_size_bytes,
    )
    return [full, *[state] * count]


def _latent(size: int, window: int) -> Specs:
    of: dict[str, Any] = {**_heads(size), "num_kv_heads": 1}
    return [MLAAttentionSpec(**of), SlidingWindowMLASpec(**of, sliding_window=window)]


LAYOUTS: dict[str, Callable[[int], Specs]] = {
    "llama": lambda drafts: [FullAttentionSpec(**_heads(16))],
    "llama-4": lambda drafts: [
        FullAttentionSpec(**_heads(16)),
        *[ChunkedLocalAttentionSpec(**_heads(16), attention_chunk_size=512)] * 3,
    ],
    "gemma-3": lambda drafts: _windows(16, 256, 5),
    "gpt-oss": lambda drafts: _windows(16, 128, 1),
    "qwen3-next": lambda drafts: _states(64, 3, drafts),
    "window-mla": lambda drafts: _latent(16, 128),
    "mistral": lambda drafts: [SlidingWindowSpec(**_heads(16), sliding_window=128)],
}
"""Groups by the model whose kinds of attention they have, given the number of draft tokens. Windows and blocks are
smaller than the models' own."""
SPECULATIVE: dict[str, int] = {"none": 0, "ngram": 2, "mtp": 2}
"""Number of draft tokens by the method."""


class Engine:
    """A scheduler, and the outputs of steps that are in flight.

    Args:
        in_flight: steps that are scheduled before the first output arrives, minus one: 1 is asynchronous scheduling.
        accepts: called with the number of draft tokens of a request; returns how many are right.
        match_unit: vLLM's ``prefix_match_unit``: a hit may end at a multiple of it within a block.
    """

    def __init__(
        self,
        layout: str,
        retention: int | None = LATEST,
        speculative: str = "none",
        *,
        policy: str = "static-ttl",
        options: dict[str, Any] | None = None,
        blocks: int = 1000,
        chunk_tokens: int = 512,
        max_num_seqs: int = 8,
        in_flight: int = 0,
        accepts: Callable[[int], int] = lambda drafts: drafts // 2,
        flagged: bool = False,
        match_unit: int | None = None,
    ) -> None:
        drafts = SPECULATIVE[speculative]
        specs = LAYOUTS[layout](drafts)
        shape = EngineShape(NANO, 4096, blocks, specs[0].block_size, max_num_seqs, chunk_tokens)
        config = copy.deepcopy(_vllm_config(shape))
        given = {"ttl_s": 1e6} if policy == "static-ttl" and options is None else options or {}
        settings = Settings(policy, given, prefill=PrefillCurve(0.0, 1e-4, 0.01, "test"))
        config.additional_config = settings.to_config()
        config.scheduler_config.async_scheduling = bool(in_flight)
        if match_unit is not None:
            config.cache_config.prefix_match_unit = match_unit
        if any(isinstance(spec, MambaSpec) for spec in specs):
            config.cache_config.mamba_cache_mode = "align"
        if drafts:
            config.speculative_config = SpeculativeConfig(
                method="ngram",
                num_speculative_tokens=drafts,
                prompt_lookup_max=3,
                target_model_config=config.model_config,
                target_parallel_config=config.parallel_config,
            )
            config.speculative_config.method = "mtp" if speculative == "mtp" else "ngram"  # type: ignore[assignment]
        groups = [KVCacheGroupSpec([f"layer.{n}"], spec) for n, spec in enumerate(specs)]
        groups[0].is_eagle_group = flagged
        kv = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
        if layout == "llama" or (layout == "llama-4" and DEFAULT is DENSE):  # it has no checkpoints to retain
            retention = DEFAULT
        self.retention = retention
        if DEFAULT == LATEST:
            kv.prefix_cache_retention_interval = retention
        size, hash_size = resolve_kv_cache_block_sizes(kv, config)
        kind: Any = AsyncProgramScheduler if in_flight else ProgramScheduler
        before_029 = {} if retention is DENSE else {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": str(retention)}
        with patch.dict(os.environ, before_029 if DEFAULT is DENSE else {}):
            self.scheduler: Any = kind(config, kv, StructuredOutputManager(config), size, hash_size)
        self.now_s = 0.0
        self.scheduler.clock = lambda: self.now_s
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.free_at_start = self.pool.get_num_free_blocks()
        self._in_flight, self._accepts, self._drafts = in_flight, accepts, drafts
        self._steps: deque[tuple[SchedulerOutput, list[tuple[str, bool]]]] = deque()
        self._number, self._token = 0, 0
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(hash_size, sha256)
        self.hits: dict[str, int] = {}
        """Tokens found of each request when it first ran."""
        self.answers: dict[str, list[int]] = {}

    def add(self, program: str, prompt: Sequence[int], output: int = 8, **tags: Any) -> Request:
        self._number += 1
        params = SamplingParams(max_tokens=output, ignore_eos=True, extra_args={"program_id": program, **tags})
        request = Request(f"{program}/{self._number}", list(prompt), params, None, block_hasher=self._hasher)
        self.scheduler.add_request(request)
        return request

    def step(self) -> None:
        """Schedule a step, and deliver the output of the oldest one if enough are in flight."""
        self.now_s += 0.01
        output = self.scheduler.schedule()
        entered = [(each.req_id, each.num_computed_tokens) for each in output.scheduled_new_reqs]
        for request_id, found in entered:
            self.hits.setdefault(request_id, found)
        requests = self.scheduler.requests
        samples = [(name, not requests[name].is_prefill_chunk) for name in output.num_scheduled_tokens]
        self._steps.append((output, samples))
        if len(self._steps) > self._in_flight:
            self.deliver()

    def deliver(self) -> None:
        output, samples = self._steps.popleft()
        tokens = [self._answer(output, request_id) if sampled else [] for request_id, sampled in samples]
        names = [request_id for request_id, _ in samples]
        for request_id, new in zip(names, tokens, strict=True):
            self.answers.setdefault(request_id, []).extend(new)
        result = ModelRunnerOutput(names, {name: n for n, name in enumerate(names)}, tokens)
        self.scheduler.update_from_output(output, result)
        if self._drafts and not self._in_flight:
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, [[7] * self._drafts for _ in names]))

    def _answer(self, output: SchedulerOutput, request_id: str) -> list[int]:
        drafts = len(output.scheduled_spec_decode_tokens.get(request_id, ()))
        count = 1 + (self._accepts(drafts) if drafts else 0)
        self._token += count
        return [1000 + (self._token + n) % 5000 for n in range(count)]

    def run(self) -> None:
        """Play all requests to their end."""
        for _ in range(20_000):
            if not self.scheduler.requests:
                return
            self.step()
        raise AssertionError("requests never end")

    def turn(self, program: str, prompt: Sequence[int], output: int = 8, **tags: Any) -> list[int]:
        """Play a request alone. Return its context: prompt and answer."""
        request = self.add(program, prompt, output, **tags)
        self.run()
        return [*prompt, *request.output_token_ids]

    def hit(self, program: str, prompt: Sequence[int]) -> int:
        """Play a turn of one token, and return the tokens that it found."""
        request = self.add(program, prompt, 1, is_last_step=1)
        self.run()
        return self.hits[request.request_id]

    def evict(self) -> None:
        """Use every free block once, as other requests would."""
        blocks = self.pool.get_new_blocks(self.pool.get_num_free_blocks())
        self.pool.free_blocks(blocks)

    def runs(self, program: str) -> bool:
        """Whether a request of the program is in the engine."""
        return any(request_id.startswith(f"{program}/") for request_id in self.scheduler.requests)

    def abort(self, request: Request) -> None:
        self.scheduler.finish_requests([request.request_id], RequestStatus.FINISHED_ABORTED)

    def leaked(self) -> int:
        """Release what is held. Return the number of blocks that are still missing in the pool."""
        self.run()
        self.step()  # frees of steps in flight are late
        while self._steps:
            self.deliver()
        self.scheduler.release_all("shutdown")
        return int(self.free_at_start - self.pool.get_num_free_blocks())
