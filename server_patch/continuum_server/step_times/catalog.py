"""GPUs and models by name, step times for a pair, and how many tokens of KV fit (continuum_server.step_times).

Measured tables where NVIDIA's aiconfigurator has silicon data (A100, H100, H200, B200 x Llama-3.1-8B, 70B); elsewhere a
roofline, and it says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from continuum_server.step_times.model import Provenance, StepTimes, UnknownPair
from continuum_server.step_times.roofline import RooflineStepTimes
from continuum_server.step_times.specs import GPUS, MODELS, Gpu, Model
from continuum_server.step_times.table import TableStepTimes, table_from_json

GIB = 1024**3
DEFAULT_RESERVED_GIB = 2.5
"""Activations at a 2,048-token chunk, CUDA graphs, NCCL and the driver: an assumption; vLLM measures its own."""


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """How much KV fits, and the arithmetic behind it. Per replica, all tensor-parallel ranks together."""

    num_blocks: int
    tokens: int
    block_size: int
    bytes_per_token: int
    weight_bytes: int
    memory_bytes: int
    utilization: float
    reserved_bytes: int


def find_gpu(name: str) -> Gpu:
    """The GPU of that name or alias, case ignored."""
    key = name.lower().replace("_", "-")
    for gpu in GPUS:
        if key in (gpu.name, *gpu.aliases):
            return gpu
    raise UnknownPair(f"unknown GPU {name!r}; there are: {', '.join(gpu.name for gpu in GPUS)}")


def find_model(name: str) -> Model:
    """The model of that name or alias; a ``vendor/`` in front and a ``-Instruct`` behind are ignored."""
    key = name.lower().rsplit("/", 1)[-1].removeprefix("meta-").removesuffix("-instruct").removesuffix("-it")
    for model in MODELS:
        if key in (model.name, *model.aliases):
            return model
    raise UnknownPair(f"unknown model {name!r}; there are: {', '.join(model.name for model in MODELS)}")


def available() -> list[Provenance]:
    """Every pair and where its times come from, measured tables first."""
    measured = [_measured(gpu, model, tp) for gpu in GPUS for model in MODELS for tp in (1, 2, 4, 8)]
    found = [times.provenance for times in measured if times is not None]
    tables = {(p.gpu, p.model) for p in found}
    modelled = [
        RooflineStepTimes(gpu, model, 1, 1.0).provenance
        for gpu in GPUS
        for model in MODELS
        if (gpu.name, model.name) not in tables
    ]
    return found + modelled


def load_step_times(gpu: str, model: str, tensor_parallel: int = 1, step_overhead_ms: float = 1.0) -> StepTimes:
    """Step times of a pair.

    Raises:
        UnknownPair: no such GPU, model or degree; the message lists what exists.
    """
    found_gpu, found_model = find_gpu(gpu), find_model(model)
    if tensor_parallel not in (1, 2, 4, 8):
        raise UnknownPair(f"tensor parallel {tensor_parallel}; there are: 1, 2, 4, 8")
    measured = _measured(found_gpu, found_model, tensor_parallel, step_overhead_ms)
    return measured or RooflineStepTimes(found_gpu, found_model, tensor_parallel, step_overhead_ms)


def _measured(gpu: Gpu, model: Model, tensor_parallel: int, step_overhead_ms: float = 1.0) -> TableStepTimes | None:
    table = files("continuum_server.step_times") / "tables" / f"{gpu.name}_{model.name}_tp{tensor_parallel}.json"
    if not table.is_file():
        return None
    data = json.loads(table.read_text(encoding="utf-8"))
    provenance = Provenance(
        kind="measured-table",
        source=data["source"],
        version=data["version"],
        licence=data["licence"],
        gpu=gpu.name,
        model=model.name,
        tensor_parallel=tensor_parallel,
        step_overhead_ms=step_overhead_ms,
        notes="sums of measured kernels, no scheduler, sampling or launch gaps; docs/results/step-times.md",
    )
    return TableStepTimes(table_from_json(data), provenance)


def kv_capacity(
    gpu: str,
    model: str,
    tensor_parallel: int = 1,
    utilization: float = 0.9,
    block_size: int = 16,
    reserved_gib: float = DEFAULT_RESERVED_GIB,
) -> KvCapacity:
    """KV blocks that fit beside the weights: memory * utilization - weights - reserved, per GPU.

    Raises:
        UnknownPair: the weights alone do not fit.
    """
    found_gpu, found_model = find_gpu(gpu), find_model(model)
    memory = int(found_gpu.memory_gib * GIB)
    reserved = int(reserved_gib * GIB)
    room = (memory * utilization - reserved) * tensor_parallel - found_model.weight_bytes
    per_token = found_model.kv_bytes_per_token
    blocks = int(room // (per_token * block_size))
    if blocks < 1:
        raise UnknownPair(
            f"{found_model.name} does not fit {tensor_parallel} x {found_gpu.name}: weights are "
            f"{found_model.weight_bytes / GIB:.0f} GiB; use a larger --tp or GPU"
        )
    return KvCapacity(
        blocks,
        blocks * block_size,
        block_size,
        per_token,
        found_model.weight_bytes,
        memory,
        utilization,
        reserved,
    )
