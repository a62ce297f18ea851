"""Build the committed tables of step times from the measurements in ``aiconfigurator-core``.

    pip install aiconfigurator-core==0.12.0
    python benchmarks/step_times_build.py --out server_patch/continuum_server/step_times/tables
    python benchmarks/step_times_build.py --out DIR --pair qwen3-8b h200 1    # only this pair

The package sums measured kernel times and interpolates between them. Beyond the largest measured shape it extrapolates
silently, so ``MEASURED`` states these shapes, and every table contains them. The package does not know the sizes of GPU
memories.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from continuum_server import step_times
from continuum_server.step_times.catalog import find_gpu, find_model, table_name
from continuum_server.step_times.hf_config import MODEL_TYPES, config_of
from continuum_server.step_times.model import Provenance, StepTimesError
from continuum_server.step_times.specs import MXFP4_BYTES, Model
from continuum_server.step_times.table import FORMAT, Table, TableStepTimes

PACKAGE = "aiconfigurator-core"
PACKAGE_VERSION = "0.12.0"
MODELS = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "qwen3.6-35b-a3b": "Qwen/Qwen3.5-35B-A3B",
    "qwen3.6-27b": "Qwen/Qwen3.5-27B",
    "qwen3.5-122b-a10b": "Qwen/Qwen3.5-122B-A10B",
    "deepseek-v3.1": "deepseek-ai/DeepSeek-V3",
    "deepseek-v3.2": "deepseek-ai/DeepSeek-V3.2",
}
"""The package's own names of models. It is given the config.json of the others."""
SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "h100-80gb": "h100_sxm",
    "h200-141gb": "h200_sxm",
    "b200-180gb": "b200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""The package's names of the GPUs that it measured."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The largest shapes in the package's files for a system."""

    vllm: str
    """The vLLM version whose kernels were measured."""
    gemm_tokens: int
    decode_head_tokens: int
    """Batch x context x query heads of one GPU in a decode step. A single context reaches an eighth of this number.

    The number of heads is rounded up to a power of two. A head counts half if its dimension is 64 instead of 128.
    """
    prefill_tokens: int = 16384
    """Tokens of one prompt without a prefix. Chunks behind a prefix were not measured."""
    decode_context_tokens: int = 131071


MEASURED = {
    **dict.fromkeys(SYSTEMS, Measured("0.24.0", 32768, 524280 * 32)),
    "a100-80gb": Measured("0.14.0", 8192, 262136 * 32),
}
EXPERT_TOKENS = 16384
"""Largest number of tokens for which the package's files contain mixtures of experts."""

LATENT_TOKENS = {"prefill_tokens": 32768, "decode_context_tokens": 131072, "decode_kv_tokens": 131072}
"""The same for MLA's attention, which was measured as a whole module. Of several decodes only some contexts were."""

TOLERANCE = 0.004
"""Largest relative distance between the line through two kept grid points and the source's values."""
MAX_BATCH = 512
LONGEST = 131072
PROBE_CONTEXTS = (16, 256, 1024, 4096, 8192, 12288, 16384, 32768, 98304)
PROBE_BATCHES = (1, 4, 16, 64, 66, 256)

Function = Callable[[int], Sequence[float]]


def build_table(model: Model, gpu: str, tensor_parallel: int) -> dict[str, Any]:
    """Return a pair's table as a JSON object.

    Raises:
        StepTimesError: the package is missing, has another version, or has no measurements of this pair.
    """
    source = open_pair(model, gpu, tensor_parallel)
    kernels = quantisation(model)
    grids = build_grids(source)
    doubts = implausible(grids)
    if doubts:
        raise StepTimesError(f"{model.name} on {tensor_parallel} x {gpu}: not credible: {doubts[0]}")
    return {
        "format": FORMAT,
        "model": model.name,
        "gpu": gpu,
        "tensor_parallel": tensor_parallel,
        "source": f"NVIDIA {PACKAGE} measured kernel times, system {SYSTEMS[gpu]}, backend vllm",
        "version": PACKAGE_VERSION,
        "licence": "Apache-2.0, Copyright NVIDIA CORPORATION & AFFILIATES",
        **({"kernels": kernels} if kernels else {}),
        **({"experts": EXPERT_BALANCE} if model.experts else {}),
        **({"parts": PARTS[kind]} if (kind := "mla" if model.kv_lora_rank else "delta" if model.delta else "") else {}),
        "measured_up_to": measured_up_to(model, gpu, tensor_parallel),
        **grids,
    }


