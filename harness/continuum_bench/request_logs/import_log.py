"""``traces import-log``: turns a server's request log into runs, each beside an experiment that plays it again.

For each run of the log: ``trace.jsonl`` (its requests, with their arrivals), ``measured/`` (a run directory with the
times that the log has) and ``replay.yaml`` (an experiment of these requests on a modelled engine that is set as the
server was). ``compare measured modelled`` then shows measured beside modelled times.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from continuum_server import defaults
from continuum_server.engine_settings import SchedulerSettings
from continuum_server.step_times.catalog import FP8_KV, find_gpu, find_model
from continuum_server.step_times.roofline import MAX_BATCH
from continuum_server.step_times.specs import Gpu
from continuum_server.virtual.config import shape_of
from continuum_server.vllm_plugin.versions import check_version
from continuum_traces.grouped import grouped
from continuum_traces.json_io import write_json, write_text
from continuum_traces.names import counted
from continuum_traces.programs.jsonl import write_programs
from continuum_traces.records import rows_of, write_rows
from continuum_traces.records.run_dir import ENGINE, TURNS, create, write_manifest
from continuum_traces.schema import Engine, Hardware, KvPool, Manifest, Program, Turn, TurnRecord, Workload

from continuum_bench.errors import BenchError
from continuum_bench.experiment_file import REPLAY, experiment_yaml
from continuum_bench.invocation import command_line, utc_now
from continuum_bench.options.run import LiveOptions, RunOptions
from continuum_bench.options.traces import ImportLogOptions
from continuum_bench.request_logs.logs import read_log
from continuum_bench.request_logs.served import LoggedRun, Served
from continuum_bench.show import print_line, print_notice
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.workload.workload import load_workload

TRACE, MEASURED, MODELLED, EXPERIMENT = "trace.jsonl", "measured", "modelled", "replay.yaml"
OUTCOME, ANSWERED = "outcome", "answered"
"""Metadata of the programs of a run that has requests without times, which ``compare`` leaves out."""
LARGE_GPU_GIB, LARGEST_GPU_GIB = 70, 160


def import_log(options: ImportLogOptions) -> int:
    """Import every run of a log, and print the commands that compare it with the model."""
    runs = read_log(options.source)
    experiments = [experiment_of(run, options) for run in runs]  # refuse all mistakes before a file is written
    for run, experiment in zip(runs, experiments, strict=True):
        folder = options.target if len(runs) == 1 else options.target / _file_name(run.name)
        _import(run, experiment, folder)
    return 0


def experiment_of(run: LoggedRun, options: ImportLogOptions) -> RunOptions:
    """Return the options that play the run on a modelled engine, set as the log, or else vLLM's defaults, say.

    Raises:
        BenchError: neither the options nor the log name the GPU or the model.
        StepTimesError, EngineError: the GPU or the model is unknown, or settings conflict.
    """
    server = run.server
    gpu_name, model_name = options.gpu or server.gpu, options.model or server.model
    if gpu_name is None:
        raise BenchError("--gpu: say which GPU the server ran on; `continuum-bench doctor` lists the known GPUs")
    if model_name is None:
        raise BenchError(f"--model: {options.source} does not say which model was served")
    gpu, model = find_gpu(gpu_name), find_model(model_name)
    if (server.kv_cache_dtype or "auto").startswith("fp8") and model.kv_bytes_each != 1.0:
        model = find_model(model.name + FP8_KV)
    seqs, chunk = _vllm_defaults(gpu)
    replicas = server.data_parallel_size or 1
    experiment = RunOptions(
        policy=["vllm"],
        arrivals="recorded:1",
        gpu=gpu.name,
        model=model.name,
        tp=server.tp or 1,
        pp=server.pp or 1,
        replicas=replicas,
        router="sticky" if replicas > 1 else RunOptions.router,
        max_num_seqs=server.max_num_seqs or seqs,
        chunk_tokens=server.chunk or chunk,
        block_size=server.block_size or defaults.BLOCK_SIZE,
        kv_blocks=server.kv_blocks,
        gpu_memory_utilization=server.gpu_memory_utilization or defaults.GPU_MEMORY_UTILIZATION,
        no_prefix_caching=server.enable_prefix_caching is False,
        vllm=server.vllm or check_version(),
    )
    shape_of(engine_of(experiment)[0])
    return experiment


def _vllm_defaults(gpu: Gpu) -> tuple[int, int]:
    """Return the default max_num_seqs and max_num_batched_tokens of ``vllm serve`` (vllm/engine/arg_utils.py).

    On large GPUs vLLM allows 1,024 requests; the tables of step times end at ``MAX_BATCH``.
    """
    if gpu.memory_gib >= LARGEST_GPU_GIB:
        return MAX_BATCH, 16384
    if gpu.memory_gib >= LARGE_GPU_GIB and not gpu.name.startswith("a100"):
        return MAX_BATCH, 8192
    return SchedulerSettings.max_num_seqs, SchedulerSettings.chunk_tokens


def _import(run: LoggedRun, experiment: RunOptions, folder: Path) -> None:
    measured = create(folder / MEASURED)
    conversations = conversations_of(run)
    write_programs(folder / TRACE, [program_of(each, run) for each in conversations], source=run.name)
    write_rows(measured / TURNS, _records(conversations, run))
    write_json(measured / ENGINE, rows_of(measured))
    experiment = replace(experiment, traces=folder / TRACE)
    unreported = [f"{number} requests: {why}; their times are not known" for why, number in run.unreported.items()]
    workload = load_workload(REPLAY, experiment, experiment).facts
    write_manifest(measured, _manifest(run, experiment, workload, unreported))
    beside = replace(experiment, traces=Path(TRACE), out=folder / MODELLED)
    write_text(folder / EXPERIMENT, experiment_yaml(REPLAY, beside, LiveOptions()))
    print_notice(f"{run.name}: {counted(len(run.served), 'request')} written to {measured}")
    for line in unreported:
        print_notice(f"{run.name}: {line}")
    print_line(f"continuum-bench run {folder / EXPERIMENT}")
    print_line(f"continuum-bench compare {measured} {folder / MODELLED}")


Conversation = tuple[str, tuple[Served, ...]]
"""The id of a program, and its requests in order."""


def conversations_of(run: LoggedRun) -> list[Conversation]:
    """Return the requests of each program, in order of its arrival. A request without a program is one of its own."""
    requests = grouped(
        (each.program_id or f"request-{index}", each) for index, each in enumerate((*run.served, *run.load))
    )
    return sorted(((name, tuple(each)) for name, each in requests.items()), key=lambda named: named[1][0].arrival_s)


def program_of(conversation: Conversation, run: LoggedRun) -> Program:
    """Return a program of the trace. A prompt begins with the context so far, or with a part of it."""
    name, requests = conversation
    first = requests[0]
    turns = [Turn(first.prompt_tokens, first.output_tokens, gap_overhead_s=first.gap_s)]
    for before, now in pairwise(requests):
        kept = min(before.prompt_tokens + before.output_tokens, now.prompt_tokens - 1)
        new = now.prompt_tokens - kept
        turns.append(Turn(new, now.output_tokens, kept_tokens=kept, gap_overhead_s=max(now.gap_s, 0.0)))
    return Program(name, tuple(turns), source=run.name, arrival_s=first.arrival_s, metadata=_metadata(first, run))


def _metadata(request: Served, run: LoggedRun) -> dict[str, str | float] | None:
    if not run.load:
        return None
    return {OUTCOME: ANSWERED if request.outcome is None else request.outcome}


def _records(conversations: Sequence[Conversation], run: LoggedRun) -> Iterator[TurnRecord]:
    """Yield the record of each request, those of a program after each other."""
    for name, requests in conversations:
        for index, each in enumerate(requests):
            answered = each.outcome is None
            yield TurnRecord(
                program_id=name,
                turn=index,
                due_s=each.arrival_s,
                sent_s=each.arrival_s,
                first_token_s=each.first_token_s if answered else None,
                finish_s=each.finish_s if answered else None,
                prompt_tokens=each.prompt_tokens,
                output_tokens=each.output_tokens,
                gap_s=each.gap_s if index + 1 < len(requests) else None,
                is_last=index + 1 == len(requests),
                error=None if answered else f"{each.outcome}: the log has no times of this request",
                metadata=_metadata(each, run) if index == 0 else None,
            )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")


def _manifest(run: LoggedRun, experiment: RunOptions, workload: Workload, notes: Sequence[str]) -> Manifest:
    return Manifest(
        created=utc_now(),
        command=command_line(),
        versions={"vllm": run.server.vllm} if run.server.vllm else {},
        engine=f"the log of {run.name}",
        policy="stock",
        workload=workload,
        hardware=Hardware(
            gpu=experiment.gpu,
            model=experiment.model,
            tensor_parallel=experiment.tp,
            pipeline_parallel=experiment.pp,
            kv_capacity=KvPool(num_blocks=run.server.kv_blocks, block_size=experiment.block_size),
        ),
        engine_options=Engine(max_num_seqs=experiment.max_num_seqs, chunk_tokens=experiment.chunk_tokens),
        notes=tuple(notes),
    )
