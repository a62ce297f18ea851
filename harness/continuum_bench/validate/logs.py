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

import msgspec
from continuum_traces.run_dir import MANIFEST, TURNS

from continuum_bench.errors import BenchError
from continuum_bench.validate.fields import documents, objects, within
from continuum_bench.validate.formats import (
    Row,
    aiperf,
    guidellm,
    guidellm_model,
    guidellm_name,
    llmservingsim,
    own_turns,
    vllm_bench,
    vllm_bench_name,
)
from continuum_bench.validate.served import LoggedRun, Served, ServerFacts, Unreported

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
    found = _in_folder(path, path.name) if path.is_dir() else _in_file(path)
    if not found:
        raise BenchError(f"{path}: {'holds' if path.is_dir() else 'is'} no known log: {EXPECTED}")
    names = Counter(run.name for run in found)
    return [
        run if names[run.name] == 1 else replace(run, name=f"{run.name}, number {number}")
        for number, run in enumerate(found, 1)
    ]


def _in_folder(path: Path, name: str) -> list[LoggedRun]:
    if (path / TURNS).exists():
        return [_run(path / TURNS, name, own_turns(objects(documents(path / TURNS))), _own_facts(path))]
    named = [file for each in LOGS for file in (path / each, path / f"{each}.gz") if file.exists()]
    if named:
        return list(chain.from_iterable(map(_in_file, named)))
    found: list[LoggedRun] = []
    for each in sorted(path.iterdir()):
        if each.is_dir():
            found += _in_folder(each, f"{name}/{each.name}")
        elif each.name.endswith(ENDINGS):
            found += _in_file(each)
    return found


def _in_file(path: Path) -> list[LoggedRun]:
    """Read the runs in a file; empty if it is no request log."""
    found = documents(path)
    first = next(found, None)
    if first is None or not isinstance(first[1], dict):
        return []
    rows = objects(chain([first], found))
    data, name = first[1], path.absolute().parent.name
    if "benchmarks" in data:
        return list(_guidellm_runs(path, data))
    if "ttfts" in data or "request_throughput" in data:
        return [_vllm_run(path, *each) for each in rows]
    if path.name.removesuffix(".gz") == TURNS:
        return [_run(path, name, own_turns(rows), _own_facts(path.parent))]
    if "metadata" in data and ("metrics" in data or "error" in data):
        return [_run(path, name, aiperf(rows))]
    if "arrival_time" in data or "input_toks" in data:
        return [_run(path, name, llmservingsim(rows), _meta(path.parent))]
    return []


def _guidellm_runs(path: Path, data: dict[str, Any]) -> Iterator[LoggedRun]:
    if not isinstance(data["benchmarks"], list):
        raise BenchError(f"{path}: benchmarks: expected a list")
    for index, benchmark in enumerate(data["benchmarks"]):
        facts = ServerFacts(model=guidellm_model(data, benchmark))
        rows = guidellm(f"{path}: benchmarks[{index}]", benchmark)
        yield _run(path, guidellm_name(index, benchmark), rows, facts)


def _vllm_run(path: Path, where: str, data: dict[str, Any]) -> LoggedRun:
    model = data.get("model_id")
    facts = ServerFacts(model=model if isinstance(model, str) else None)
    name = vllm_bench_name(path.name.removesuffix(".gz").rpartition(".")[0], data)
    return _run(path, name, vllm_bench(where.removesuffix(":1"), data), facts)


def _run(path: Path, name: str, rows: Iterable[Row], server: ServerFacts = ServerFacts()) -> LoggedRun:  # noqa: B008
    served: list[Served] = []
    others: list[Unreported] = []
    for row in rows:
        if isinstance(row, Served):
            served.append(row)
        else:
            others.append(row)
    if not served:
        raise BenchError(f"{path}: {name}: no request that was answered")
    load = [each.load for each in others if each.load is not None]
    start_s = min(each.arrival_s for each in (*served, *load))
    return LoggedRun(name, _shifted(served, start_s), server, _shifted(load, start_s), Counter(e.why for e in others))


def _shifted(rows: Sequence[Served], start_s: float) -> tuple[Served, ...]:
    return tuple(
        replace(
            row,
            arrival_s=row.arrival_s - start_s,
            first_token_s=row.first_token_s - start_s,
            finish_s=row.finish_s - start_s,
        )
        for row in sorted(rows, key=lambda row: row.arrival_s)
    )


# ---------------------------------------------------------------------------------------- facts of the server


def _only(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file; empty if the file does not exist."""
    return next((data for _, data in objects(documents(path))), {}) if path.exists() else {}


def _own_facts(folder: Path) -> ServerFacts:
    manifest = _only(folder / MANIFEST)
    hardware, options = _part(manifest, "hardware"), _part(manifest, "engine_options")
    return _facts(
        folder / MANIFEST,
        gpu=hardware.get("gpu"),
        model=hardware.get("model"),
        vllm=within(manifest, "versions", "vllm"),
        tensor_parallel=hardware.get("tensor_parallel"),
        pipeline_parallel=hardware.get("pipeline_parallel"),
        max_num_seqs=options.get("max_num_seqs"),
        chunk_tokens=options.get("chunk_tokens"),
        kv_blocks=within(hardware, "kv_capacity", "num_blocks"),
        block_size=within(hardware, "kv_capacity", "block_size"),
        prefix_caching=options.get("prefix_caching"),
    )


def _meta(folder: Path) -> ServerFacts:
    """Read the server's settings from LLMServingSim's meta.json, if it exists."""
    meta = _only(folder / "meta.json")
    options = _part(meta, "engine_kwargs")
    return _facts(
        folder / "meta.json",
        model=meta.get("model"),
        vllm=meta.get("vllm_version"),
        tensor_parallel=options.get("tensor_parallel_size"),
        pipeline_parallel=options.get("pipeline_parallel_size"),
        replicas=options.get("data_parallel_size"),
        max_num_seqs=options.get("max_num_seqs"),
        chunk_tokens=options.get("max_num_batched_tokens"),
        kv_blocks=within(meta, "kv_cache", "num_gpu_blocks") or options.get("num_gpu_blocks_override"),
        block_size=options.get("block_size"),
        kv_cache_dtype=options.get("kv_cache_dtype"),
        prefix_caching=options.get("enable_prefix_caching"),
        gpu_memory_utilization=options.get("gpu_memory_utilization"),
    )


def _part(data: dict[str, Any], name: str) -> dict[str, Any]:
    return value if isinstance(value := data.get(name), dict) else {}


def _facts(file: Path, **facts: Any) -> ServerFacts:
    try:
        return msgspec.convert(facts, ServerFacts)
    except msgspec.ValidationError as error:
        raise BenchError(f"{file}: {error}") from error