PARTS = {
    "mla": "attention includes its projections, so a step with chunks and decodes counts reading their weights twice",
    "delta": "delta nets of chunks are counted without attention, as one sequence; decodes replace them by their own",
}
"""What differs from other models in how a step's time is divided into parts."""
OCTAVES = 3
"""Steps are compared with steps of 2 to this power as much work. Nearer ones may differ because kernels change."""
SLACK = 0.04
"""A step with so much more work may be faster by at most this share. Beyond, the values are not credible."""


def implausible(grids: dict[str, Any]) -> list[str]:
    """Return in which steps eight times the work takes less time, by more than ``SLACK``.

    Steps have 1, 2, 4 ... 512 decodes at contexts of 1K, 4K and 16K tokens, or one chunk of 16, 32, 64 ... tokens
    behind 0, 4K, 16K and 64K.
    """
    table = msgspec.convert(grids, Table)
    times = TableStepTimes(table, Provenance("measured-table", "", "", "", "", "", 1, 0.0))
    sizes = [1 << octave for octave in range(10)]
    steps = {f"decodes at {n} tokens": {b: times.step_s((), b, b * n) for b in sizes} for n in (1024, 4096, 16384)}
    for prefix in (0, 4096, 16384, 65536):
        steps[f"tokens behind {prefix}"] = {16 * b: times.prefill_s(16 * b, prefix) for b in sizes}
    return [
        f"{work} {what} in {seconds * 1e3:.1f} ms, {work << OCTAVES} in {taken[work << OCTAVES] * 1e3:.1f} ms"
        for what, taken in steps.items()
        for work, seconds in taken.items()
        if taken.get(work << OCTAVES, seconds) < seconds * (1.0 - SLACK)
    ]


EXPERT_BALANCE = "tokens per expert follow a power law with exponent 1.2; experts are split over the GPUs by width"


def quantisation(model: Model) -> dict[str, str]:
    """Return the package's names of the kernels for the model's weights and KV; empty: bf16 for all of them."""
    chosen = {}
    if model.weight_bytes_each == 1.0:
        chosen["gemm_quant_mode"] = "fp8"
    if model.experts and model.expert_bytes_each == MXFP4_BYTES:
        chosen["moe_quant_mode"] = "w4a16_mxfp4"
    elif model.experts and model.weight_bytes_each == 1.0:
        chosen["moe_quant_mode"] = "fp8"
    if model.kv_bytes_each == 1.0:
        chosen["kvcache_quant_mode"] = "fp8"
    if model.kv_lora_rank:  # DeepSeek's checkpoints have a scale for each block of weights
        chosen |= {"gemm_quant_mode": "fp8_block", "moe_quant_mode": "fp8_block"}
        chosen.setdefault("kvcache_quant_mode", "bfloat16")
    return chosen


