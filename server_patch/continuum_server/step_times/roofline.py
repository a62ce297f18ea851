"""Step times modelled from a GPU's peaks and a model's byte counts, for pairs without measurements.

A step's time is the sum of five parts. (1) Matrix multiplications take two times that overlap in part: arithmetic at a
share of the peak, and reading the weights at a share of the bandwidth. (2) Routed experts take both times, one after
the other; where the experts' kernels were measured, the longer one (``MEASURED_EXPERTS``). Only experts that the
tokens visit are read. (3) Each layer adds a fixed time. (4) On several GPUs each layer adds two all-reduces. (5)
Attention takes arithmetic for prompt chunks, and reading of KV for decoding requests. A gated delta net takes the
arithmetic of its chunked form, and reads and writes the state of each request once a step. With an indexer, attention
takes the chosen tokens only, and the indexer arithmetic and reading for all.

The seven constants are fitted to the measured Llama tables of A100, H100, H200 and B200 (``python
benchmarks/step_times_check.py --fit``). docs/results/trust.md has the errors on these GPUs and on the L40S, which
was not used in the fit. Three cards have constants of their own (``MEASURED_SHARES``), and four have those of one of
these (``SIMILAR``). For other models the error is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec
import numpy as np

from continuum_server.step_times.attention import MixedAttention
from continuum_server.step_times.model import CHUNK_SLACK_TOKENS, PrefillChunk, Provenance, StepTimes, check_range
from continuum_server.step_times.specs import EMBEDDING_BYTES, Gpu, Model

MAX_BATCH = 512


@dataclass(frozen=True, slots=True)
class Shares:
    """The shares of the data sheet's numbers that a real step reaches."""

    matmul: float = 0.76
    """Share of peak arithmetic that matrix multiplications reach."""
    attention: float = 0.57
    """Share of peak arithmetic that the attention of prompt chunks reaches."""
    bandwidth: float = 0.84
    """Share of memory bandwidth."""
    layer_us: float = 36.0
    """Time of a layer's norms, rotations and copies in any batch."""
    link: float = 0.48
    """Share of the link's bandwidth that all-reduces reach."""
    all_reduce_us: float = 9.7
    """Time of an all-reduce of hardly any bytes."""
    power: float = 1.5
    """Matrix multiplications overlap arithmetic and reading in part: they take (a^power + r^power)^(1/power)."""


EXPERTS_SHARE = 0.5
"""Rate of routed experts' matrix multiplications, as a share of other matrix multiplications' rate. It is fitted to the
tables of Qwen3-30B-A3B, Qwen3-235B-A22B and gpt-oss: the mean error is 8% for the first two, 15% and 16% for gpt-oss.
"""
PROFILE_SOURCE = "kernel times of vLLM 0.19 in casys-kaist/LLMServingSim @ 5daddb2 (MIT)"
MEASURED_SHARES = msgspec.json.decode(files(__package__).joinpath("shares.json").read_bytes(), type=dict[str, Shares])
"""Fitted to decode steps and to steps of 1 to 2,048 tokens without attention. RTX PRO 6000 and RTX 4090: those of
``PROFILE_SOURCE`` (Llama-3.1-8B, and on the first Qwen3-32B); without attention the mean error is 3% and 4%, the
largest 9% and 14%, where kernels change. L40S: the committed tables of Llama-3.1-8B and Qwen3-8B; mean error 4%,
largest 17%. Communication is in none of them: that of the RTX PRO 6000 is from ``table.slow_link``.
"""


@dataclass(frozen=True, slots=True)
class Experts:
    """How routed experts differ from other matrix multiplications, beside ``EXPERTS_SHARE``."""

    bandwidth: float = 1.0
    """Bandwidth of reading their weights, as a share of other weights' bandwidth."""
    layer_us: float = 0.0
    """Time of a layer's routing in any batch."""
    token_us: float = 0.0
    """Time of a layer's sorting and summing for each token."""
    overlap: bool = False
    """Whether reading and arithmetic overlap."""
    decay: float = 0.0
    """How unevenly tokens choose experts: their use falls off exponentially by this exponent from the first to the last
    expert of a layer; 0: evenly."""

    def visited(self, model: Model, tokens: int) -> float:
        """Return the share of a layer's experts that these tokens visit, in the mean."""
        uses = np.exp(-self.decay * (np.arange(model.experts) + 0.5) / model.experts)
        chosen = np.minimum(model.experts_used * uses / uses.sum(), 1.0)
        return float(np.mean(1.0 - (1.0 - chosen) ** tokens))


