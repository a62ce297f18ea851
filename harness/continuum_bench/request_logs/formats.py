"""Readers of request logs, one for each tool.

``vllm bench serve --save-detailed`` (from the version that saves ``start_times``), guidellm's benchmarks.json (0.4 and
later), aiperf's profile_export.jsonl, LLMServingSim's requests.jsonl, turns.jsonl
of our own runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from continuum_traces.records import read_turns
from continuum_traces.records.run_dir import TURNS
from msgspec import Struct

from continuum_bench.errors import BenchError
from continuum_bench.json_files import read_as
from continuum_bench.request_logs.fields import Number, load_of, served, within
from continuum_bench.request_logs.served import CUT_OFF, FAILED, NO_OUTPUT, NOT_THERE, WARM_UP, Served, Unreported

Row = Served | Unreported
Document = tuple[str, Mapping[str, Any]]
"""The place of a JSON object (``FILE:LINE``), and the object."""
ENOUGH = 0.8
"""Smallest share of the answered requests that a log must hold. With fewer, the modelled server has too little load."""


def conversations(rows: Iterable[Row]) -> Iterator[Row]:
    """Give the requests of each conversation the gaps between them. A conversation of one request is no program."""
    by_program: defaultdict[str | None, list[Served]] = defaultdict(list)
    for row in rows:
        if isinstance(row, Unreported):
            yield row
        else:
            by_program[row.program_id].append(row)
    for name, turns in by_program.items():
        if name is None or len(turns) == 1:
            yield from (replace(turn, program_id=None) for turn in turns)
            continue
        turns.sort(key=lambda turn: turn.arrival_s)
        for now, after in pairwise(turns):
            yield replace(now, gap_s=max(after.arrival_s - now.finish_s, 0.0))
        yield turns[-1]


# ---------------------------------------------------------------------------------------- LLMServingSim


class _SimulatorRow(Struct):
    input_toks: Number
    output_toks: Number
    arrival_time: Number
    queued_ts: Number
    first_token_ts: Number
    last_token_ts: Number


def llmservingsim(rows: Iterable[Document]) -> Iterator[Row]:
    """Read requests.jsonl, whose arrivals are on the wall clock and whose other instants are on a monotonic clock.

    The clocks are aligned by the request with the shortest time from its arrival to the engine's queue. A server
    accepts requests only between steps, so other requests had to wait.
    """
    answered = []
    for where, data in rows:
        if data.get("first_token_ts") is None and data.get("last_token_ts") is None:
            yield Unreported(FAILED)
        else:
            answered.append((where, read_as(where, data, _SimulatorRow)))
    behind_s = min((row.queued_ts - row.arrival_time for _, row in answered), default=0.0)
    for where, row in answered:
        instants = row.arrival_time, row.first_token_ts - behind_s, row.last_token_ts - behind_s
        yield served(where, instants, row.input_toks, row.output_toks)


# ----------------------------------------------------------------------------------------------- aiperf

UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}
"""Seconds."""


class _Metric(Struct, frozen=True):
    value: Number
    unit: str = ""

    @property
    def seconds(self) -> float:
        return self.value * UNITS.get(self.unit, 1.0)


class _Metrics(Struct):
    input_sequence_length: _Metric
    request_latency: _Metric
    output_sequence_length: _Metric = _Metric(0)
    time_to_first_token: _Metric | None = None


class _Metadata(Struct):
    request_start_ns: Number
    benchmark_phase: str | None = None
    x_correlation_id: str | None = None
    conversation_id: str | None = None


class _AiperfRow(Struct):
    metadata: _Metadata
    metrics: _Metrics


def aiperf(rows: Iterable[Document]) -> Iterator[Row]:
    """Read profile_export.jsonl. Turns of one conversation share their context, and the gaps between them are kept."""
    return conversations(_aiperf_row(where, data) for where, data in rows)


def _aiperf_row(where: str, data: Mapping[str, Any]) -> Row:
    if data.get("error") is not None:
        return Unreported(FAILED)
    row = read_as(where, data, _AiperfRow)
    start_s, first = row.metadata.request_start_ns / 1e9, row.metrics.time_to_first_token
    prompt, output = row.metrics.input_sequence_length.value, row.metrics.output_sequence_length.value
    if not output:
        return Unreported(NO_OUTPUT, load_of(start_s, prompt))
    if row.metadata.benchmark_phase == "warmup":
        return Unreported(WARM_UP, load_of(start_s, prompt, output))
    if first is None:
        raise BenchError(f"{where}: time_to_first_token: missing; run aiperf profile with --streaming")
    instants = start_s, start_s + first.seconds, start_s + row.metrics.request_latency.seconds
    return served(where, instants, prompt, output, row.metadata.x_correlation_id or row.metadata.conversation_id)


# --------------------------------------------------------------------------------------------- guidellm


class _GuidellmRow(Struct):
    """A request that was cut off, or that failed, lacks some of these."""

    request_start_time: Number | None = None
    time_to_first_token_ms: Number | None = None
    request_end_time: Number | None = None
    prompt_tokens: Number | None = None
    output_tokens: Number | None = None
    info: Any = None


class _Requests(Struct):
    successful: list[_GuidellmRow]
    incomplete: list[_GuidellmRow] | None = None
    errored: list[Any] | None = None


class LoggedBenchmark(Struct):
    requests: _Requests
    metrics: Any = None
    config: Any = None

    def name(self, index: int) -> str:
        """Return a name such as ``benchmark 2 (constant, rate 4)``."""
        strategy = within(self.config, "strategy")
        words = [str(within(strategy, "type_") or "")]
        words += [f"{name} {value}" for name in ("rate", "streams") if (value := within(strategy, name)) is not None]
        parts = ", ".join(filter(None, words))
        return f"benchmark {index} ({parts})" if parts else f"benchmark {index}"


class Guidellm(Struct):
    benchmarks: list[LoggedBenchmark]
    args: Any = None


def guidellm(place: str, benchmark: LoggedBenchmark) -> Iterator[Row]:
    """Read one benchmark. Requests that were cut off at its end are played up to that point.

    Raises:
        BenchError: a request lacks a field, or guidellm kept a sample of the requests only.
    """
    requests, place = benchmark.requests, f"{place}.requests.successful"
    answered = len(requests.successful)
    made = read_as(place, within(benchmark.metrics, "request_totals", "successful") or answered, int)
    if answered < ENOUGH * made:
        advice = "run guidellm without sampling its requests"
        raise BenchError(f"{place}: {answered} of {made} answered requests; {advice}")
    yield from conversations(_guidellm_row(f"{place}[{index}]", row) for index, row in enumerate(requests.successful))
    for row in requests.incomplete or ():
        yield Unreported(CUT_OFF, load_of(row.request_start_time, row.prompt_tokens, row.output_tokens))
    for why, number in ((FAILED, len(requests.errored or ())), (NOT_THERE, made - answered)):
        yield from (Unreported(why) for _ in range(number))


def _guidellm_row(where: str, row: _GuidellmRow) -> Row:
    start_s, first_ms, end_s = row.request_start_time, row.time_to_first_token_ms, row.request_end_time
    prompt, output, program_id = row.prompt_tokens, row.output_tokens, within(row.info, "conversation_id")
    if output == 0:
        return Unreported(NO_OUTPUT, load_of(start_s, prompt))
    if start_s is None or first_ms is None or end_s is None or prompt is None or output is None:
        names = ", ".join(name for name in row.__struct_fields__ if name != "info" and getattr(row, name) is None)
        raise BenchError(f"{where}: missing: {names}; run guidellm 0.4 or later with streamed answers")
    return served(where, (start_s, start_s + first_ms / 1e3, end_s), prompt, output, program_id)


# --------------------------------------------------------------------------------------------- vllm bench

SAVE = "; run vllm bench serve with --save-result --save-detailed"
NO_STARTS = (
    "start_times: missing; vllm bench serve writes them from vLLM 0.15 on (--save-result --save-detailed), SGLang's "
    "bench_serving does not"
)


class VllmBench(Struct):
    ttfts: list[Number]
    itls: list[list[Number]]
    input_lens: list[Number]
    output_lens: list[Number]
    start_times: list[Number]
    errors: list[str | None] | None = None
    request_rate: Any = None
    max_concurrency: int | None = None
    model_id: str | None = None

    def name(self, stem: str) -> str:
        """Return the name of a run: the file's, with the load that distinguishes its runs."""
        rate, most = self.request_rate, self.max_concurrency
        words = [] if rate in (None, "inf") else [f"{rate:g} requests/s" if isinstance(rate, (int, float)) else rate]
        words += [] if most is None else [f"at most {most} at once"]
        return f"{stem} ({', '.join(words)})" if words else stem