def open_pair(model: Model, gpu: str, tensor_parallel: int) -> Any:
    """Return the package's engine for a pair.

    Raises:
        StepTimesError: the package does not cover the pair. The message says why.
    """
    if gpu not in SYSTEMS:
        raise StepTimesError(f"{PACKAGE} has no measurements of {gpu}; it has: {', '.join(SYSTEMS)}")
    if model.architecture not in MODEL_TYPES:
        raise StepTimesError(f"{model.name}: no tables for {model.architecture}, only for {', '.join(MODEL_TYPES)}")
    try:
        with TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config_of(model)), encoding="utf-8")
            path = MODELS.get(model.name.removesuffix("-fp8"), folder)
            source = open_source(path, SYSTEMS[gpu], tensor_parallel, **quantisation(model))
        chunk_attention_ms(source)(2048, 0)
        decode_attention_ms(source)(8, 4096)
    except StepTimesError:
        raise
    except Exception as error:  # the package raises various exceptions for a pair that it did not measure
        reason = " ".join(str(error).split())[:200]
        raise StepTimesError(f"no measurements of {model.name} on {tensor_parallel} x {gpu}: {reason}") from error
    return source


def build_grids(source: Any) -> dict[str, Any]:
    """Return the fields of ``Table``: grids, and times in ms with four significant digits."""
    shared, chunk, decode = shared_ms(source), chunk_attention_ms(source), decode_attention_ms(source)
    tokens = knots(_candidates(LONGEST + MAX_BATCH), lambda n: (shared(n),))
    batches = knots(range(1, MAX_BATCH + 1), lambda b: [decode(b, n) + shared(b) for n in PROBE_CONTEXTS])
    chunks, prefixes = log_grid(1, LONGEST, 54), (0, 1, *log_grid(16, LONGEST, 26))
    lengths = (*range(1, 16), *log_grid(16, LONGEST, 400))
    contexts = knots(lengths, lambda n: [decode(b, n) + shared(b) for b in PROBE_BATCHES])
    return {
        "shared_tokens": tokens,
        "shared_ms": [_digits(shared(n)) for n in tokens],
        "chunk_tokens": chunks,
        "chunk_prefix_tokens": prefixes,
        "chunk_attention_ms": [[_digits(chunk(c, p)) for p in prefixes] for c in chunks],
        "decode_batch": batches,
        "decode_context_tokens": contexts,
        "decode_attention_ms": [[_digits(decode(b, n)) for n in contexts] for b in batches],
    }