MEASURED_EXPERTS = {
    ("rtx-pro-6000", "qwen3-30b-a3b"): Experts(1.09, layer_us=32.7, token_us=0.124, overlap=True, decay=4.39)
}
"""By GPU and model. Fitted to kernels with 2 to 2,048 tokens in ``PROFILE_SOURCE`` (``benchmarks/validation.py experts
--fit``); largest error 3%. Larger steps are extrapolated. The decay is from routing of the same model over prose, code
and mathematics, where 51% of the experts take 90% of the tokens (handbook of mcp-tool-shop-org/gpu-container, "Routing
De-risk"); its concentration, 1 less the normalized entropy, is 0.112, and 0.111 in the source.
"""
SIMILAR = {"rtx-3090": "rtx-4090", "rtx-a5000": "l40s", "a10g": "l40s", "l4": "l40s"}
"""The measured card whose shares are used for a card without measurements. One is a consumer card, the other has error
correction in its GDDR6 memory."""


class RooflineStepTimes(StepTimes):
    """``StepTimes`` from a GPU's data sheet and a model's geometry.

    Args:
        gpu: one of ``specs.GPUS``.
        model: one of ``specs.MODELS``.
        tensor_parallel: number of GPUs, over which weights, KV and arithmetic are divided evenly.
        step_overhead_ms: time added to every step.
        shares: the constants; None: the GPU's own constants if it has some, else the general ones.
        request_overhead_ms: time added to every step for each of its requests.
        mixed: attention in steps with chunks; None: the sum of arithmetic and reading of each chunk.
        experts: the constants of routed experts; None: the pair's own if it has some, else the general ones.
    """

    def __init__(
        self,
        gpu: Gpu,
        model: Model,
        tensor_parallel: int,
        step_overhead_ms: float,
        shares: Shares | None = None,
        request_overhead_ms: float = 0.0,
        mixed: MixedAttention | None = None,
        experts: Experts | None = None,
    ) -> None:
        shares = shares or MEASURED_SHARES.get(SIMILAR.get(gpu.name, gpu.name)) or Shares()
        self._model, self._mixed, self._request_s = model, mixed, request_overhead_ms / 1e3
        self._experts = experts or MEASURED_EXPERTS.get((gpu.name, model.tables_of or model.name)) or Experts()
        peak = gpu.fp8_tflops if model.weight_bytes_each == 1.0 else gpu.bf16_tflops
        self._matmul_flops_s = peak * 1e12 * shares.matmul * tensor_parallel
        self._expert_flops_s = self._matmul_flops_s * EXPERTS_SHARE
        self._bytes_s = gpu.bandwidth_tb_s * 1e12 * shares.bandwidth * tensor_parallel
        attention_flops_s = gpu.bf16_tflops * 1e12 * shares.attention * tensor_parallel
        self._pair_s = 2 * model.query_heads * (2 * model.head_dim + model.rope_head_dim) / attention_flops_s
        self._context_s = model.kv_bytes_per_layer_token * model.kv_copies(tensor_parallel) / self._bytes_s
        # MLA: a decode step multiplies compressed vectors, and a chunk first expands the vectors of its prefix
        latent = 2 * model.kv_lora_rank + model.rope_head_dim
        self._decode_context_s = max(self._context_s, 2 * model.query_heads * latent / attention_flops_s)
        self._expansion_s = 2 * model.layers * model.expansion_parameters / self._matmul_flops_s
        self._growing = model.full_layers
        self._pairs_of = model.indexer.top_k if model.indexer is not None else 0
        """Largest number of keys for a query of full attention; 0: all."""
        if model.indexer is not None:  # vLLM multiplies compressed vectors in chunks too, and each GPU has all indexers
            self._pair_s = 2 * model.query_heads * latent / attention_flops_s
            self._expansion_s = 0.0
            work = 2 * model.indexer.layers * model.indexer.heads * model.indexer.head_dim
            self._score_s = work / (gpu.fp8_tflops * 1e12 * shares.attention)
            self._key_s = model.indexer.layers * model.indexer.token_bytes * tensor_parallel / self._bytes_s
        self._state_s = 2 * model.state_layers * model.state_bytes_per_layer / self._bytes_s
        self._state_token_s = model.state_layers * _delta_flops(model) / attention_flops_s
        self._layers_s = step_overhead_ms / 1e3 + model.layers * shares.layer_us / 1e6
        self._all_reduce_token_s = 0.0
        if tensor_parallel > 1:
            self._layers_s += 2 * model.layers * shares.all_reduce_us / 1e6
            moved = 2 * 2 * model.hidden * (tensor_parallel - 1) / tensor_parallel
            self._all_reduce_token_s = 2 * model.layers * moved / (gpu.link_gb_s * 1e9 * shares.link)
        self._power = shares.power
        self._fixed_s = cache(self._compute_fixed_s)
        self.provenance = _provenance(gpu, model, tensor_parallel, step_overhead_ms, shares)

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        tokens, attention_s = decodes, 0.0
        if decodes:
            attention_s = self._decode_s(decodes, decode_context_tokens)
        for chunk in chunks:
            tokens += chunk.tokens
            attention_s += self._chunk_s(chunk)
        if self._mixed is not None and chunks:
            attention_s = self._mixed.ms(chunks, decodes, decode_context_tokens) / 1e3
        attention_s += self._states_s(chunks, decodes)
        return self._fixed_s(tokens, decodes + len(chunks)) + attention_s

    def decode_stretch_s(self, decodes: int, decode_context_tokens: int, steps: int) -> list[float]:
        fixed_s = self._fixed_s(decodes, decodes) + self._states_s((), decodes)
        contexts = range(decode_context_tokens, decode_context_tokens + steps * decodes, decodes)
        return [fixed_s + self._decode_s(decodes, context) for context in contexts]

    def _states_s(self, chunks: Sequence[PrefillChunk], decodes: int) -> float:
        """Return the time of recurrent layers: arithmetic of prompts' tokens, and each request's state in and out."""
        tokens = sum(chunk.tokens for chunk in chunks)
        return self._state_s * (decodes + len(chunks)) + self._state_token_s * tokens

    def _compute_fixed_s(self, tokens: int, sampled: int) -> float:
        """Return the time of a step without attention. ``sampled`` tokens (one per request) reach the output layer."""
        model = self._model
        check_range("tokens in a step", tokens, 1, model.max_context_tokens + MAX_BATCH)
        flops = 2 * (model.always_parameters * tokens + model.head_parameters * sampled)
        read = model.layer_bytes + EMBEDDING_BYTES * model.head_parameters
        overlapped = (flops / self._matmul_flops_s) ** self._power + (read / self._bytes_s) ** self._power
        seconds: float = overlapped ** (1.0 / self._power) + self._experts_s(tokens)
        return seconds + (self._layers_s + self._request_s * sampled + self._all_reduce_token_s * tokens)

    def _experts_s(self, tokens: int) -> float:
        """Return the time of routed experts: their routing, reading those that the tokens visit, and the arithmetic."""
        model, experts = self._model, self._experts
        if not model.experts:
            return 0.0
        used = model.experts_used / model.experts
        flops = 2 * model.expert_parameters * used * tokens
        read_s = model.expert_bytes * experts.visited(model, tokens) / (self._bytes_s * experts.bandwidth)
        multiply_s = flops / self._expert_flops_s
        routing_s = (model.layers - model.dense_layers) * (experts.layer_us + experts.token_us * tokens) / 1e6
        return routing_s + (max(read_s, multiply_s) if experts.overlap else read_s + multiply_s)

    def _decode_s(self, batch: int, context_sum: int) -> float:
        """Return the time to read the KV of every request once. Window layers read at most their window."""
        model, mean = self._model, context_sum / batch
        if not (batch <= MAX_BATCH and 1 <= mean <= model.max_context_tokens):
            check_range("decoding requests", batch, 1, MAX_BATCH)
            check_range("mean decode context", mean, 1, model.max_context_tokens)
        layer_tokens = self._growing * (batch * min(mean, self._pairs_of) if self._pairs_of else context_sum)
        if model.window_layers:
            layer_tokens += model.window_layers * batch * min(mean, model.window_tokens)
        seconds = layer_tokens * self._decode_context_s
        return seconds + context_sum * max(self._key_s, self._score_s) if self._pairs_of else seconds

    def _chunk_s(self, chunk: PrefillChunk) -> float:
        """Return the time of arithmetic for the query-key pairs of a causal chunk, or of reading its KV if longer."""
        tokens, prefix = chunk
        model = self._model
        check_range("chunk tokens", tokens, 1, model.max_context_tokens)
        check_range("prefix tokens", prefix, 0, model.max_context_tokens)
        check_range("prefix + chunk tokens", prefix + tokens, 1, model.max_context_tokens + CHUNK_SLACK_TOKENS)
        if self._pairs_of:
            chosen = self._growing * window_pairs(tokens, prefix, self._pairs_of) * self._pair_s
            scored = max(tokens * (prefix + tokens / 2) * self._score_s, (prefix + tokens) * self._key_s)
            return chosen + scored
        pairs = self._growing * tokens * (prefix + tokens / 2)
        read = self._growing * (prefix + tokens)
        if model.window_layers:
            pairs += model.window_layers * window_pairs(tokens, prefix, model.window_tokens)
            read += model.window_layers * min(prefix + tokens, model.window_tokens + tokens)
        return max(pairs * self._pair_s, read * self._context_s) + prefix * self._expansion_s


