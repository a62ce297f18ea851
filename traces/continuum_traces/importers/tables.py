"""Import published traces of production servers, CSV: Azure's and BurstGPT's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.usage import (
    Imported,
    RequestUsage,
    Row,
    count_of,
    in_order,
    number,
    rows_by,
)
from continuum_traces.jsonl import TraceError
from continuum_traces.schema import Program


def read_azure(file: Source) -> Iterator[Imported]:
    """Azure's LLM inference traces: ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``. Each row is a program."""
    start = None
    for line, (where, row) in enumerate(file.rows("TIMESTAMP"), 1):
        at = datetime.fromisoformat(row["TIMESTAMP"])
        start = start or at
        if at < start:
            raise TraceError(f"{where}: TIMESTAMP: earlier than in the first row; sort the file by it")
        usage = RequestUsage(count_of(where, row, "ContextTokens"), count_of(where, row, "GeneratedTokens"))
        yield Imported(Program(f"request-{line}", (), "azure", arrival_s=(at - start).total_seconds()), [usage])


def read_burstgpt(file: Source) -> Iterator[Imported]:
    """BurstGPT: ``Timestamp`` (s), ``Model``, ``Request tokens``, ``Response tokens``. Rows with the same
    ``Session ID`` are the turns of a program, a row without it is a program. ``Elapsed time`` (s) is the answer's. A
    row without an answer is a failed request."""
    for name, rows in rows_by("Session ID", file.rows("Timestamp")).items():
        yield _session(file, name, in_order(rows, "Timestamp"))


def _session(file: Source, name: str, rows: list[Row]) -> Imported:
    (where, first), answered = rows[0], [row for row in rows if number(*row, "Response tokens")]
    starts_s = [number(*row, "Timestamp") for row in answered]
    times_s = [number(*row, "Elapsed time", 0) for row in answered]
    gaps_s = [
        max(0.0, after - start - took) for start, took, after in zip(starts_s, times_s, starts_s[1:], strict=False)
    ]
    requests = [
        RequestUsage(count_of(*row, "Request tokens"), count_of(*row, "Response tokens"), gap_overhead_s=gap_s)
        for row, gap_s in zip(answered, [*gaps_s, 0.0], strict=False)  # the last has no gap
    ]
    if answered:
        wrong = [row for row in answered if number(*row, "Total tokens", sum_of(*row)) != sum_of(*row)]
        file.assume("request", "Total tokens is not the sum of request and response: not used", len(wrong))
        file.assume("request", "failed, without an answer: left out", len(rows) - len(answered))
        file.assume("session", "each row read as a whole prompt", int(len(answered) > 1))
    program = Program(name, (), "burstgpt", first.get("Model"), arrival_s=float(number(where, first, "Timestamp")))
    return Imported(program, requests, empty="a failed request, without an answer")


def sum_of(where: str, row: dict[str, Any]) -> int:
    return count_of(where, row, "Request tokens") + count_of(where, row, "Response tokens")


_BURST = {"Timestamp": object, "Request tokens": object, "Response tokens": object}
IMPORTERS = (
    Importer("azure", read_azure, (Signs({"TIMESTAMP": object, "ContextTokens": object, "GeneratedTokens": object}),)),
    Importer("burstgpt", read_burstgpt, (Signs(_BURST, ("Model", "Log Type", "Session ID", "Elapsed time")),)),
)
