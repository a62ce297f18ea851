"""Measured servers beside the model. docs/results/trust.md has the numbers that this prints.

    python benchmarks/validation.py [attention|dense|experts|steps|agents ...] [--data ../shared]
    python benchmarks/validation.py log --log LOG --gpu GPU

``attention``: the tile model of FlashAttention-2 against kernel times (``--fit``: fits its constants again).
``dense`` and ``experts`` (``--fit`` too): step times without attention against kernel times. ``steps``: decode steps of
servers on H100. ``agents``: real agents, one at a time and four at a time.
``log``: fits the step overhead and attention to the first half of a request log, and reports the second half.
The measurements are not in the repository; where they are missing, a line says so.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pandas as pd
from commands import show, tabular
from continuum_bench.request_logs.served import LoggedRun, Served
from continuum_server.step_times.attention import KERNELS, MixedAttention, TileModel
from continuum_server.step_times.catalog import find_gpu, find_model, load_step_times
from continuum_server.step_times.model import PrefillChunk, StepTimes
from continuum_server.step_times.roofline import MEASURED_EXPERTS, Experts, RooflineStepTimes, Shares
from continuum_server.step_times.specs import Model
from continuum_server.step_times.stages import StagedStepTimes
from continuum_server.virtual.config import EngineConfig
from logged_runs import fit_lines, numbers_of, play

PROFILES = (
    ("RTX PRO 6000", "rtx-pro-6000", "RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1", "llama-3.1-8b", 1),
    ("RTX PRO 6000", "rtx-pro-6000", "RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp2", "llama-3.1-8b", 2),
    ("RTX PRO 6000", "rtx-pro-6000", "RTXPRO6000/Qwen/Qwen3-32B/bf16/tp1", "qwen3-32b", 1),
    ("RTX PRO 6000", "rtx-pro-6000", "RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2", "qwen3-32b", 2),
    ("RTX PRO 6000", "rtx-pro-6000", "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16/tp1", "qwen3-30b-a3b", 1),
    ("RTX 4090", "rtx-4090", "RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1", "llama-3.1-8b", 1),
)
LARGEST_BATCH_TOKENS = 600_000
"""Of decodes in the rows that are used; larger batches fit no card of these."""
FIT_ROWS = 1500


@tabular("card", "model", "GPUs", "mixed steps", "median", "mean abs", "95% below", "chunks alone, mean abs")
def attention_lines(data: Path, again: bool) -> Iterator[Any]:
    tables = [(*profile, _attention_rows(data, profile[2])) for profile in PROFILES]
    tiles = {gpu: _tiles(gpu) for gpu in ("rtx-pro-6000", "rtx-4090")}
    if again:
        tiles = _fit_tiles(tables, tiles)
        yield from (f"{gpu}: {found}" for gpu, found in tiles.items())
    for card, gpu, _, model, degree, rows in tables:
        errors = _attention_errors(tiles[gpu], model, degree, rows)
        alone = np.abs(errors[np.asarray(rows.n_decode == 0)])
        size = np.abs(errors)
        sizes = f"{size.mean():.1%}", f"{np.quantile(size, 0.95):.0%}", f"{alone.mean():.1%}"
        yield card, model, degree, len(rows), f"{np.median(errors):+.1%}", *sizes


def _tiles(gpu: str) -> TileModel:
    tiles = KERNELS[gpu].tiles
    assert tiles is not None
    return tiles["mid"]


def _attention_rows(data: Path, folder: str) -> Any:
    rows = pd.read_csv(data / "validation/llmservingsim/profile" / folder / "attention.csv.gz")
    return rows[(rows.prefill_chunk > 0) & (rows.n_decode * rows.kv_decode < LARGEST_BATCH_TOKENS)]


def _attention_errors(tiles: TileModel, model: str, degree: int, rows: Any) -> Any:
    found = find_model(model)
    mixed = MixedAttention(tiles, found, degree)
    modelled = [
        mixed.ms([PrefillChunk(row.prefill_chunk, row.kv_prefill)], row.n_decode, row.n_decode * row.kv_decode)
        for row in rows.itertuples()
    ]
    return np.asarray(modelled) / np.asarray(rows.time_us * found.layers / 1e3) - 1.0


FITTED = ("tile_us", "launch_us", "tail", "miss_from", "miss_over", "power")
"""The constants that both cards share."""


def _fit_tiles(tables: Sequence[Any], start: dict[str, TileModel]) -> dict[str, TileModel]:
    from scipy.optimize import least_squares  # noqa: PLC0415 - only for --fit

    samples = [(gpu, model, degree, rows.sample(FIT_ROWS, random_state=1)) for _, gpu, _, model, degree, rows in tables]

    def models(x: Any) -> dict[str, TileModel]:
        shared = dict(zip(FITTED, map(float, x[4:]), strict=True))
        return {
            gpu: replace(tiles, tile_token_us=float(x[2 * n]), kv_tb_s=float(x[2 * n + 1]), **shared)
            for n, (gpu, tiles) in enumerate(start.items())
        }

    def residuals(x: Any) -> Any:
        fitted = models(x)
        return np.concatenate([np.log1p(_attention_errors(fitted[gpu], *rest)) for gpu, *rest in samples])

    own = [value for tiles in start.values() for value in (tiles.tile_token_us, tiles.kv_tb_s)]
    first = next(iter(start.values()))
    x0 = np.array([*own, *(getattr(first, name) for name in FITTED)])
    solved = least_squares(residuals, x0, loss="soft_l1", f_scale=0.05, x_scale=x0, bounds=(x0 * 0.2, x0 * 5))
    return models(solved.x)


LAYER = {"qkv_proj": 1, "rotary_emb": 1, "o_proj": 1, "layernorm": 2, "gate_up_proj": 1, "act_fn": 1, "down_proj": 1}
"""The kernels that a layer of the model runs in each step, and the number of runs of each kernel."""
SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256, 288, 320, 384, 448, 512, 640, 768, 1024, 1536, 2048)
MOST_SAMPLED = 32
"""Tokens of a step that reach the output layer."""


@tabular("card", "model", "shares", "mean", "mean abs", "largest", "at tokens")
def dense_lines(data: Path) -> Iterator[Any]:
    """Of steps of 1 to 2,048 tokens on one GPU: sums of measured kernels, and the roofline with each set of shares."""
    for card, gpu, folder, model, degree in PROFILES:
        if degree > 1 or find_model(model).experts:
            continue
        measured = np.asarray([_measured_ms(data, folder, model, tokens) for tokens in SIZES])
        for name, shares in (("the card's", None), ("general", Shares())):
            times = RooflineStepTimes(find_gpu(gpu), find_model(model), 1, 0.0, shares)
            modelled = np.asarray([times._fixed_s(tokens, min(tokens, MOST_SAMPLED)) * 1e3 for tokens in SIZES])
            errors = modelled / measured - 1.0
            worst = int(np.argmax(np.abs(errors)))
            shown = f"{errors.mean():+.1%}", f"{np.abs(errors).mean():.1%}", f"{errors[worst]:+.0%}"
            yield card, model, name, *shown, SIZES[worst]


def _measured_ms(data: Path, folder: str, model: str, tokens: int) -> float:
    place = data / "validation/llmservingsim/profile" / folder
    dense, sampled = pd.read_csv(place / "dense.csv.gz"), pd.read_csv(place / "per_sequence.csv.gz")
    kernels = LAYER | ({"qk_norm": 1} if "qk_norm" in set(dense.layer) else {})
    layer_us = sum(times * _at(dense, name, tokens) for name, times in kernels.items() if name in set(dense.layer))
    once_us = sum(_at(dense, name, tokens) for name in ("embedding", "final_layernorm"))
    once_us += sum(_at(sampled, name, min(tokens, MOST_SAMPLED)) for name in ("lm_head", "sampler"))
    return (find_model(model).layers * layer_us + once_us) / 1e3


MIXTURE = PROFILES[4]


EXPERT_SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


@tabular("tokens", "experts' kernels, ms", "general constants", "the card's", "step's kernels, ms", "roofline")
def expert_lines(data: Path, again: bool) -> Iterator[Any]:
    """A mixture of experts: the roofline beside the kernels of its experts, and beside the sums of kernels that are a
    step without attention."""
    _, gpu, folder, name, degree = MIXTURE
    model, rows = find_model(name), pd.read_csv(data / "validation/llmservingsim/profile" / folder / "moe.csv.gz")
    measured = np.asarray([_experts_ms(rows, gpu, model, tokens) for tokens in EXPERT_SIZES])
    if again:
        yield _fit_experts(gpu, model, measured)
    uneven = Experts(decay=MEASURED_EXPERTS[gpu, model.name].decay)
    own, general = (RooflineStepTimes(find_gpu(gpu), model, degree, 0.0, experts=each) for each in (None, uneven))
    for tokens, experts_ms in zip(EXPERT_SIZES, measured, strict=True):
        ms = _measured_ms(data, folder, name, tokens) + experts_ms
        alone = [times._experts_s(tokens) * 1e3 / experts_ms - 1.0 for times in (general, own)]
        step = own._fixed_s(tokens, min(tokens, MOST_SAMPLED)) * 1e3 / ms - 1.0
        yield tokens, f"{experts_ms:.1f}", *(f"{error:+.1%}" for error in alone), f"{ms:.1f}", f"{step:+.1%}"


def _experts_ms(rows: Any, gpu: str, model: Model, tokens: int) -> float:
    """Return the kernels' time in all layers, with as many visited experts as there are on average."""
    visited = MEASURED_EXPERTS[gpu, model.name].visited(model, tokens) * model.experts
    by_count = {n: np.interp(tokens, each.tokens, each.time_us) for n, each in rows.groupby("activated_experts")}
    return model.layers * float(np.interp(visited, list(by_count), list(by_count.values()))) / 1e3


