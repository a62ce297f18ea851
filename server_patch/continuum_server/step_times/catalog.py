"""Find GPUs and models by name, the step times of a pair, and the number of tokens of KV that fit.

The most used pairs that NVIDIA's aiconfigurator measured have tables. Other pairs have a roofline model.
``Provenance.kind`` says which.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from continuum_traces.names import near

from continuum_server import defaults
from continuum_server.step_times.attention import BANDS, MixedAttention, kernel_of
from continuum_server.step_times.cache_groups import layout_of
from continuum_server.step_times.model import (
    DoesNotFit,
    OutOfRange,
    Provenance,
    StepTimes,
    StepTimesError,
    UnknownPair,
    check_range,
)
from continuum_server.step_times.overhead import Overhead, overhead_of
from continuum_server.step_times.roofline import RooflineStepTimes
from continuum_server.step_times.specs import EMBEDDING_BYTES, GPUS, MODELS, Gpu, Model
from continuum_server.step_times.stages import layers_of_stages
from continuum_server.step_times.table import SLOW_LINK, TableStepTimes, slow_link, table_from_json

GIB = 1024**3
TENSOR_PARALLEL = (1, 2, 4, 8)
RESERVED_GIB = 2.5
"""Memory of one GPU for activations, CUDA graphs, NCCL and the driver. An assumption: a real vLLM measures it."""
FP8_WITH_TABLES = ("llama-3.1-70b-fp8",)
FP8_KV = "+fp8-kv"
"""Suffix of a model's name for vLLM's ``--kv-cache-dtype fp8``."""
NVLINK_GB_S, PCIE_ROOFLINE_GPUS = 100, 2
"""Over PCIe the roofline was 2 to 7 times too fast on four and more GPUs (L40S), so it is offered for two at most."""


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """The size of the KV pool, and how it was computed. Blocks, tokens and weights are on all GPUs of one replica.

    Manifests contain it, because it is the largest single source of error of a modelled run.
    """

    num_blocks: int
    tokens: int
    block_size: int
    bytes_per_token: int
    """KV of the layers whose KV grows with the context, on all GPUs together."""
    bytes_per_block: int
    """On all GPUs together. A block has one group's layers."""
    weight_bytes: int
    memory_bytes: int
    """Memory of one GPU."""
    utilization: float
    reserved_bytes: int
    """Memory of one GPU that is used neither for weights nor for KV."""
    groups: str = "full"
    """The kinds of the KV cache groups. A context takes blocks of the pool in each of them."""
    kv_copies: int = 1
    """Number of GPUs with the same KV: above 1 with MLA, or with fewer KV heads than GPUs. ``bytes_per_token`` includes
    all copies."""


