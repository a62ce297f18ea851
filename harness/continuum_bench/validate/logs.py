"""Reads the request logs of real servers: who asked for how many tokens when, and when the answers came.

Formats: ``vllm bench serve --save-detailed``, guidellm's benchmarks.json, aiperf's profile_export.jsonl,
LLMServingSim's requests.jsonl (with meta.json beside it), and run directories of our own live runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from continuum_traces.run_dir import MANIFEST, TURNS

from continuum_bench.errors import BenchError


@dataclass(frozen=True, slots=True)
class Served:
    """One request that a server answered. Instants are seconds on one clock."""

    arrival_s: float
    first_token_s: float
    finish_s: float
    prompt_tokens: int
    output_tokens: int
    program_id: str | None = None
    """The agent that sent it; None: nothing of its prompt is in another request's."""
    gap_s: float = 0.0
    """Seconds until the program's next request."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a log says of its server; None where it says nothing."""

    model: str | None = None
    vllm: str | None = None
    tensor_parallel: int | None = None
    replicas: int | None = None
    """Engines that share the requests (vLLM's data parallel size)."""
    max_num_seqs: int | None = None
    chunk_tokens: int | None = None
    kv_blocks: int | None = None


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One run of a load generator, in order of arrival. The first request arrives at 0."""

    name: str
    served: tuple[Served, ...]
    server: ServerFacts = ServerFacts()


def read_log(path: Path) -> list[LoggedRun]:
    """The runs in a log.

    Raises:
        BenchError: an unknown format, a field that is missing, or clocks that run backwards; it names file, line and
            field.
    """
    if path.is_dir():
        return _read_folder(path)
    text = _text(path)
    if path.suffix == ".jsonl":
        first = _json(f"{path}:1", text.partition("\n")[0])
        reader = _aiperf if isinstance(first, dict) and "metadata" in first else _llmservingsim
        return [_run(path, path.parent.name, reader(path, text), _meta(path.parent))]
    data = _json(str(path), text)
    if isinstance(data, dict) and "benchmarks" in data:
        return [_run(path, f"benchmark {n}", rows, ServerFacts()) for n, rows in enumerate(_guidellm(path, data))]
    if isinstance(data, dict) and "ttfts" in data:
        return [_run(path, path.stem, _vllm_bench(path, data), ServerFacts(model=data.get("model_id")))]
    raise BenchError(
        f"{path}: no known log: expected vllm bench serve --save-detailed, guidellm, aiperf's profile_export.jsonl, "
        "LLMServingSim's requests.jsonl, or a run directory"
    )


def _read_folder(path: Path) -> list[LoggedRun]:
    if (path / TURNS).exists():
        return [_run(path / TURNS, path.name, _own_turns(path / TURNS), _own_facts(path))]
    for name in ("requests.jsonl", "profile_export.jsonl", "benchmarks.json"):
        if (path / name).exists():
            return read_log(path / name)
    raise BenchError(f"{path}: holds no {TURNS}, requests.jsonl, profile_export.jsonl or benchmarks.json")


def _run(path: Path, name: str, rows: Iterator[Served], server: ServerFacts) -> LoggedRun:
    found = sorted(rows, key=lambda row: row.arrival_s)
    if not found:
        raise BenchError(f"{path}: no request that was answered")
    start = found[0].arrival_s
    return LoggedRun(name, tuple(_shift(row, start) for row in found), server)


def _shift(row: Served, start: float) -> Served:
    return replace(
        row,
        arrival_s=row.arrival_s - start,
        first_token_s=row.first_token_s - start,
        finish_s=row.finish_s - start,
    )


# --------------------------------------------------------------------------------------------- formats


def _llmservingsim(path: Path, text: str) -> Iterator[Served]:
    """Arrivals are on the wall clock, the other instants on a monotonic clock. The two are aligned by the request that
    reached the engine soonest: a server takes in requests only between steps, so later ones have waited."""
    rows = list(_lines(path, text))
    of = [(where, {name: _number(where, row, name) for name in SIMULATOR_FIELDS}) for where, row in rows]
    if not of:
        return
    behind = min(row["queued_ts"] - row["arrival_time"] for _, row in of)
    for where, row in of:
        yield _served(
            where,
            row["arrival_time"],
            row["first_token_ts"] - behind,
            row["last_token_ts"] - behind,
            row["input_toks"],
            row["output_toks"],
            ("arrival_time", "first_token_ts", "last_token_ts"),
        )


SIMULATOR_FIELDS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")


def _aiperf(path: Path, text: str) -> Iterator[Served]:
    for where, row in _lines(path, text):
        if row.get("error") is not None:
            continue
        metrics, metadata = _object(where, row, "metrics"), _object(where, row, "metadata")
        start = _number(where, metadata, "request_start_ns") / 1e9
        values = {name: _quantity(where, metrics, name) for name in ("time_to_first_token", "request_latency")}
        yield _served(
            where,
            start,
            start + values["time_to_first_token"] / 1e3,
            start + values["request_latency"] / 1e3,
            _quantity(where, metrics, "input_sequence_length"),
            _quantity(where, metrics, "output_sequence_length"),
            ("request_start_ns", "time_to_first_token", "request_latency"),
        )


def _guidellm(path: Path, data: dict[str, Any]) -> Iterator[Iterator[Served]]:
    benchmarks = data["benchmarks"]
    if not isinstance(benchmarks, list):
        raise BenchError(f"{path}: benchmarks: expected a list")
    for number, benchmark in enumerate(benchmarks):
        place = f"{path}: benchmarks[{number}]"
        requests = _object(place, benchmark, "requests").get("successful")
        if not isinstance(requests, list):
            raise BenchError(f"{place}.requests.successful: missing; run guidellm without sampling its requests")
        yield _guidellm_rows(place, requests)


def _guidellm_rows(place: str, requests: Sequence[Any]) -> Iterator[Served]:
    for number, row in enumerate(requests):
        where = f"{place}.requests.successful[{number}]"
        start_name = "request_start_time" if "request_start_time" in row else "start_time"
        end_name = "request_end_time" if "request_end_time" in row else "end_time"
        start = _number(where, row, start_name)
        yield _served(
            where,
            start,
            start + _number(where, row, "time_to_first_token_ms") / 1e3,
            _number(where, row, end_name),
            _number(where, row, "prompt_tokens"),
            _number(where, row, "output_tokens"),
            (start_name, "time_to_first_token_ms", end_name),
        )


VLLM_COLUMNS = ("start_times", "ttfts", "itls", "input_lens", "output_lens")


def _vllm_bench(path: Path, data: dict[str, Any]) -> Iterator[Served]:
    for name in VLLM_COLUMNS:
        if not isinstance(data.get(name), list):
            why = "older versions save no arrivals" if name == "start_times" else ""
            hint = "run vllm bench serve with --save-result --save-detailed"
            raise BenchError(f"{path}: {name}: missing; {'; '.join(filter(None, (hint, why)))}")
        if len(data[name]) != len(data["ttfts"]):
            raise BenchError(f"{path}: {name}: {len(data[name])} entries, but ttfts has {len(data['ttfts'])}")
    errors = data.get("errors") or [""] * len(data["ttfts"])
    for number, start in enumerate(data["start_times"]):
        if errors[number]:
            continue
        where = f"{path}: request {number}"
        first = start + data["ttfts"][number]
        finish = first + sum(data["itls"][number])
        lengths = data["input_lens"][number], data["output_lens"][number]
        yield _served(where, start, first, finish, *lengths, ("start_times", "ttfts", "itls"))


def _own_turns(path: Path) -> Iterator[Served]:
    for where, row in _lines(path, _text(path)):
        if row.get("error") is not None or row.get("schema") is not None:
            continue
        yield replace(
            _served(
                where,
                _number(where, row, "due_s"),
                _number(where, row, "first_token_s"),
                _number(where, row, "finish_s"),
                _number(where, row, "prompt_tokens"),
                _number(where, row, "output_tokens"),
                ("due_s", "first_token_s", "finish_s"),
            ),
            program_id=str(row.get("program_id")),
            gap_s=row.get("gap_s") or 0.0,
        )


def _own_facts(folder: Path) -> ServerFacts:
    manifest = _json(str(folder / MANIFEST), _text(folder / MANIFEST))
    hardware, options = manifest.get("hardware", {}), manifest.get("engine_options", {})
    return ServerFacts(
        model=hardware.get("model"),
        vllm=manifest.get("versions", {}).get("vllm"),
        tensor_parallel=hardware.get("tensor_parallel"),
        max_num_seqs=options.get("max_num_seqs"),
        chunk_tokens=options.get("chunk_tokens"),
        kv_blocks=(hardware.get("kv_capacity") or {}).get("num_blocks"),
    )


def _meta(folder: Path) -> ServerFacts:
    """LLMServingSim's meta.json, if there is one."""
    if not (folder / "meta.json").exists():
        return ServerFacts()
    meta = _json(str(folder / "meta.json"), _text(folder / "meta.json"))
    options = meta.get("engine_kwargs", {})
    return ServerFacts(
        model=meta.get("model"),
        vllm=meta.get("vllm_version"),
        tensor_parallel=options.get("tensor_parallel_size"),
        replicas=options.get("data_parallel_size"),
        max_num_seqs=options.get("max_num_seqs"),
        chunk_tokens=options.get("max_num_batched_tokens"),
        kv_blocks=meta.get("kv_cache", {}).get("num_gpu_blocks"),
    )