def _fit_experts(gpu: str, model: Model, measured: Any) -> str:
    from scipy.optimize import least_squares  # noqa: PLC0415 - only for --fit

    def experts_of(x: Any) -> Experts:
        return Experts(*map(float, x), overlap=True, decay=MEASURED_EXPERTS[gpu, model.name].decay)

    def errors(x: Any) -> Any:
        times = RooflineStepTimes(find_gpu(gpu), model, 1, 0.0, experts=experts_of(x))
        return np.log([times._experts_s(tokens) * 1e3 for tokens in EXPERT_SIZES] / measured)

    solved = least_squares(errors, (1.0, 10.0, 0.1), x_scale=(1.0, 10.0, 0.1))
    return f"fitted: {experts_of(float(f'{value:.3g}') for value in solved.x)}"


def _at(table: Any, name: str, size: int) -> float:
    rows = table[table.layer == name]
    return float(np.interp(size, rows.iloc[:, 1], rows.time_us))


@tabular("server", "steps", "number", "median at 0 ms", "median with the overhead", "10%", "90%")
def step_lines(data: Path) -> Iterator[Any]:
    """Steps whose next step was recorded too: the time between their starts is the step's."""
    rows = pd.read_parquet(data / "validation/blis/enriched_steps.parquet").sort_values(["experiment_id", "step.id"])
    sources = [
        load_step_times("h100", "llama-3.1-70b", 4, 0.0),
        load_step_times("h100", "llama-3.1-70b", 4, vllm="0.15"),
    ]
    for name, group in rows[rows.model.str.startswith("llama-2-70b")].groupby("experiment_id"):
        following = group["step.id"].shift(-1) - group["step.id"] == 1
        seconds = (group["step.ts_start_ns"].shift(-1) - group["step.ts_start_ns"]) / 1e9
        prompts = group["batch.prefill_tokens"] > 0
        for kind, wanted in (("decodes alone", ~prompts), ("with chunks", prompts)):
            used = group[following & wanted & (group["batch.decode_tokens"] > 0)]
            errors = [
                [_step_s(times, row) / seconds[index] - 1.0 for index, row in used.iterrows()] for times in sources
            ]
            low, high = np.quantile(errors[1], (0.1, 0.9))
            yield name, kind, len(used), *(f"{error:+.1%}" for error in (*map(median, errors), low, high))


