"""Compares our step times with end-to-end measurements that ``aiconfigurator-core`` ships.

Its ``systems/silicon_sample.csv`` has the time to first token and the time per output token of real servers under a
closed loop of ``batch_size`` clients. We repeat that loop with a plain scheduler (decodes first, then prompts in
chunks) and compare the time per output token. The time to first token is not compared: it depends on how the clients
started.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from statistics import fmean

from continuum_server.step_times.model import PrefillChunk, Provenance, StepTimes
from continuum_server.step_times.table import FORMAT, Table, TableStepTimes, table_from_json
from step_times_build import build_grids, open_source

CHUNK_BUDGET_TOKENS = 8192
WAVES = 3
"""Requests of each client; a client's first request is not counted."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    prompt_tokens: int
    output_tokens: int
    clients: int
    tensor_parallel: int
    tpot_ms: float


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one server, and the package's names for it."""

    label: str
    system: str
    backend: str
    model_path: str
    precision: str
    """The precision in the rows; empty if the rows name none."""
    source_path: str
    """The package's name of the model."""
    quantisation: Mapping[str, str]
    backend_version: str = ""


LLAMA_8B, LLAMA_70B = "meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B"
FP8, FP8_BLOCK = {"gemm_quant_mode": "fp8"}, {"gemm_quant_mode": "fp8_block"}
GROUPS = (
    Group(
        "Llama-8B bf16, H100, TensorRT-LLM",
        "h100_sxm",
        "trtllm",
        "meta-llama/Llama-3.1-8B-Instruct",
        "",
        LLAMA_8B,
        {},
    ),
    Group("Qwen3-32B bf16, H100, vLLM 0.12", "h100_sxm", "vllm", "Qwen/Qwen3-32B", "", "Qwen/Qwen3-32B", {}, "0.12.0"),
    Group("Llama-70B fp8, H100, vLLM", "h100_sxm", "vllm", "meta-llama/Llama-3.1-70B", "fp8", LLAMA_70B, FP8),
    Group("Llama-70B fp8, H200, vLLM", "h200_sxm", "vllm", "meta-llama/Llama-3.1-70B", "fp8", LLAMA_70B, FP8),
    Group("Llama-70B fp8, B200, vLLM", "b200_sxm", "vllm", "meta-llama/Llama-3.1-70B", "fp8", LLAMA_70B, FP8),
    Group("Llama-70B fp8, H200, TensorRT-LLM", "h200_sxm", "trtllm", "meta-llama/Llama-3.1-70B", "fp8", LLAMA_70B, FP8),
    Group("Llama-70B fp8, B200, TensorRT-LLM", "b200_sxm", "trtllm", "meta-llama/Llama-3.1-70B", "fp8", LLAMA_70B, FP8),
    Group(
        "Llama-8B fp8, H200, SGLang",
        "h200_sxm",
        "sglang",
        "meta-llama/Llama-3.1-8B-Instruct",
        "fp8",
        LLAMA_8B,
        FP8_BLOCK,
    ),
    Group(
        "Llama-8B fp8, H200, vLLM 0.12 (prefix cache suspected)",
        "h200_sxm",
        "vllm",
        "nvidia/Llama-3.1-8B-Instruct-FP8",
        "fp8",
        LLAMA_8B,
        FP8,
    ),
)


def silicon_rows(group: Group) -> list[Row]:
    """Return the aggregated (not disaggregated) rows of a group."""
    sheet = files("aiconfigurator_core") / "systems" / "silicon_sample.csv"
    lines = sheet.read_text(encoding="utf-8").splitlines()
    return [_row(cells) for cells in csv.DictReader(lines) if _belongs(cells, group)]


def _belongs(cells: Mapping[str, str], group: Group) -> bool:
    return (
        cells["mode"] == "agg"
        and cells["system"] == group.system
        and cells["backend"] == group.backend
        and cells["model_path"] == group.model_path
        and cells["precision"] == group.precision
        and (not group.backend_version or cells["backend_version"] == group.backend_version)
    )


def _row(cells: Mapping[str, str]) -> Row:
    return Row(
        int(cells["isl"]),
        int(cells["osl"]),
        int(float(cells["batch_size"])),
        int(float(cells["tp_size"])),
        float(cells["silicon_tpot_ms"]),
    )


def table_of(group: Group, tensor_parallel: int) -> Table:
    """A table like the committed ones, at the group's precision."""
    source = open_source(group.source_path, group.system, tensor_parallel, **group.quantisation)
    return table_from_json({"format": FORMAT, **build_grids(source)})


@dataclass(slots=True)
class _Request:
    prompt_left: int
    prefix_tokens: int = 0
    output_left: int = 0
    first_token_s: float = 0.0
    counted: bool = False


def modelled_tpot_ms(times: StepTimes, row: Row) -> float:
    """Mean time per output token in a closed loop: each client sends its next request when its last one ends."""
    waiting: deque[_Request] = deque(_Request(row.prompt_tokens) for _ in range(row.clients))
    running: list[_Request] = []
    to_send, now_s, context = (WAVES - 1) * row.clients, 0.0, 0
    tpots_s: list[float] = []
    while running or waiting:
        chunks, ready = _fill(waiting, CHUNK_BUDGET_TOKENS - len(running))
        now_s += times.step_s(chunks, len(running), context)
        context += len(running)
        finished = _decode_one(running)
        for request in finished:
            context -= row.prompt_tokens + row.output_tokens
            if request.counted:
                tpots_s.append((now_s - request.first_token_s) / (row.output_tokens - 1))
            if to_send:
                to_send -= 1
                waiting.append(_Request(row.prompt_tokens, counted=True))
        for request in ready:
            request.first_token_s, request.output_left = now_s, row.output_tokens - 1
            context += row.prompt_tokens + 1
        running = [request for request in running if request.output_left] + ready
    return fmean(tpots_s) * 1e3


def _fill(waiting: deque[_Request], budget: int) -> tuple[list[PrefillChunk], list[_Request]]:
    """Prompt chunks that fill the step's budget, and the requests whose prompt ends in this step."""
    chunks: list[PrefillChunk] = []
    ready: list[_Request] = []
    while waiting and budget > 0:
        request = waiting[0]
        tokens = min(budget, request.prompt_left)
        chunks.append(PrefillChunk(tokens, request.prefix_tokens))
        budget -= tokens
        request.prefix_tokens += tokens
        request.prompt_left -= tokens
        if request.prompt_left:
            break
        ready.append(waiting.popleft())
    return chunks, ready


def _decode_one(running: list[_Request]) -> list[_Request]:
    for request in running:
        request.output_left -= 1
    return [request for request in running if not request.output_left]


def group_errors(group: Group, overheads_ms: Sequence[float]) -> list[tuple[Row, list[float]]]:
    """Each row with the relative errors of its modelled time per output token, one per step overhead."""
    rows = silicon_rows(group)
    tables = {degree: table_of(group, degree) for degree in {row.tensor_parallel for row in rows}}
    errors = []
    for row in rows:
        times = [_with_overhead(tables[row.tensor_parallel], overhead) for overhead in overheads_ms]
        errors.append((row, [modelled_tpot_ms(each, row) / row.tpot_ms - 1 for each in times]))
    return errors


def _with_overhead(table: Table, step_overhead_ms: float) -> StepTimes:
    return TableStepTimes(table, Provenance("measured-table", "", "", "", "", "", 1, step_overhead_ms))