# --------------------------------------------------------------------------------------------- fields


def _served(
    where: str,
    arrival_s: float,
    first_token_s: float,
    finish_s: float,
    prompt_tokens: float,
    output_tokens: float,
    names: tuple[str, str, str],
) -> Served:
    """Checked: instants in order, whole numbers of at least one token.

    Args:
        names: the log's names of the three instants.
    """
    if first_token_s < arrival_s:
        raise BenchError(f"{where}: {names[1]}: the first token comes {arrival_s - first_token_s:.3f} s before arrival")
    if finish_s < first_token_s:
        raise BenchError(f"{where}: {names[2]}: the end comes {first_token_s - finish_s:.3f} s before the first token")
    for name, tokens in (("prompt", prompt_tokens), ("output", output_tokens)):
        if tokens < 1 or tokens != int(tokens):
            raise BenchError(f"{where}: {name} tokens: {tokens:g}; expected a whole number of at least 1")
    return Served(arrival_s, first_token_s, finish_s, int(prompt_tokens), int(output_tokens))


def _number(where: str, row: Any, name: str) -> float:
    value = row.get(name) if isinstance(row, dict) else None
    if value is None:
        raise BenchError(f"{where}: {name}: missing")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BenchError(f"{where}: {name}: expected a number, found {value!r}")
    return value


def _quantity(where: str, metrics: Any, name: str) -> float:
    """A number of aiperf's ``{"value": ..., "unit": ...}``."""
    return _number(f"{where}: {name}", _object(where, metrics, name), "value")


def _object(where: str, row: Any, name: str) -> dict[str, Any]:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, dict):
        raise BenchError(f"{where}: {name}: missing")
    return value


def _lines(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            row = _json(f"{path}:{number}", line)
            if not isinstance(row, dict):
                raise BenchError(f"{path}:{number}: expected an object")
            yield f"{path}:{number}", row


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BenchError(f"{where}: not JSON: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path}: cannot read: {error}") from error
