"""Finds the request logs of real servers in a file or a folder, and reads them.

A log is recognised by its content. Its name matters only in a folder that contains other JSON files too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from continuum_traces.records.run_dir import MANIFEST, TURNS, read_manifest
from continuum_traces.schema import KvPool

from continuum_bench.errors import BenchError
from continuum_bench.json_files import documents, objects, read_as
from continuum_bench.request_logs.fields import within
from continuum_bench.request_logs.formats import (
    NO_STARTS,
    SAVE,
    Guidellm,
    Row,
    VllmBench,
    aiperf,
    guidellm,
    llmservingsim,
    turns_of_run,
    vllm_bench,
)
from continuum_bench.request_logs.served import LoggedRun, Served, ServerFacts, Unreported

LOGS = ("requests.jsonl", "profile_export.jsonl", "benchmarks.json")
"""The names that the tools use. If a folder contains one of these files, its other files are not logs."""
ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
EXPECTED = (
    "expected vllm bench serve --save-result --save-detailed, guidellm's benchmarks.json, aiperf's "
    "profile_export.jsonl, LLMServingSim's requests.jsonl, or a run directory"
)


def read_log(path: Path) -> list[LoggedRun]:
    """Read the runs in a log, or in all logs of a folder and its subfolders.

    Raises:
        BenchError: the format is unknown, a field is missing, or instants are out of order. The message names the file,
            the line and the field.
    """
    runs = _in_folder(path, path.name) if path.is_dir() else _in_file(path)
    if not runs:
        raise BenchError(f"{path}: {'holds' if path.is_dir() else 'is'} no known log: {EXPECTED}")
    names = Counter(run.name for run in runs)
    return [
        run if names[run.name] == 1 else replace(run, name=f"{run.name}, number {number}")
        for number, run in enumerate(runs, 1)
    ]


def _in_folder(path: Path, name: str) -> list[LoggedRun]:
    if (path / TURNS).exists():
        return [_run(path / TURNS, name, turns_of_run(path), _facts_of_run(path))]
    named = [file for each in LOGS for file in (path / each, path / f"{each}.gz") if file.exists()]
    if named:
        return list(chain.from_iterable(map(_in_file, named)))
    runs: list[LoggedRun] = []
    for each in sorted(path.iterdir()):
        if each.is_dir():
            runs += _in_folder(each, f"{name}/{each.name}")
        elif each.name.endswith(ENDINGS):
            runs += _in_file(each)
    return runs


def _in_file(path: Path) -> list[LoggedRun]:
    """Read the runs in a file; empty if it is no request log."""
    if path.name == TURNS:
        return _in_folder(path.parent, path.absolute().parent.name)
    parsed = documents(path)
    first = next(parsed, None)
    if first is None or not isinstance(first[1], dict):
        return []
    rows = objects(chain([first], parsed))
    data, name = first[1], path.absolute().parent.name
    if "benchmarks" in data:
        return list(_guidellm_runs(path, data))
    if "ttfts" in data or "request_throughput" in data:
        return [_vllm_run(path, *each) for each in rows]
    if "metadata" in data and ("metrics" in data or "error" in data):
        return [_run(path, name, aiperf(rows))]
    if "arrival_time" in data or "input_toks" in data:
        return [_run(path, name, llmservingsim(rows), _meta(path.parent))]
    return []


def _guidellm_runs(path: Path, data: dict[str, Any]) -> Iterator[LoggedRun]:
    log = read_as(str(path), data, Guidellm)
    for index, benchmark in enumerate(log.benchmarks):
        model = within(benchmark.config, "backend", "model") or within(log.args, "model")
        facts = read_as(str(path), {"model": model}, ServerFacts)
        rows = guidellm(f"{path}: benchmarks[{index}]", benchmark)
        yield _run(path, benchmark.name(index), rows, facts)


def _vllm_run(path: Path, where: str, data: dict[str, Any]) -> LoggedRun:
    where = where.removesuffix(":1")
    if "ttfts" in data and "start_times" not in data:
        raise BenchError(f"{where}: {NO_STARTS}")
    run = read_as(where, data, VllmBench, SAVE)
    name = run.name(path.name.removesuffix(".gz").rpartition(".")[0])
    return _run(path, name, vllm_bench(where, run), ServerFacts(model=run.model_id))


def _run(path: Path, name: str, rows: Iterable[Row], server: ServerFacts = ServerFacts()) -> LoggedRun:  # noqa: B008
    everything = list(rows)
    served = [row for row in everything if isinstance(row, Served)]
    others = [row for row in everything if isinstance(row, Unreported)]
    if not served:
        raise BenchError(f"{path}: {name}: no request that was answered")
    load = [replace(each.load, outcome=each.why) for each in others if each.load is not None]
    start_s = min(each.arrival_s for each in (*served, *load))
    return LoggedRun(name, _shifted(served, start_s), server, _shifted(load, start_s), Counter(e.why for e in others))


def _shifted(rows: Sequence[Served], start_s: float) -> tuple[Served, ...]:
    def shifted(row: Served) -> Served:
        arrival_s, first_token_s = row.arrival_s - start_s, row.first_token_s - start_s
        return replace(row, arrival_s=arrival_s, first_token_s=first_token_s, finish_s=row.finish_s - start_s)

    return tuple(map(shifted, sorted(rows, key=lambda row: row.arrival_s)))


# ---------------------------------------------------------------------------------------- facts of the server


def _facts_of_run(folder: Path) -> ServerFacts:
    if not (folder / MANIFEST).exists():
        return ServerFacts()
    manifest = read_manifest(folder)
    hardware, engine = manifest.hardware, manifest.engine_options
    pool = hardware.kv_capacity or KvPool()
    return ServerFacts(
        gpu=hardware.gpu,
        model=hardware.model,
        vllm=manifest.versions.get("vllm"),
        tp=hardware.tensor_parallel,
        pp=hardware.pipeline_parallel,
        max_num_seqs=engine.max_num_seqs,
        chunk=engine.chunk_tokens,
        kv_blocks=pool.num_blocks,
        block_size=pool.block_size,
        enable_prefix_caching=engine.prefix_caching,
    )


def _meta(folder: Path) -> ServerFacts:
    """Read the server's settings from LLMServingSim's meta.json, if it exists."""
    file = folder / "meta.json"
    meta = next((data for _, data in objects(documents(file))), {}) if file.exists() else {}
    facts = {**(within(meta, "engine_kwargs") or {}), "model": meta.get("model"), "vllm": meta.get("vllm_version")}
    if (blocks := within(meta, "kv_cache", "num_gpu_blocks")) is not None:
        facts["num_gpu_blocks_override"] = blocks
    return read_as(str(file), facts, ServerFacts)
