"""Build the committed tables from ``aiconfigurator-core``'s measurements.

    python -m continuum_server.step_times.build --out server_patch/continuum_server/step_times/tables

needs the extra ``step-times-build``. The package knows nothing of memory and extrapolates in silence; the grids below
stay inside what it measured for single prompts (131,072 tokens) and what fits a step.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from continuum_server.step_times.model import StepTimesError
from continuum_server.step_times.table import FORMAT, log_grid

PACKAGE = "aiconfigurator-core"
PACKAGE_VERSION = "0.12.0"
MODELS = {
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
}
SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "h100-80gb": "h100_sxm",
    "h200-141gb": "h200_sxm",
    "b200-180gb": "b200_sxm",
}
TENSOR_PARALLEL = (1, 2, 4, 8)

SHARED = log_grid(1, 131072, 72)
CHUNKS = log_grid(1, 131072, 60)
PREFIXES = (0, *log_grid(64, 131072, 27))
BATCHES = tuple(sorted({*range(1, 9), *log_grid(8, 512, 25)}))
CONTEXTS = log_grid(16, 131072, 34)


def build_table(model: str, gpu: str, tensor_parallel: int) -> dict[str, Any]:
    """One pair's table, ready for JSON. Times in ms, 5 significant digits."""
    handle = _handle(model, gpu, tensor_parallel)
    shared = {n: float(handle.mixed_step_breakdown(n, 0, n, 2)[1]) for n in {*SHARED, *CHUNKS, *BATCHES}}
    return {
        "format": FORMAT,
        "model": model,
        "gpu": gpu,
        "tensor_parallel": tensor_parallel,
        "source": f"NVIDIA {PACKAGE} measured kernel times, system {SYSTEMS[gpu]}, backend vllm",
        "version": version(PACKAGE),
        "licence": "Apache-2.0",
        "shared_tokens": SHARED,
        "shared_ms": [_digits(shared[n]) for n in SHARED],
        "chunk_tokens": CHUNKS,
        "chunk_prefix_tokens": PREFIXES,
        "chunk_attention_ms": [
            [_digits(max(0.0, handle.predict_prefill_latency(1, p + c, p) - shared[c])) for p in PREFIXES]
            for c in CHUNKS
        ],
        "decode_batch": BATCHES,
        "decode_context_tokens": CONTEXTS,
        "decode_attention_ms": [
            [_digits(max(0.0, handle.predict_decode_latency(b, n, 2) - shared[b])) for n in CONTEXTS] for b in BATCHES
        ],
    }


def _handle(model: str, gpu: str, tensor_parallel: int) -> Any:
    try:
        engine = importlib.import_module("aiconfigurator_core.sdk.engine")
    except ImportError as error:
        raise StepTimesError(f"building tables needs {PACKAGE}=={PACKAGE_VERSION}; pip install it") from error
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    return engine.EngineHandle.compile(
        MODELS[model],
        SYSTEMS[gpu],
        "vllm",
        tp_size=tensor_parallel,
        moe_tp_size=tensor_parallel,
        moe_ep_size=1,
    )


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


def pairs() -> Iterator[tuple[str, str, int]]:
    for model in MODELS:
        for gpu in SYSTEMS:
            for tensor_parallel in TENSOR_PARALLEL:
                yield model, gpu, tensor_parallel


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the step-time tables.")
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for model, gpu, tensor_parallel in pairs():
        file = out / f"{gpu}_{model}_tp{tensor_parallel}.json"
        file.write_text(json.dumps(build_table(model, gpu, tensor_parallel), separators=(",", ":")) + "\n")
        sys.stderr.write(f"wrote {file.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