def _step_s(times: StepTimes, row: Any) -> float:
    """Contexts are not recorded, so every request has the mean. Most chunks are the last tokens of a cached prompt."""
    decodes, requests = int(row["batch.decode_tokens"]), int(row["batch.num_prefill_reqs"])
    mean = 16 * int(row["kv.blocks_total_gpu"] - row["kv.blocks_free_gpu"]) // (decodes + requests)
    tokens = int(row["batch.prefill_tokens"]) // max(requests, 1)
    chunks = [PrefillChunk(max(tokens, 1), max(mean - tokens, 0))] * requests
    return times.step_s(chunks, decodes, max(mean, 1) * decodes)


AGENTS = "traces/sweagent_glm45_bs{}.jsonl.gz"


MODEL, GPU, GPUS, CHUNK = "glm-4.5-fp8", "h200", 8, 8192
STAGES = 2
"""The server ran vLLM with 4-way tensor and 2-way pipeline parallelism (SWE-agent-profile/config/vllm_batch.yaml
in HaoKang-Timmy/ThunderAgent @ e648651, MIT)."""
BUSIEST_STAGE = 0.73
"""Share of the time in which the GPUs of the second stage were busy while one agent ran; the first stage: 0.46. Medians
of NVML's utilisation in the 2,601 samples of that run's gpu_metrics.json (the same repository @ ef8ef52)."""
LONG = 200
"""Output tokens of turns whose decode times are calibrated on."""