def find_gpu(name: str) -> Gpu:
    """Return the GPU with that name or alias. Case, ``_``, spaces and a leading ``nvidia`` do not matter.

    Raises:
        UnknownPair: there is no such GPU. The message lists the known GPUs.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    for gpu in GPUS:
        if key in (gpu.name, *gpu.aliases):
            return gpu
    names = {alias: gpu.name for gpu in GPUS for alias in (gpu.name, *gpu.aliases)}
    raise UnknownPair(_unknown("GPU", name, key, names))


def find_model(name: str) -> Model:
    """Return the model with that short name, alias or Hugging Face id. Case, ``-Instruct`` and ``-it`` do not matter.

    The suffix ``-fp8`` of a bf16 model's name means weights in fp8. The suffix ``+fp8-kv`` means KV in fp8.

    Raises:
        UnknownPair: there is no such model. The message lists similar names, and all known models.
    """
    key, fp8_kv, rest = name.strip().lower().rsplit("/", 1)[-1].partition(FP8_KV)
    for prefix in ("meta-", "nvidia-"):
        key = key.removeprefix(prefix)
    key = key.removesuffix("-dynamic")
    stem = key.removesuffix("-fp8")
    models = {alias: model for model in MODELS for alias in (model.name, *model.aliases)}
    model = models.get(_plain(key))
    base = models.get(_plain(stem))
    if model is None and base is not None and base.expert_bytes_each is None:
        model = base if base.weight_bytes_each == 1.0 else _variant(base, "-fp8", "fp8 weights", weight_bytes_each=1.0)
    if model is None or rest:
        names = {alias: model.name for alias, model in models.items()}
        raise UnknownPair(_unknown("model", name, _plain(stem), names))
    return _variant(model, FP8_KV, "fp8 KV", kv_bytes_each=1.0) if fp8_kv else model


def _variant(model: Model, suffix: str, note: str, **changed: float) -> Model:
    """Return the model with weights or KV of another size, and with the tables for this size."""
    notes = f"{note}; {model.notes}" if model.notes else note
    tables_of = model.tables_of + suffix if model.tables_of else ""
    return replace(model, name=model.name + suffix, tables_of=tables_of, notes=notes, **changed)  # type: ignore[arg-type]


def _plain(key: str) -> str:
    return key.removesuffix("-instruct").removesuffix("-it")


def _unknown(kind: str, name: str, key: str, names: Mapping[str, str]) -> str:
    """Return an error message with the unknown name, similar names, and all known names."""
    return (
        f"unknown {kind} {name!r}; {near(key, names.values(), 2)}there are: {', '.join(dict.fromkeys(names.values()))}"
    )


def available() -> list[Provenance]:
    """Return the provenance of every pair that has step times. Tables come first.

    Of the models in fp8, only those with tables are listed.
    """
    models = (*MODELS, *map(find_model, FP8_WITH_TABLES))
    triples = [(gpu, model, degree) for gpu in GPUS for model in models for degree in TENSOR_PARALLEL]
    every = [_load(*triple, overhead_of(None)) for triple in triples]
    pairs = [times.provenance for times in every if times is not None]
    return sorted(pairs, key=lambda provenance: provenance.kind == "roofline")


def load_step_times(
    gpu: str,
    model: str,
    tensor_parallel: int = 1,
    step_overhead_ms: float | None = defaults.STEP_OVERHEAD_MS,
    vllm: str | None = None,
    band: str = defaults.STEP_TIMES,
) -> StepTimes:
    """Return the step times of a pair: the measured table if there is one, else the roofline (``provenance.kind``).

    Args:
        step_overhead_ms: time added to every step; None: the overhead of the vLLM version.
        vllm: the vLLM version; None: the newest.
        band: ``low``, ``mid`` or ``high``: the estimate of attention times on GPUs such as the A100, for which there
            are no measurements of steps with both prompt chunks and decodes.

    Raises:
        UnknownPair: an unknown GPU, model or degree. The message lists the known ones.
        OutOfRange: a negative overhead.
        StepTimesError: an unknown band.
    """
    card, described = find_gpu(gpu), find_model(model)
    if tensor_parallel not in TENSOR_PARALLEL:
        raise UnknownPair(f"unknown tensor parallel degree {tensor_parallel}; there are: 1, 2, 4, 8")
    if step_overhead_ms is not None:
        check_range("step_overhead_ms", step_overhead_ms, 0, 1000)
    overhead = overhead_of(vllm) if step_overhead_ms is None else Overhead(step_overhead_ms)
    if band not in BANDS:
        raise StepTimesError(f"step times {band!r}; there are: {', '.join(BANDS)}")
    times = _load(card, described, tensor_parallel, overhead, band)
    if times is None:
        raise UnknownPair(
            f"no step times for {described.name} on {tensor_parallel} x {card.name}: no measurement, and over "
            f"PCIe the roofline holds for {PCIE_ROOFLINE_GPUS} GPUs at most; there are: 1, 2 GPUs"
        )
    return times


def table_name(gpu: str, model: Model, tensor_parallel: int) -> str:
    return f"{gpu}_{model.tables_of or model.name}_tp{tensor_parallel}.json"


def read_table(gpu: str, model: Model, tensor_parallel: int) -> Mapping[str, Any] | None:
    """Return the pair's table; None: there is none."""
    file = files(__package__) / "tables" / table_name(gpu, model, tensor_parallel)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def _load(
    gpu: Gpu, model: Model, tensor_parallel: int, overhead: Overhead, band: str = defaults.STEP_TIMES
) -> StepTimes | None:
    kernel = kernel_of(gpu, model)
    mixed = MixedAttention(kernel.tiles[band], model, tensor_parallel) if kernel.tiles else None
    stated = {
        "step_overhead_ms": overhead.step_ms,
        "request_overhead_ms": overhead.request_ms,
        "overhead": overhead.basis,
        "attention": f"{kernel.name}: {kernel.basis}",
        "band": band,
    }
    link = slow_link(gpu, model, tensor_parallel)
    table = read_table(gpu.name, model, tensor_parallel)
    if table is not None:
        provenance = _provenance(table, model, stated, SLOW_LINK if link else "")
        longest = model.max_context_tokens
        return TableStepTimes(table_from_json(table), provenance, mixed, link, kernel.one_launch, longest)
    if gpu.link_gb_s < NVLINK_GB_S and tensor_parallel > PCIE_ROOFLINE_GPUS:
        return None
    roofline = RooflineStepTimes(
        gpu, model, tensor_parallel, overhead.step_ms, request_overhead_ms=overhead.request_ms, mixed=mixed
    )
    roofline.provenance = replace(roofline.provenance, **stated)  # type: ignore[arg-type]
    return roofline


