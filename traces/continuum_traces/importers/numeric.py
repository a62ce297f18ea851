"""Import the numeric format: one JSON line per turn, with token counts and seconds only.

Fields that are read: program_id, turn, prompt_tokens, new_input_tokens, output_tokens, tools_main or tools, tool_s,
pack_s, cached_tokens, llm_s, model, src. Every prompt keeps its exact length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from continuum_traces.importers.importer import Importer, Signs, Source
from continuum_traces.importers.usage import (
    UNKNOWN,
    Imported,
    RequestUsage,
    calls_sharing_a_time,
    listed,
    number,
    rows_by,
)
from continuum_traces.schema import Program


def read_numeric(file: Source) -> Iterator[Imported]:
    """Token counts and seconds without text: one turn per line.

    Raises:
        TraceError: the file has a fault. The message names file, line and field.
    """
    for program_id, rows in rows_by("program_id", file.rows("program_id", "prompt_tokens", "output_tokens")).items():
        _, first = rows[0]
        program = Program(program_id, (), str(first.get("src", "numeric")), first.get("model"))
        yield Imported(program, [_usage(*row) for row in rows])


def _usage(where: str, row: dict[str, Any]) -> RequestUsage:
    names = listed(where, row, "tools_main" if row.get("tools_main") else "tools", str)
    seconds = None if row.get("tool_s") is None else float(number(where, row, "tool_s"))
    if not names and seconds is not None:
        names = [UNKNOWN]
    return RequestUsage(
        prompt_tokens=int(number(where, row, "prompt_tokens")),
        output_tokens=int(number(where, row, "output_tokens")),
        new_tokens_hint=row.get("new_input_tokens"),
        tool_calls=calls_sharing_a_time(names, seconds),
        gap_overhead_s=float(number(where, row, "pack_s", 0)),
        cached_tokens=row.get("cached_tokens"),
        llm_s=row.get("llm_s"),
    )


IMPORTERS = (
    Importer(
        "numeric",
        read_numeric,
        (
            Signs(
                {"program_id": object, "prompt_tokens": object, "output_tokens": object},
                more=("turn", "tools", "tools_main", "tool_s", "pack_s", "new_input_tokens", "src"),
            ),
        ),
    ),
)
