"""Step times from peaks and byte counts, for pairs nobody measured. Modelled, and labelled so.

A step takes the longer of its matrix multiplications at a share of peak and its bytes (weights once, KV of the decoding
requests) at a share of bandwidth, plus attention's own arithmetic. The two shares are what makes this formula meet the
measured Llama-3.1-8B table on an H100: docs/results/step-times.md gives the error.
"""

from __future__ import annotations

from collections.abc import Sequence

from continuum_server.step_times.model import OutOfRange, PrefillChunk, Provenance
from continuum_server.step_times.specs import Gpu, Model

COMPUTE_SHARE = 0.72
BANDWIDTH_SHARE = 0.80
MAX_BATCH = 512
TENSOR_PARALLEL_SHARE = {1: 1.0, 2: 0.85, 4: 0.72, 8: 0.55}
"""Of the ideal speed-up: what the measured Llama tables keep at 2, 4 and 8 GPUs, roughly."""


class RooflineStepTimes:
    def __init__(self, gpu: Gpu, model: Model, tensor_parallel: int, step_overhead_ms: float) -> None:
        self._model = model
        self._overhead_s = step_overhead_ms / 1e3
        scale = tensor_parallel * TENSOR_PARALLEL_SHARE[tensor_parallel]
        peak = gpu.fp8_tflops if model.weight_bytes_each == 1.0 else gpu.bf16_tflops
        self._gemm_flops = peak * 1e12 * COMPUTE_SHARE * scale
        self._attention_flops = gpu.bf16_tflops * 1e12 * COMPUTE_SHARE * scale / 2
        self._bytes_s = gpu.bandwidth_tb_s * 1e12 * BANDWIDTH_SHARE * scale
        self.provenance = Provenance(
            kind="roofline",
            source="roofline of data-sheet peaks; no measurement",
            version="1",
            licence="Apache-2.0",
            gpu=gpu.name,
            model=model.name,
            tensor_parallel=tensor_parallel,
            step_overhead_ms=step_overhead_ms,
            notes=f"{COMPUTE_SHARE:.0%} of peak, {BANDWIDTH_SHARE:.0%} of bandwidth. {model.notes}".strip(),
        )

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        model = self._model
        self._check(chunks, decodes, decode_context_tokens)
        tokens = decodes + sum(chunk.tokens for chunk in chunks)
        gemm_s = 2 * model.active_parameters * tokens / self._gemm_flops
        pairs = sum(chunk.tokens * (chunk.prefix_tokens + chunk.tokens / 2) for chunk in chunks)
        attention_s = 4 * model.kv_layers * model.query_heads * model.head_dim * pairs / self._attention_flops
        weights_s = self._weight_bytes(tokens) / self._bytes_s
        kv_s = decode_context_tokens * model.kv_bytes_per_token / self._bytes_s
        return max(gemm_s, weights_s) + attention_s + kv_s + self._overhead_s

    def _weight_bytes(self, tokens: int) -> float:
        """Weights read in a step: all of a dense model; of a mixture, more experts as tokens choose more."""
        model = self._model
        read = min(model.parameters, model.active_parameters * max(1, tokens))
        return read * model.weight_bytes_each

    def decode_stretch_s(self, decodes: int, decode_context_tokens: int, steps: int) -> list[float]:
        return [self.step_s((), decodes, decode_context_tokens + i * decodes) for i in range(steps)]

    def prefill_s(self, tokens: int, prefix_tokens: int = 0) -> float:
        return self.step_s((PrefillChunk(tokens, prefix_tokens),), 0, 0)

    def _check(self, chunks: Sequence[PrefillChunk], decodes: int, context: int) -> None:
        limit = self._model.max_context_tokens
        longest = max((chunk.prefix_tokens + chunk.tokens for chunk in chunks), default=0)
        if longest > 2 * limit:
            raise OutOfRange(f"prefill up to {longest} tokens; this model covers 0 to {2 * limit}")
        if decodes > MAX_BATCH:
            raise OutOfRange(f"decoding requests = {decodes}; these step times cover 0 to {MAX_BATCH}")
        if decodes and context / decodes > limit:
            raise OutOfRange(f"mean decode context = {context / decodes:g}; this model covers 1 to {limit}")