def vllm_bench(where: str, run: VllmBench) -> Iterator[Row]:
    errors = run.errors or [""] * len(run.ttfts)
    columns: tuple[list[Any], ...] = (run.start_times, run.ttfts, run.itls, run.input_lens, run.output_lens, errors)
    if len(set(map(len, columns))) > 1:
        raise BenchError(f"{where}: ttfts, itls, input_lens, output_lens, start_times, errors: of different lengths")
    for index, (start_s, first_s, gaps_s, prompt, output, error) in enumerate(zip(*columns, strict=True)):
        if error or not (output or first_s):
            yield Unreported(FAILED)
        elif not output:
            yield Unreported(NO_OUTPUT, load_of(start_s, prompt))
        else:
            instants = start_s, start_s + first_s, start_s + first_s + sum(gaps_s)
            yield served(f"{where}: request {index}", instants, prompt, output)


# -------------------------------------------------------------------------------------------- our own runs


def turns_of_run(folder: Path) -> Iterator[Row]:
    for turn in read_turns(folder):
        first_s, end_s, prompt, output = turn.first_token_s, turn.finish_s, turn.prompt_tokens, turn.output_tokens
        if turn.error is not None or first_s is None or end_s is None or prompt is None or output is None:
            yield Unreported(FAILED)
        else:
            where = f"{folder / TURNS}: {turn.program_id}, turn {turn.turn}"
            row = served(where, (turn.due_s, first_s, end_s), prompt, output, turn.program_id)
            yield replace(row, gap_s=turn.gap_s or 0.0)
