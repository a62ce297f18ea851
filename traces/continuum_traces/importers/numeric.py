"""Import the numeric format: one JSON line per turn, with token counts and seconds only.

Fields that are read: program_id, turn, prompt_tokens, new_input_tokens, output_tokens, tools_main or tools, tool_s,
pack_s, cached_tokens, llm_s, model, src. Every prompt keeps its exact length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from continuum_traces.importers.importer import Importer, Signs, Source, is_table
from continuum_traces.importers.usage import (
    UNKNOWN,
    Imported,
    RequestUsage,
    Row,
    calls_sharing_a_time,
    count_of,
    first_of,
    in_order,
    listed,
    number,
    rows_by,
)
from continuum_traces.jsonl import TraceError
from continuum_traces.schema import Program


def read_numeric(file: Source) -> Iterator[Imported]:
    """Token counts and seconds without text: one turn per line, JSON or CSV (tools divided by ``;``), in the order of
    ``turn`` if it is there.

    Raises:
        TraceError: the file has a fault. The message names file, line and field.
    """
    table = is_table(file.path)
    for program_id, rows in rows_by("program_id", file.rows("program_id", "prompt_tokens", "output_tokens")).items():
        _, first = rows[0]
        program = Program(program_id, (), str(first.get("src") or "numeric"), first.get("model"))
        yield Imported(program, [_usage(where, row, table) for where, row in _turns(file, rows)])


def _turns(file: Source, rows: list[Row]) -> list[Row]:
    """Return a program's rows in the order of its turns.

    Raises:
        TraceError: a turn is there twice.
    """
    ordered = in_order(rows, "turn")
    turns = [row.get("turn") for _, row in ordered]
    for (where, _), turn, before in zip(ordered[1:], turns[1:], turns, strict=False):
        if turn is not None and turn == before:
            raise TraceError(f"{where}: turn: {turn} is there twice")
    if None not in turns:
        missing = count_of(*ordered[-1], "turn") - count_of(*ordered[0], "turn") + 1 - len(turns)
        file.assume("turn", "missing in the table; what came after it is taken as its successor", missing)
    return ordered


def _usage(where: str, row: dict[str, Any], table: bool) -> RequestUsage:
    if table:
        cells = {name: row[name] for name in ("tools", "tools_main") if isinstance(row.get(name), str)}
        row = {**row, **{name: text.split(";") for name, text in cells.items()}}
    names = listed(where, row, "tools_main" if row.get("tools_main") else "tools", str)
    seconds = None if row.get("tool_s") is None else float(number(where, row, "tool_s"))
    if not names and seconds is not None:
        names = [UNKNOWN]
    return RequestUsage(
        prompt_tokens=count_of(where, row, "prompt_tokens"),
        output_tokens=count_of(where, row, "output_tokens"),
        new_tokens_hint=first_of(where, row, "new_input_tokens"),
        tool_calls=calls_sharing_a_time(names, seconds),
        gap_overhead_s=float(number(where, row, "pack_s", 0)),
        cached_tokens=first_of(where, row, "cached_tokens"),
        llm_s=None if row.get("llm_s") is None else float(number(where, row, "llm_s")),
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
