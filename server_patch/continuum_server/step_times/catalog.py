"""Finds GPUs and models by name, the step times of a pair, and how many tokens of KV fit.

Pairs that NVIDIA's aiconfigurator measured have tables (A100, H100, H200, B200, L40S with Llama-3.1-8B, 70B); other
pairs have a roofline model. ``Provenance.kind`` says which.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib.resources import files

from continuum_server import defaults
from continuum_server.step_times.attention import BANDS, KERNELS, UNKNOWN, MixedAttention
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
from continuum_server.step_times.specs import GPUS, MODELS, Gpu, Model
from continuum_server.step_times.table import TableStepTimes, table_from_json

GIB = 1024**3
TENSOR_PARALLEL = (1, 2, 4, 8)
DEFAULT_RESERVED_GIB = 2.5
"""Memory of one GPU for activations, CUDA graphs, NCCL and the driver. An assumption; a real vLLM measures it."""
NVLINK_GB_S, PCIE_ROOFLINE_GPUS = 100, 2
"""Over PCIe the roofline was 2 to 7 times too fast on four and more GPUs (L40S), so it is offered for two at most."""
WINDOW_REQUESTS = 16
"""Number of requests for whose sliding-window layers memory is set aside (Gemma). An assumption too."""


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """How much KV fits, and how that was computed. Blocks, tokens and weights are those of all GPUs of one replica.

    It is the largest single source of error of a modelled run, so manifests contain it.
    """

    num_blocks: int
    tokens: int
    block_size: int
    bytes_per_token: int
    weight_bytes: int
    memory_bytes: int
    """Of one GPU."""
    utilization: float
    reserved_bytes: int
    """Of one GPU: not weights, not KV."""
    window_bytes: int = 0
    """For the window layers of ``WINDOW_REQUESTS`` requests."""


def find_gpu(name: str) -> Gpu:
    """The GPU of that name or alias; case, ``_``, spaces and a leading ``nvidia`` do not matter.

    Raises:
        UnknownPair: listing what exists.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    for gpu in GPUS:
        if key in (gpu.name, *gpu.aliases):
            return gpu
    raise UnknownPair(f"unknown GPU {name!r}; there are: {', '.join(gpu.name for gpu in GPUS)}")


def find_model(name: str) -> Model:
    """The model of that name or alias; a ``vendor/`` in front and an ``-Instruct`` or ``-it`` behind do not matter.

    Raises:
        UnknownPair: listing what exists.
    """
    key = name.strip().lower().rsplit("/", 1)[-1].removeprefix("meta-").removesuffix("-instruct").removesuffix("-it")
    for model in MODELS:
        if key in (model.name, *model.aliases):
            return model
    raise UnknownPair(f"unknown model {name!r}; there are: {', '.join(model.name for model in MODELS)}")


def available() -> list[Provenance]:
    """The provenance of every pair that has step times; measured tables come first."""
    triples = [(gpu, model, degree) for gpu in GPUS for model in MODELS for degree in TENSOR_PARALLEL]
    every = [_load(*triple, overhead_of(None)) for triple in triples]
    found = [times.provenance for times in every if times is not None]
    return sorted(found, key=lambda provenance: provenance.kind != "measured-table")


def load_step_times(
    gpu: str,
    model: str,
    tensor_parallel: int = 1,
    step_overhead_ms: float | None = defaults.STEP_OVERHEAD_MS,
    vllm: str | None = None,
    band: str = defaults.STEP_TIMES,
) -> StepTimes:
    """Step times of a pair: the measured table if there is one, else the roofline (see ``provenance.kind``).

    Args:
        step_overhead_ms: added to every step; None: the overhead of the vLLM version.
        vllm: the version; None: the newest.
        band: low, mid or high: how long attention takes where no mixed step was measured.

    Raises:
        UnknownPair: no such GPU, model or degree; the message lists what exists.
        OutOfRange: a negative overhead.
        StepTimesError: no such band.
    """
    found_gpu, found_model = find_gpu(gpu), find_model(model)
    if tensor_parallel not in TENSOR_PARALLEL:
        raise UnknownPair(f"unknown tensor parallel degree {tensor_parallel}; there are: 1, 2, 4, 8")
    if step_overhead_ms is not None:
        check_range("step_overhead_ms", step_overhead_ms, 0, 1000)
    overhead = overhead_of(vllm) if step_overhead_ms is None else Overhead(step_overhead_ms)
    if band not in BANDS:
        raise StepTimesError(f"step times {band!r}; there are: {', '.join(BANDS)}")
    times = _load(found_gpu, found_model, tensor_parallel, overhead, band)
    if times is None:
        raise UnknownPair(
            f"no step times for {found_model.name} on {tensor_parallel} x {found_gpu.name}: no measurement, and over "
            f"PCIe the roofline holds for {PCIE_ROOFLINE_GPUS} GPUs at most; there are: 1, 2 GPUs"
        )
    return times