class CalibratedBatches(StepTimes):
    """Step times of a batch, with two numbers from the run at concurrency 1.

    Args:
        times: of all layers.
        step_s: added to every batch.
        chunk: factor on what prompt chunks add to a batch.
    """

    def __init__(self, times: StepTimes, step_s: float, chunk: float) -> None:
        self._times, self.added_s, self.chunk = times, step_s, chunk
        self.provenance = times.provenance

    def step_s(self, chunks: Sequence[PrefillChunk], decodes: int, decode_context_tokens: int) -> float:
        whole = self._times.step_s(chunks, decodes, decode_context_tokens)
        if not chunks:
            return whole + self.added_s
        alone = self._times.step_s((), decodes or 1, decode_context_tokens or 1)
        return alone + max(whole - alone, 0.0) * self.chunk + self.added_s


@tabular("run", "turns", "", "measured", "modelled", "error")
def agent_lines(data: Path) -> Iterator[Any]:
    """Calibrated on the run of one agent at a time; the run of four at a time is predicted."""
    alone, together = (_agent_run(data / AGENTS.format(concurrency)) for concurrency in (1, 4))
    degree = GPUS // STAGES
    config = EngineConfig(
        gpu=GPU,
        model=MODEL,
        tp=degree,
        pp=STAGES,
        max_num_seqs=64,
        chunk_tokens=CHUNK,
    )
    times = load_step_times(GPU, MODEL, degree, 0.0)
    batch, latency_s, unrecorded = _calibrate(alone, times)
    yield (
        f"calibrated on {len(alone.served)} turns at concurrency 1: {batch.added_s * 1e3:+.1f} ms a batch, chunks x "
        f"{batch.chunk:.1f}, {latency_s * 1e3:.0f} ms a turn outside the engine, {unrecorded} unrecorded "
        f"tokens a turn; step times: {times.provenance.kind}"
    )
    server, even = (StagedStepTimes(batch, STAGES, share, CHUNK) for share in (BUSIEST_STAGE, 1 / STAGES))
    runs = (("concurrency 1", alone, server), ("concurrency 4", together, server), ("4, even stages", together, even))
    for name, run, model in runs:
        later = tuple(
            replace(each, gap_s=each.gap_s + latency_s, output_tokens=each.output_tokens + unrecorded)
            for each in run.served
        )
        modelled = play(replace(run, served=later), config, model, asynchronous=False)
        modelled = [
            replace(
                each,
                first_token_s=each.first_token_s + latency_s,
                finish_s=each.finish_s + latency_s,
                output_tokens=each.output_tokens - unrecorded,
            )
            for each in modelled
        ]
        for what, pair in _agent_numbers(run.served, modelled).items():
            error = pair[1] / pair[0] - 1
            yield name, len(run.served), what, *(f"{each:.4g}" for each in pair), f"{error:+.1%}"


