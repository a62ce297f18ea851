"""Import published traces of production servers, CSV: Azure's and BurstGPT's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.usage import Imported, RequestUsage, number
from continuum_traces.schema import Program


def read_azure(file: Source) -> Iterator[Imported]:
    """Azure's LLM inference traces: ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``. Each row is a program."""
    start = None
    for line, (where, row) in enumerate(file.rows("TIMESTAMP"), 1):
        at = datetime.fromisoformat(row["TIMESTAMP"])
        start = start or at
        usage = RequestUsage(int(number(where, row, "ContextTokens")), int(number(where, row, "GeneratedTokens")))
        yield Imported(Program(f"request-{line}", (), "azure", arrival_s=(at - start).total_seconds()), [usage])


def read_burstgpt(file: Source) -> Iterator[Imported]:
    """BurstGPT: ``Timestamp`` (s), ``Model``, ``Request tokens``, ``Response tokens``. A row without an answer is a
    failed request, and a program without turns."""
    for line, (where, row) in enumerate(file.rows("Timestamp"), 1):
        usage = RequestUsage(int(number(where, row, "Request tokens")), int(number(where, row, "Response tokens")))
        arrival_s = number(where, row, "Timestamp")
        program = Program(f"request-{line}", (), "burstgpt", row.get("Model"), arrival_s=arrival_s)
        yield Imported(program, [usage] if usage.output_tokens else [], empty="a failed request, without an answer")


IMPORTERS = (
    Importer("azure", read_azure, (Signs({"TIMESTAMP": object, "ContextTokens": object, "GeneratedTokens": object}),)),
    Importer(
        "burstgpt",
        read_burstgpt,
        (
            Signs(
                {"Timestamp": object, "Request tokens": object, "Response tokens": object}, more=("Model", "Log Type")
            ),
        ),
    ),
)
