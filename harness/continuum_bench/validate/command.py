"""``validate``: compares a real server's request log with the same requests on the virtual engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from continuum_analysis.compare.words import TextTable
from continuum_analysis.report.experiment_facts import machines
from continuum_server import defaults
from continuum_server.step_times.catalog import FP8_KV, find_gpu, find_model
from continuum_server.step_times.overhead import is_asynchronous
from continuum_server.step_times.roofline import MAX_BATCH
from continuum_server.virtual.config import EngineConfig, shape_of, times_of
from continuum_traces.schema import Engine, Hardware
from msgspec import structs

from continuum_bench.errors import BenchError
from continuum_bench.options.validate import ValidateOptions
from continuum_bench.show import print_json, print_notice, print_table
from continuum_bench.validate.logs import read_log
from continuum_bench.validate.numbers import errors_of, numbers_of
from continuum_bench.validate.replay import CalibratedStepTimes, Calibration, fit, play
from continuum_bench.validate.served import LoggedRun, Served

LARGE_GPU_GIB, LARGEST_GPU_GIB = 70, 160
CLAIMED = ("e2e_mean", "ttft_mean", "tpot_mean", "e2e_p99")
SHOWN = ("e2e_mean", "e2e_p50", "e2e_p99", "ttft_mean", "ttft_p50", "ttft_p99", "tpot_mean", "tpot_p50", "tpot_p99")


def validate_log(options: ValidateOptions) -> int:
    data = {"runs": [_compare(run, options) for run in read_log(options.log)]}
    if options.json_output:
        print_json(data)
        return 0
    for each in data["runs"]:
        _print(each)
    if len(data["runs"]) > 1:
        rows = [[each["name"], *(_error(each, name) for name in CLAIMED)] for each in data["runs"]]
        print_table(TextTable(("run", *CLAIMED), rows), "modelled / measured - 1")
    return 0


def _compare(run: LoggedRun, options: ValidateOptions) -> dict[str, Any]:
    """Return the reported requests of one run, as measured and as modelled."""
    config = engine_of(run, options)
    times, asynchronous = times_of(config), is_asynchronous(config.vllm)

    def played(calibration: Calibration | None) -> list[Served]:
        return play(run, config, CalibratedStepTimes(times, calibration) if calibration else times, asynchronous)

    def score(calibration: Calibration) -> float:
        errors = errors_of(numbers_of(played(calibration)[:half]), numbers_of(run.served[:half]))
        means = [errors.get(f"{name}_mean_error") for name in ("e2e", "ttft", "tpot")]
        return fmean(error**2 for error in means if error is not None)

    half = len(run.served) // 2 if options.fit else 0
    if options.fit and half < 2:
        raise BenchError(f"{options.log}: --fit needs at least 4 requests; there are {len(run.served)}")
    calibration = fit(score) if options.fit else None
    served, answered = run.served[half:], played(calibration)[half:]
    measured, modelled = numbers_of(served), numbers_of(answered)
    return {
        "name": run.name,
        "requests": len(served),
        "unreported": dict(run.unreported),
        **errors_of(modelled, measured),
        "measured": measured,
        "modelled": modelled,
        "calibration": asdict(calibration) if calibration else None,
        "step_times": asdict(times.provenance),
        "engine": asdict(config),
        "kv_blocks": {"number": shape_of(config).num_blocks, "from": _blocks_from(run, options)},
    }


def engine_of(run: LoggedRun, options: ValidateOptions) -> EngineConfig:
    """Return the configuration of the logged server.

    Each setting comes from the options, else from the log, else from vLLM's defaults for the GPU.

    Raises:
        BenchError: neither the options nor the log name the GPU or the model.
        StepTimesError, EngineError: the GPU or the model is unknown, or settings conflict.
    """
    named = {name: value for name in run.server.__struct_fields__ if (value := getattr(options, name)) is not None}
    server = structs.replace(run.server, **named)
    if server.gpu is None:
        raise BenchError("--gpu: say which GPU the server ran on; `continuum-bench doctor` lists the known GPUs")
    if server.model is None:
        raise BenchError(f"--model: {options.log} does not say which model was served")
    gpu, model = find_gpu(server.gpu), find_model(server.model)
    if (server.kv_cache_dtype or "auto").startswith("fp8") and model.kv_bytes_each != 1.0:
        model = find_model(model.name + FP8_KV)
    seqs, chunk = _vllm_defaults(gpu.name, gpu.memory_gib)
    config = EngineConfig(
        gpu=gpu.name,
        model=model.name,
        tensor_parallel=server.tp or 1,
        pipeline_parallel=server.pp or 1,
        max_num_seqs=server.max_num_seqs or seqs,
        chunk_tokens=server.chunk or chunk,
        block_size=server.block_size or defaults.BLOCK_SIZE,
        kv_blocks=server.kv_blocks,
        gpu_memory_utilization=server.gpu_memory_utilization or defaults.GPU_MEMORY_UTILIZATION,
        prefix_caching=server.enable_prefix_caching is not False,
        step_overhead_ms=options.step_overhead_ms,
        step_times=options.step_times,
        vllm=server.vllm,
        replicas=server.data_parallel_size or 1,
    )
    shape_of(config)
    return config


def _blocks_from(run: LoggedRun, options: ValidateOptions) -> str:
    if options.kv_blocks:
        return "--kv-blocks"
    if run.server.kv_blocks:
        return "the log"
    return "computed from the GPU's memory; --kv-blocks takes the number from the server's start-up messages"


def _vllm_defaults(gpu: str, memory_gib: float) -> tuple[int, int]:
    """Return the default max_num_seqs and max_num_batched_tokens of ``vllm serve`` (vllm/engine/arg_utils.py).

    On large GPUs vLLM allows 1,024 requests; the tables of step times end at ``MAX_BATCH``.
    """
    if memory_gib >= LARGEST_GPU_GIB:
        return MAX_BATCH, 16384
    if memory_gib >= LARGE_GPU_GIB and not gpu.startswith("a100"):
        return MAX_BATCH, 8192
    return defaults.MAX_NUM_SEQS, defaults.MAX_NUM_BATCHED_TOKENS


def _print(run: dict[str, Any]) -> None:
    steps, engine = run["step_times"], run["engine"]
    parallel = {name: engine[name] for name in ("gpu", "tensor_parallel", "pipeline_parallel")}
    gpus = machines(Hardware(**parallel), Engine(replicas=engine["replicas"]))
    unreported = ", ".join(f"{number} {why}" for why, number in run["unreported"].items())
    print_notice(
        f"{run['name']}: {run['requests']} requests{f' (others: {unreported})' if unreported else ''}; "
        f"{engine['model']} on {gpus}, max_num_seqs {engine['max_num_seqs']}, chunks of "
        f"{engine['chunk_tokens']}{'' if engine['prefix_caching'] else ', no prefix caching'}\n"
        f"KV blocks: {run['kv_blocks']['number']} ({run['kv_blocks']['from']})\n"
        f"step times: {steps['kind']}; attention: {steps['attention']}\n"
        f"overhead: {steps['step_overhead_ms']:g} ms a step, {steps['request_overhead_ms']:g} ms for each of its "
        f"requests: {steps['overhead']}"
    )
    if run["calibration"]:
        fitted = run["calibration"]
        print_notice(
            f"fitted to the first half: {fitted['overhead_ms']:+.2f} ms a step, attention x {fitted['attention']:.2f}; "
            "the second half is reported"
        )
    rows = [_row(run, name, 1e3, "ms") for name in SHOWN if name in run["measured"]]
    rows.append(_row(run, "output_tokens_per_s", 1.0, "tokens/s"))
    print_table(TextTable(("", "measured", "modelled", "error", "unit"), rows), run["name"], words=("unit",))


def _row(run: dict[str, Any], name: str, factor: float, unit: str) -> Sequence[str]:
    measured, modelled = run["measured"][name] * factor, run["modelled"][name] * factor
    return (name, f"{measured:.1f}", f"{modelled:.1f}", _error(run, name), unit)


def _error(run: dict[str, Any], name: str) -> str:
    error = run.get(f"{name}_error")
    return "-" if error is None else f"{error:+.1%}"