def _agent_run(path: Path) -> LoggedRun:
    """The recorded turns. A gap is what passed between an answer and the program's next request."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    served = []
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        finish_s = row["t_req"] + row["llm_s"]
        same = after is not None and after["program_id"] == row["program_id"]
        gap_s = max(after["t_req"] - finish_s, 0.0) if same else 0.0
        first_s = min(row["t_req"] + row["prefill_s"], finish_s)
        lengths = row["prompt_tokens"], max(row["output_tokens"], 1)
        served.append(Served(row["t_req"], first_s, finish_s, *lengths, row["program_id"], gap_s))
    start_s = min(each.arrival_s for each in served)
    shifted = [
        replace(
            each,
            arrival_s=each.arrival_s - start_s,
            first_token_s=each.first_token_s - start_s,
            finish_s=each.finish_s - start_s,
        )
        for each in served
    ]
    return LoggedRun(path.name, tuple(sorted(shifted, key=lambda each: each.arrival_s)))


def _calibrate(run: LoggedRun, times: StepTimes) -> tuple[CalibratedBatches, float, int]:
    """From turns that had the server to themselves: a line through their prefill times, and their decode times.

    The server generated more tokens than the trace records: a turn with 109 recorded tokens decoded for 31 s, although
    a token usually takes 20 ms. The fastest tenth of the long turns gives the time of a step. Whatever time another
    turn took beyond that counts as unrecorded tokens.
    """
    before = {each.program_id: 0 for each in run.served}
    modelled, prefill = [], []
    decode = []
    for each in run.served:
        reused = min(before[each.program_id], each.prompt_tokens - 1) // 16 * 16
        before[each.program_id] = each.prompt_tokens + each.output_tokens
        alone = times.step_s((), 1, 1)
        modelled.append(times.prefill_s(each.prompt_tokens - reused, reused) - alone)
        prefill.append(each.first_token_s - each.arrival_s)
        if each.output_tokens > 1:
            context = each.prompt_tokens + each.output_tokens // 2
            step_s = (each.finish_s - each.first_token_s) / (each.output_tokens - 1)
            decode.append((each.output_tokens, step_s, times.step_s((), 1, context)))
    extra_s = float(np.quantile([step_s - model_s for tokens, step_s, model_s in decode if tokens >= LONG], 0.1))
    unrecorded = fmean(tokens * (step_s / (model_s + extra_s) - 1.0) for tokens, step_s, model_s in decode)
    chunk, base_s = np.polyfit(modelled, prefill, 1)
    latency_s = max(float(base_s) - times.step_s((), 1, 1) - extra_s, 0.0)
    return CalibratedBatches(times, extra_s, float(chunk)), latency_s, round(unrecorded)


def _agent_numbers(measured: Sequence[Served], modelled: Sequence[Served]) -> dict[str, tuple[float, float]]:
    def jct(served: Sequence[Served]) -> float:
        spans: dict[str | None, list[float]] = {}
        for each in served:
            spans.setdefault(each.program_id, []).extend((each.arrival_s, each.finish_s))
        return fmean(max(span) - min(span) for span in spans.values())

    numbers = numbers_of(measured), numbers_of(modelled)

    def per_token(served: Sequence[Served]) -> float:
        return sum(each.finish_s - each.first_token_s for each in served) / sum(each.output_tokens for each in served)

    names = {"e2e_mean": "s per turn, mean", "ttft_mean": "s to the first token, mean"}
    found = {text: (numbers[0][name], numbers[1][name]) for name, text in names.items()}
    found["decode s per recorded token"] = per_token(measured), per_token(modelled)
    return {**found, "JCT, s, mean": (jct(measured), jct(modelled))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["attention", "dense", "experts", "steps", "agents"])
    parser.add_argument("--data", type=Path, default=Path("../shared"))
    parser.add_argument("--log", type=Path)
    parser.add_argument("--gpu")
    parser.add_argument("--fit", action="store_true")
    options = parser.parse_args()
    parts = {
        "attention": lambda: attention_lines(options.data, options.fit),
        "dense": lambda: dense_lines(options.data),
        "experts": lambda: expert_lines(options.data, options.fit),
        "steps": lambda: step_lines(options.data),
        "agents": lambda: agent_lines(options.data),
        "log": lambda: fit_lines(options.log, options.gpu),
    }
    for part in options.parts:
        try:
            show(parts[part]())
        except FileNotFoundError as error:
            sys.stdout.write(f"{part}: not measured here: no {error.filename}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