def _provenance(data: Mapping[str, Any], model: Model, stated: Mapping[str, Any], link: str) -> Provenance:
    measured = data["measured_up_to"]
    kernels = ", ".join(f"{name.removesuffix('_quant_mode')} {kind}" for name, kind in data.get("kernels", {}).items())
    notes = [
        f"sums of kernel times measured on vLLM {measured['vllm']}, {kernels or 'bf16'}; no scheduler, sampling or "
        f"launch gaps. Measured: prompts to {measured['prefill_tokens']} tokens, multiplications to "
        f"{measured['gemm_tokens']}, decode to {measured['decode_kv_tokens']} tokens of KV in a batch; beyond that, "
        "and for chunks behind a prefix, the source's own formula",
        data.get("experts", ""),
        data.get("parts", ""),
        f"contexts beyond {data['decode_context_tokens'][-1]} tokens are extrapolated"
        if model.max_context_tokens > data["decode_context_tokens"][-1]
        else "",
        f"the table of {data['model']}, which has the same geometry" if data["model"] != model.name else "",
        link,
    ]
    return Provenance(
        kind="measured-table",
        source=data["source"],
        version=data["version"],
        licence=data["licence"],
        gpu=data["gpu"],
        model=model.name,
        tensor_parallel=data["tensor_parallel"],
        notes="; ".join(filter(None, notes)),
        **stated,
    )


def kv_capacity(
    gpu: str,
    model: str,
    tensor_parallel: int = 1,
    utilization: float = defaults.GPU_MEMORY_UTILIZATION,
    block_size: int = defaults.BLOCK_SIZE,
    stages: int = 1,
) -> KvCapacity:
    """Return the size of the KV pool: (memory x utilisation - reserved) x GPUs - weights, in blocks of one group.
    With pipeline stages, it is the pool of the stage with the least room.

    Weights are assumed to be divided evenly over the GPUs. KV heads are divided too. If there are fewer heads than
    GPUs, they are copied.

    Raises:
        UnknownPair: an unknown GPU or model.
        OutOfRange: a utilisation outside 0 to 1, or a block size below 1.
        DoesNotFit: the weights leave no room for KV.
    """
    card, described = find_gpu(gpu), find_model(model)
    check_range("tensor parallel degree", tensor_parallel, 1, 64)
    check_range("block size", block_size, 1, 4096)
    if not 0 < utilization <= 1:
        raise OutOfRange(f"utilisation = {utilization:g}; it must be above 0 and at most 1")
    memory, reserved = int(card.memory_gib * GIB), int(RESERVED_GIB * GIB)
    copies = described.kv_copies(tensor_parallel)
    layout = layout_of(described, tensor_parallel, block_size)
    stage_room = (memory * utilization - reserved) * tensor_parallel
    blocks = min(
        int((stage_room - weights) // (layout.block_bytes * share))
        for share, weights in _stage_weights(described, stages)
    )
    if blocks < 1:
        raise DoesNotFit(
            f"{described.name} does not fit {tensor_parallel * stages} x {card.name} at utilisation "
            f"{utilization:g}: weights {described.weight_bytes / GIB:.1f} GiB, "
            f"{stage_room * stages / GIB:.1f} GiB for weights and KV; use more tensor parallelism, a larger "
            "GPU, or a higher utilisation"
        )
    return KvCapacity(
        num_blocks=blocks,
        tokens=layout.tokens(blocks, described.max_context_tokens),
        block_size=layout.block_size,
        bytes_per_token=described.kv_bytes_per_token * copies,
        bytes_per_block=layout.block_bytes,
        weight_bytes=described.weight_bytes,
        memory_bytes=memory,
        utilization=utilization,
        reserved_bytes=reserved,
        groups=", ".join(layout.kinds),
        kv_copies=copies,
    )


def _stage_weights(model: Model, stages: int) -> list[tuple[float, float]]:
    """Of each pipeline stage: its share of the layers, and the bytes of its weights. The first has the embeddings, the
    last the output layer; layers count as equal."""
    if stages == 1:
        return [(1.0, model.weight_bytes)]
    shares = [layers / model.layers for layers in layers_of_stages(model.layers, stages)]
    weights = [(model.layer_bytes + model.expert_bytes) * share for share in shares]
    weights[0] += EMBEDDING_BYTES * (model.head_parameters + model.extra_parameters)
    weights[-1] += EMBEDDING_BYTES * model.head_parameters
    return list(zip(shares, weights, strict=True))