def _load(
    gpu: Gpu, model: Model, tensor_parallel: int, overhead: Overhead, band: str = defaults.STEP_TIMES
) -> StepTimes | None:
    kernel = KERNELS.get(gpu.name, UNKNOWN)
    mixed = MixedAttention(kernel.tiles[band], model, tensor_parallel) if kernel.tiles else None
    attention = f"{kernel.name}: {kernel.basis}"
    table = files(__package__) / "tables" / f"{gpu.name}_{model.name}_tp{tensor_parallel}.json"
    if not table.is_file():
        if gpu.link_gb_s < NVLINK_GB_S and tensor_parallel > PCIE_ROOFLINE_GPUS:
            return None
        roofline = RooflineStepTimes(
            gpu, model, tensor_parallel, overhead.step_ms, request_overhead_ms=overhead.request_ms, mixed=mixed
        )
        roofline.provenance = replace(
            roofline.provenance,
            request_overhead_ms=overhead.request_ms,
            overhead=overhead.basis,
            attention=attention,
            band=band,
        )
        return roofline
    data = json.loads(table.read_text(encoding="utf-8"))
    measured = data["measured_up_to"]
    provenance = Provenance(
        kind="measured-table",
        source=data["source"],
        version=data["version"],
        licence=data["licence"],
        gpu=gpu.name,
        model=model.name,
        tensor_parallel=tensor_parallel,
        step_overhead_ms=overhead.step_ms,
        request_overhead_ms=overhead.request_ms,
        overhead=overhead.basis,
        attention=attention,
        band=band,
        notes=(
            f"sums of kernel times measured on vLLM {measured['vllm']}, bf16; no scheduler, sampling or launch gaps. "
            f"Measured: prompts to {measured['prefill_tokens']} tokens, multiplications to {measured['gemm_tokens']}, "
            f"decode to {measured['decode_kv_tokens']} tokens of KV in a batch; beyond that, and for chunks behind a "
            "prefix, the source's own formula"
        ),
    )
    return TableStepTimes(table_from_json(data), provenance, mixed)


def kv_capacity(
    gpu: str,
    model: str,
    tensor_parallel: int = 1,
    utilization: float = defaults.GPU_MEMORY_UTILIZATION,
    block_size: int = defaults.BLOCK_SIZE,
    reserved_gib: float = DEFAULT_RESERVED_GIB,
) -> KvCapacity:
    """KV blocks that fit beside the weights: (memory x utilisation - reserved) x GPUs - weights - window layers.

    Weights and KV are assumed to divide evenly over the GPUs.

    Raises:
        UnknownPair: no such GPU or model.
        OutOfRange: a utilisation outside 0 to 1, a block size below 1.
        DoesNotFit: the weights leave no room.
    """
    found_gpu, found_model = find_gpu(gpu), find_model(model)
    _check_options(tensor_parallel, utilization, block_size, reserved_gib)
    memory, reserved = int(found_gpu.memory_gib * GIB), int(reserved_gib * GIB)
    window = WINDOW_REQUESTS * found_model.window_bytes_per_request
    room = (memory * utilization - reserved) * tensor_parallel - found_model.weight_bytes - window
    per_token = found_model.kv_bytes_per_token
    blocks = int(room // (per_token * block_size))
    if blocks < 1:
        raise DoesNotFit(
            f"{found_model.name} does not fit {tensor_parallel} x {found_gpu.name} at utilisation {utilization:g}: "
            f"weights {found_model.weight_bytes / GIB:.1f} GiB, {(room + found_model.weight_bytes) / GIB:.1f} GiB for "
            "weights and KV; use more tensor parallelism, a larger GPU, or a higher utilisation"
        )
    return KvCapacity(
        num_blocks=blocks,
        tokens=blocks * block_size,
        block_size=block_size,
        bytes_per_token=per_token,
        weight_bytes=found_model.weight_bytes,
        memory_bytes=memory,
        utilization=utilization,
        reserved_bytes=reserved,
        window_bytes=window,
    )


def _check_options(tensor_parallel: int, utilization: float, block_size: int, reserved_gib: float) -> None:
    check_range("tensor parallel degree", tensor_parallel, 1, 64)
    check_range("block size", block_size, 1, 1024)
    check_range("reserved GiB", reserved_gib, 0, 1024)
    if not 0 < utilization <= 1:
        raise OutOfRange(f"utilisation = {utilization:g}; it must be above 0 and at most 1")
