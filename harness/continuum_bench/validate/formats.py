"""Readers of request logs, one for each tool.

``vllm bench serve --save-detailed`` (from the version that saves ``start_times``; older ones at an infinite rate),
guidellm's benchmarks.json (0.2 and later), aiperf's profile_export.jsonl, LLMServingSim's requests.jsonl, turns.jsonl
of our own runs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from continuum_bench.errors import BenchError
from continuum_bench.validate.fields import an_object, as_number, load_of, number, quantity, served, within
from continuum_bench.validate.served import CUT_OFF, FAILED, NO_OUTPUT, NOT_THERE, WARM_UP, Served, Unreported

Row = Served | Unreported
Document = tuple[str, Mapping[str, Any]]
"""The place of a JSON object (``FILE:LINE``), and the object."""
ENOUGH = 0.8
"""Smallest share of the answered requests that a log must hold. With fewer, the modelled server has too little load."""

# ---------------------------------------------------------------------------------------- LLMServingSim

SIMULATOR_FIELDS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")
_INSTANTS = ("arrival_time", "first_token_ts", "last_token_ts")


def llmservingsim(rows: Iterable[Document]) -> Iterator[Row]:
    """Read requests.jsonl, whose arrivals are on the wall clock and whose other instants are on a monotonic clock.

    The clocks are aligned by the request with the shortest time from its arrival to the engine's queue. A server
    accepts requests only between steps, so other requests had to wait.
    """
    of = []
    for where, row in rows:
        if row.get("first_token_ts") is None and row.get("last_token_ts") is None:
            yield Unreported(FAILED)
        else:
            of.append((where, {name: number(where, row, name) for name in SIMULATOR_FIELDS}))
    behind = min((row["queued_ts"] - row["arrival_time"] for _, row in of), default=0.0)
    for where, row in of:
        instants = row["arrival_time"], row["first_token_ts"] - behind, row["last_token_ts"] - behind
        yield served(where, instants, row["input_toks"], row["output_toks"], _INSTANTS)


# ----------------------------------------------------------------------------------------------- aiperf


def aiperf(rows: Iterable[Document]) -> Iterator[Row]:
    """Read profile_export.jsonl. Turns of one conversation share their context, and the gaps between them are kept."""
    found: list[Served] = []
    turns: Counter[str | None] = Counter()
    for where, row in rows:
        each = _aiperf_row(where, row)
        if isinstance(each, Unreported):
            yield each
            continue
        found.append(each)
        turns[each.program_id] += 1
    yield from _conversations(found, {name for name, number in turns.items() if number > 1})


def _aiperf_row(where: str, row: Mapping[str, Any]) -> Row:
    metadata = an_object(where, row, "metadata")
    if row.get("error") is not None:
        return Unreported(FAILED)
    metrics = an_object(where, row, "metrics")
    start_s = number(where, metadata, "request_start_ns") / 1e9
    prompt = quantity(where, metrics, "input_sequence_length")
    output = within(metrics, "output_sequence_length", "value") or 0
    if not output:
        return Unreported(NO_OUTPUT, load_of(start_s, prompt, 0))
    if metadata.get("benchmark_phase") == "warmup":
        return Unreported(WARM_UP, load_of(start_s, prompt, output))
    if "time_to_first_token" not in metrics:
        raise BenchError(f"{where}: time_to_first_token: missing; run aiperf profile with --streaming")
    spans = [quantity(where, metrics, name) for name in ("time_to_first_token", "request_latency")]
    instants = start_s, *(start_s + span for span in spans)
    names = "request_start_ns", "time_to_first_token", "request_latency"
    session = metadata.get("x_correlation_id") or metadata.get("conversation_id")
    return served(where, instants, prompt, output, names, None if session is None else str(session))


def _conversations(found: Sequence[Served], of_several: set[str | None]) -> Iterator[Served]:
    """Yield the requests of each conversation with the gaps between them, and other requests without a program."""
    by_program: dict[str | None, list[Served]] = {}
    for each in sorted(found, key=lambda each: each.arrival_s):
        if each.program_id is None or each.program_id not in of_several:
            yield replace(each, program_id=None)
        else:
            by_program.setdefault(each.program_id, []).append(each)
    for turns in by_program.values():
        for now, after in pairwise(turns):
            yield replace(now, gap_s=max(after.arrival_s - now.finish_s, 0.0))
        yield turns[-1]


# --------------------------------------------------------------------------------------------- guidellm


def guidellm(place: str, benchmark: Any) -> Iterator[Row]:
    """Read one benchmark. Requests that were cut off at its end are played up to that point."""
    requests = an_object(place, benchmark, "requests")
    answered = requests.get("successful")
    if not isinstance(answered, list):
        raise BenchError(f"{place}.requests.successful: missing; run guidellm without sampling its requests")
    yield from _not_there(place, benchmark, len(answered))
    found: list[Served] = []
    for index, row in enumerate(answered):
        each = _guidellm_row(f"{place}.requests.successful[{index}]", row)
        if isinstance(each, Unreported):
            yield each
        else:
            found.append(each)
    turns = Counter(each.program_id for each in found)
    yield from _conversations(found, {name for name, number in turns.items() if number > 1})
    for row in requests.get("incomplete") or ():
        yield Unreported(
            CUT_OFF, load_of(_first(row, STARTS), within(row, "prompt_tokens"), within(row, "output_tokens"))
        )
    yield from (Unreported(FAILED) for _ in requests.get("errored") or ())


STARTS, ENDS = ("request_start_time", "start_time"), ("request_end_time", "end_time")
"""The fields since guidellm 0.4, and before."""


def _guidellm_row(where: str, row: Any) -> Row:
    start_name = next((name for name in STARTS if within(row, name) is not None), STARTS[0])
    end_name = next((name for name in ENDS if within(row, name) is not None), ENDS[0])
    start_s = number(where, row, start_name)
    if within(row, "output_tokens") == 0:
        return Unreported(NO_OUTPUT, load_of(start_s, within(row, "prompt_tokens"), 0))
    first = "time_to_first_token_ms"
    if within(row, first) is None:
        raise BenchError(f"{where}: {first}: missing; run guidellm with streamed answers")
    instants = start_s, start_s + number(where, row, first) / 1e3, number(where, row, end_name)
    lengths = number(where, row, "prompt_tokens"), number(where, row, "output_tokens")
    session = within(row, "info", "conversation_id")
    return served(where, instants, *lengths, (start_name, first, end_name), session)


def _first(row: Any, names: Sequence[str]) -> Any:
    return next((found for name in names if (found := within(row, name)) is not None), None)


def _not_there(place: str, benchmark: Any, answered: int) -> Iterator[Unreported]:
    totals = within(benchmark, "metrics", "request_totals") or within(benchmark, "run_stats", "requests_made")
    made = within(totals, "successful")
    if not isinstance(made, int):
        return
    if answered < ENOUGH * made:
        raise BenchError(
            f"{place}.requests.successful: {answered} of {made} answered requests; run guidellm without sampling its "
            "requests"
        )
    yield from (Unreported(NOT_THERE) for _ in range(made - answered))


def guidellm_name(index: int, benchmark: Any) -> str:
    """Return a name such as ``benchmark 2 (constant, rate 4)``."""
    strategy = _first(benchmark, ("strategy",)) or within(benchmark, "args", "strategy")
    strategy = strategy or within(benchmark, "config", "strategy")
    words = [str(within(strategy, "type_") or "")]
    words += [f"{name} {value}" for name in ("rate", "streams") if (value := within(strategy, name)) is not None]
    said = ", ".join(filter(None, words))
    return f"benchmark {index} ({said})" if said else f"benchmark {index}"


def guidellm_model(data: Any, benchmark: Any) -> str | None:
    found = within(benchmark, "worker", "backend_model") or within(benchmark, "config", "backend", "model")
    found = found or within(data, "args", "model")
    return found if isinstance(found, str) else None


# --------------------------------------------------------------------------------------------- vllm bench

SAVE = "run vllm bench serve with --save-result --save-detailed"
VLLM_COLUMNS = ("ttfts", "itls", "input_lens", "output_lens")


def vllm_bench(where: str, data: Mapping[str, Any]) -> Iterator[Row]:
    size = len(data["ttfts"]) if isinstance(data.get("ttfts"), list) else -1
    for name in VLLM_COLUMNS:
        _check_column(where, data, name, size, SAVE)
    spans = [_spans(f"{where}: request {index}", data, index) for index in range(size)]
    starts = data.get("start_times")
    if starts is None and str(data.get("request_rate")) == "inf":
        starts = _starts_at_once([sum(each) for each in spans], data.get("max_concurrency"))
    _check_column(where, {"start_times": starts}, "start_times", size, SAVE + "; older versions save no arrivals")
    errors = data.get("errors") or [""] * size
    if not isinstance(errors, list):
        raise BenchError(f"{where}: errors: expected a list, found {errors!r}")
    for index, start in enumerate(starts or ()):
        place = f"{where}: request {index}"
        if errors[index : index + 1] != [""] and errors[index : index + 1] != [None]:
            yield Unreported(FAILED)
            continue
        start_s = as_number(f"{place}: start_times", start)
        first_s, rest_s = spans[index]
        prompt = as_number(f"{place}: input_lens", data["input_lens"][index])
        output = as_number(f"{place}: output_lens", data["output_lens"][index])
        if not output:
            yield Unreported(NO_OUTPUT if first_s else FAILED, load_of(start_s, prompt, 0) if first_s else None)
            continue
        instants = start_s, start_s + first_s, start_s + first_s + rest_s
        yield served(place, instants, prompt, output, ("start_times", "ttfts", "itls"))


def _check_column(where: str, data: Mapping[str, Any], name: str, size: int, why: str) -> None:
    if not isinstance(data.get(name), list):
        raise BenchError(f"{where}: {name}: missing; {why}")
    if len(data[name]) != size:
        raise BenchError(f"{where}: {name}: {len(data[name])} entries, but ttfts has {size}")


def _spans(where: str, data: Mapping[str, Any], index: int) -> tuple[float, float]:
    """Return the seconds to the first token, and from there to the last; 0 for a failed request."""
    first, gaps = data["ttfts"][index] or 0.0, data["itls"][index] or ()
    if not isinstance(gaps, (list, tuple)):
        raise BenchError(f"{where}: itls: expected a list, found {gaps!r}")
    return as_number(f"{where}: ttfts", first), sum(as_number(f"{where}: itls", each) for each in gaps)


def _starts_at_once(seconds: Sequence[float], most: Any) -> list[float]:
    """Return the instants of requests at an infinite rate: 0, or the end of one of the ``most`` running requests."""
    if not isinstance(most, int) or most < 1:
        return [0.0] * len(seconds)
    ends: list[float] = []
    starts = []
    for each in seconds:
        starts.append(heapq.heappop(ends) if len(ends) == most else 0.0)
        heapq.heappush(ends, starts[-1] + each)
    return starts


def vllm_bench_name(stem: str, data: Mapping[str, Any]) -> str:
    """Return the name of a run: the file's, with the load that distinguishes its runs."""
    rate, most = data.get("request_rate"), data.get("max_concurrency")
    words = [] if rate in (None, "inf") else [f"{rate:g} requests/s" if isinstance(rate, (int, float)) else f"{rate}"]
    words += [] if most is None else [f"at most {most} at once"]
    return f"{stem} ({', '.join(words)})" if words else stem


# -------------------------------------------------------------------------------------------- our own runs

_OWN = ("due_s", "first_token_s", "finish_s")


def own_turns(rows: Iterable[Document]) -> Iterator[Row]:
    for where, row in rows:
        if row.get("schema") is not None:
            continue
        if row.get("error") is not None:
            yield Unreported(FAILED)
            continue
        lengths = number(where, row, "prompt_tokens"), number(where, row, "output_tokens")
        instants = [number(where, row, name) for name in _OWN]
        yield replace(
            served(where, instants, *lengths, _OWN, str(row.get("program_id"))), gap_s=row.get("gap_s") or 0.0
        )