DELTA_CHUNK = 64
"""Tokens of a chunk in which the kernels of gated delta nets compute (flash-linear-attention, which vLLM has)."""


def _delta_flops(model: Model) -> int:
    """Return the arithmetic of one token in one gated delta net: within its chunk products of queries, keys, values and
    the inverse of the decay matrix, and three products with the state."""
    if model.delta is None:
        return 0
    dim = model.delta.head_dim
    return 2 * model.delta.value_heads * dim * (4 * DELTA_CHUNK + 3 * dim)


def window_pairs(tokens: int, prefix: int, window: int) -> float:
    """Return the number of query-key pairs of a causal chunk whose queries attend to the last ``window`` keys."""
    ramp = min(max(window - prefix, 0), tokens)
    return ramp * (prefix + ramp / 2) + (tokens - ramp) * window


def _provenance(gpu: Gpu, model: Model, tensor_parallel: int, step_overhead_ms: float, shares: Shares) -> Provenance:
    constants = (
        f"{shares.matmul:.0%} of peak in matrix multiplications, {shares.attention:.0%} in prompt attention, "
        f"{shares.bandwidth:.0%} of bandwidth, {shares.layer_us:g} us a layer"
    )
    if model.experts:
        constants += f", {EXPERTS_SHARE:.0%} of that rate in routed experts"
    if tensor_parallel > 1:
        constants += f", all-reduces at {shares.link:.0%} of the link and {shares.all_reduce_us:g} us"
    like = SIMILAR.get(gpu.name, gpu.name)
    source = "the committed tables" if like == "l40s" else PROFILE_SOURCE
    fitted = f"fitted to {like} in {source}" if shares is MEASURED_SHARES.get(like) else ""
    return Provenance(
        kind="roofline",
        source="modelled from data-sheet peaks and the model's geometry; no measurement of this pair",
        version="2",
        licence="Apache-2.0",
        gpu=gpu.name,
        model=model.name,
        tensor_parallel=tensor_parallel,
        step_overhead_ms=step_overhead_ms,
        notes="; ".join(filter(None, (constants, fitted, model.notes))),
    )
