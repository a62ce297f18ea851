"""What the terminal shows: notices, tables and verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from continuum_analysis.compare.summary import Summary
from continuum_analysis.compare.words import TextTable, columns, summary_rows
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

WIDTH = 160
"""Columns where the output is no terminal."""
_out = Console(highlight=False, soft_wrap=True)
ERR = Console(stderr=True, highlight=False, soft_wrap=True)


def print_notice(text: str) -> None:
    """A line for people, on standard error: JSON output stays alone on standard output."""
    ERR.print(text, markup=False)


def print_summary(summary: Summary, caption: str) -> None:
    """One row an arm, or, where the terminal is too narrow for that, one column an arm."""
    shown = columns([summary])
    rows = [["policy", *(column.heading for column in shown)], *summary_rows(summary, shown)]
    console = Console(highlight=False, width=max(_out.width, WIDTH) if not _out.is_terminal else None)
    table = rich_table(TextTable(rows[0], rows[1:]), caption)
    if Measurement.get(console, console.options.update(max_width=1000), table).maximum > console.width:
        first, *rest = zip(*rows, strict=True)
        table = rich_table(TextTable(first, rest), caption)
    console.print(table)


def print_verdict(text: str) -> None:
    """A sentence below the table of its summary; words stay whole in a terminal."""
    Console(highlight=False, soft_wrap=not _out.is_terminal).print(text, markup=False)


def print_table(table: TextTable, title: str, words: Sequence[str] = (), wrapped: Sequence[str] = ()) -> None:
    """A table on standard output, ``WIDTH`` columns wide where that is no terminal.

    Args:
        words: headings of columns that stand to the left, as the first one does.
        wrapped: headings of columns whose cells may be broken into lines.
    """
    console = Console(highlight=False, width=None if _out.is_terminal else WIDTH)
    console.print(rich_table(table, title, words, wrapped))


def rich_table(table: TextTable, title: str, words: Sequence[str] = (), wrapped: Sequence[str] = ()) -> Table:
    made = Table(title=Text(title), title_justify="left", title_style="")
    for index, heading in enumerate(table.headings):
        left = index == 0 or heading in words or heading in wrapped
        made.add_column(heading, justify="left" if left else "right", no_wrap=heading not in wrapped)
    for row in table.rows:
        made.add_row(*row)
    return made