def measured_up_to(model: Model, gpu: str, tensor_parallel: int) -> dict[str, Any]:
    """Return the largest measured shapes in tokens, for a model's share on one GPU."""
    measured = MEASURED[gpu]
    if model.kv_lora_rank:
        return {"vllm": measured.vllm, "gemm_tokens": EXPERT_TOKENS, **LATENT_TOKENS}
    heads = 1 << (model.query_heads // tensor_parallel - 1).bit_length()
    batch_tokens = measured.decode_head_tokens * 128 // (heads * model.head_dim)
    return {
        "vllm": measured.vllm,
        "gemm_tokens": min(measured.gemm_tokens, EXPERT_TOKENS) if model.experts else measured.gemm_tokens,
        "prefill_tokens": measured.prefill_tokens,
        "decode_context_tokens": min(batch_tokens // 8, measured.decode_context_tokens),
        "decode_kv_tokens": batch_tokens,
    }


def open_source(path: str, system: str, tensor_parallel: int, **quantisation: str) -> Any:
    """Return the package's engine for a model and a system.

    Raises:
        StepTimesError: the package is missing, has another version, or does not cover the pair.
    """
    try:
        installed = version(PACKAGE)
        engine = importlib.import_module("aiconfigurator_core.sdk.engine")
    except (ImportError, PackageNotFoundError) as error:
        raise StepTimesError(f"building tables needs {PACKAGE}=={PACKAGE_VERSION}: pip install it") from error
    if installed != PACKAGE_VERSION:
        raise StepTimesError(f"building tables needs {PACKAGE}=={PACKAGE_VERSION}; {installed} is installed")
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    parallel = {"tp_size": tensor_parallel, "moe_tp_size": tensor_parallel, "moe_ep_size": 1}
    return engine.EngineHandle.compile(path, system, "vllm", **parallel, **quantisation)


def shared_ms(source: Any) -> Callable[[int], float]:
    """Return a function from a step's tokens to its time without attention."""
    return cache(lambda tokens: float(source.mixed_step_breakdown(tokens, 0, tokens, 2)[1]))


def chunk_attention_ms(source: Any) -> Callable[[int, int], float]:
    """Return a function from a chunk and its prefix to the attention time."""
    shared = shared_ms(source)
    # the package's input length includes the prefix
    return lambda c, p: max(0.0, float(source.predict_prefill_latency(1, p + c, p)) - shared(c))


def decode_attention_ms(source: Any) -> Callable[[int, int], float]:
    """Return a function from a batch and the context of each request to a decode step's attention time.

    It is negative where recurrent layers decode faster than they compute a chunk of as many tokens.
    """
    shared = shared_ms(source)
    return lambda b, n: float(source.predict_decode_latency(b, n, 2)) - shared(b)


def knots(candidates: Sequence[int], function: Function) -> tuple[int, ...]:
    """Choose grid points so that straight lines between them stay within ``TOLERANCE`` of the function.

    The choice is greedy: each line is as long as possible. Its end is found by doubling, then halving the distance.
    """
    values = [function(x) for x in candidates]
    kept, last = [0], len(candidates) - 1
    while kept[-1] < last:
        start, reach = kept[-1], 1
        while start + reach < last and _straight(candidates, values, start, min(start + 2 * reach, last)):
            reach *= 2
        reach = min(reach, last - start)
        step = reach // 2
        while step:
            end = start + reach + step
            if end <= last and _straight(candidates, values, start, end):
                reach += step
            step //= 2
        kept.append(start + reach)
    return tuple(candidates[i] for i in kept)


def _straight(xs: Sequence[int], rows: Sequence[Sequence[float]], start: int, end: int) -> bool:
    """Whether the line between two candidates is within ``TOLERANCE`` of all candidates between, in every column."""
    for i in range(start + 1, end):
        u = (xs[i] - xs[start]) / (xs[end] - xs[start])
        for low, high, true in zip(rows[start], rows[end], rows[i], strict=True):
            if abs(low + (high - low) * u - true) > TOLERANCE * true:
                return False
    return True


def _candidates(last: int) -> tuple[int, ...]:
    """Return every number to 1,024, every 64th to 8,192 and its successor, then numbers about 1% apart."""
    middle = {n + d for n in range(1024, 8193, 64) for d in (0, 1)}
    return tuple(sorted({*range(1, 1025), *middle, *log_grid(8192, last, 280)}))


def log_grid(first: int, last: int, points: int) -> tuple[int, ...]:
    """Return distinct integers that are evenly spaced in the logarithm, with both ends."""
    ratio = math.log(last / first)
    return tuple(sorted({round(first * math.exp(ratio * i / (points - 1))) for i in range(points)}))


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


def to_text(table: dict[str, Any]) -> str:
    """Return JSON with one line per field and per row, so that diffs are readable."""
    lines = []
    for name, value in table.items():
        if isinstance(value, (list, tuple)) and isinstance(value[0], (list, tuple)):
            rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in value)
            lines.append(f"{json.dumps(name)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def pairs() -> Iterator[tuple[str, str, int]]:
    """Yield the model, GPU and degree of every committed table."""
    for file in sorted(file.name for file in files(step_times).joinpath("tables").iterdir()):
        if file.endswith(".json"):
            gpu, model, degree = file.removesuffix(".json").split("_")
            yield model, gpu, int(degree.removeprefix("tp"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Build all committed step-time tables again, or one.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write into")
    parser.add_argument("--pair", nargs=3, metavar=("MODEL", "GPU", "TP"), help="build only this pair's table")
    arguments = parser.parse_args()
    out: Path = arguments.out
    for name, gpu, tensor_parallel in [arguments.pair] if arguments.pair else pairs():
        model, card, degree = find_model(name), find_gpu(gpu).name, int(tensor_parallel)
        table = to_text(build_table(model, card, degree))
        (out / table_name(card, model, degree)).write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
