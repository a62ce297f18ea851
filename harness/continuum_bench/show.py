"""What the terminal shows: notices, tables and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from continuum_analysis.compare.words import columns, table_rows
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_out = Console(highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)


def print_notice(text: str) -> None:
    """A line for people; JSON output stays alone on standard output."""
    ERR.print(text, markup=False)


def print_summary(summary: Mapping[str, Any], caption: str) -> None:
    """One row a policy; one column a policy where the terminal is too narrow for that."""
    shown = columns([summary])
    rows = [["policy", *(heading for _, heading, _ in shown)], *table_rows(summary, shown)]
    console = Console(highlight=False, width=max(_out.width, 150) if not _out.is_terminal else None)
    table = _table(caption, rows)
    if Measurement.get(console, console.options.update(max_width=1000), table).maximum > console.width:
        table = _table(caption, list(zip(*rows, strict=True)))
    console.print(table)


def print_verdict(text: str) -> None:
    """A sentence of the result, below its table; words stay whole in a terminal."""
    Console(highlight=False, soft_wrap=not _out.is_terminal).print(text, markup=False)


def _table(caption: str, rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=Text(caption), title_justify="left", title_style="")
    for index, heading in enumerate(rows[0]):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*row)
    return table
