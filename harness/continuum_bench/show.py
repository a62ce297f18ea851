"""Prints notices, tables and verdicts to the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from continuum_analysis.compare.intervals import ENOUGH_SEEDS
from continuum_analysis.compare.runs import load_runs
from continuum_analysis.compare.scenario import scenario_line
from continuum_analysis.compare.summary import Summary, write_summary
from continuum_analysis.compare.words import TextTable, arm_table
from continuum_analysis.plots.panels import Panel
from continuum_analysis.report.experiment_facts import experiment_line
from continuum_analysis.report.page import write_report
from continuum_traces.names import harmless
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

from continuum_bench.options.run import OutputOptions

WIDTH = 160
"""Columns of tables if the output is no terminal and COLUMNS is not set."""
UNLIMITED = 10_000
"""More columns than any table has."""
BAR = 50
"""Length of the longest bar in characters."""


class Terminal(Console):
    """A console that writes texts of others harmlessly, wherever in a table or a line they are: neither their control
    characters nor rich's markup in them has an effect."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with harmless texts."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else harmless(segment.text)
            yield segment if text == segment.text else segment._replace(text=text)


_out = Terminal(soft_wrap=True)
ERR = Terminal(stderr=True, soft_wrap=True)


def print_line(text: str) -> None:
    """Print a line of the result, at once."""
    sys.stdout.write(harmless(text) + "\n")
    sys.stdout.flush()


def goes_on(out: Path) -> str:
    """Return how a stopped command is continued."""
    return f"the same command with --out {out} goes on from there"


def duration(seconds: float) -> str:
    """Return a time as ``80 s``, ``4 min`` or ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def print_notice(text: str) -> None:
    """Print a line for people on standard error. JSON output on standard output stays valid."""
    ERR.print(text)


def notices_once() -> Callable[[str], None]:
    """Return ``print_notice`` of one command that says the same thing of many runs: a line comes once."""
    return lru_cache(maxsize=None)(print_notice)


def print_json(data: object) -> None:
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


def conclude(out: Path, options: OutputOptions, where: str = "") -> Summary:
    """Write the summary and the report of the runs in a directory, and print the table with its warnings.

    Args:
        out: the directory.
        options: what to write and to print.
        where: the end of the table's caption.
    """
    summary = write_summary(out, load_runs(out))
    page = None if options.no_report else write_report(out)
    if options.json_output:
        print_json({**summary.to_json(), "out": str(out)})
        return summary
    print_summary(summary, f"{experiment_line([summary.manifest])}{where}")
    if page is not None and not options.quiet:
        print_notice(f"report: {page}")
    return summary


def print_summary(summary: Summary, caption: str) -> None:
    """Print a summary and its warnings: one row for each arm, or one column for each if the terminal is too narrow."""
    shown, console = arm_table({None: summary}), table_console()
    if Measurement.get(console, console.options.update(max_width=UNLIMITED), rich_table(shown)).maximum > console.width:
        first, *rest = zip(shown.headings, *shown.rows, strict=True)
        shown = TextTable(first, rest)
    intervals = "; in brackets: 95% intervals over seeds" if len(summary.seeds) >= ENOUGH_SEEDS else ""
    _out.print(caption + modelled(summary) + intervals)
    console.print(rich_table(shown, width=console.width))
    if summary.scenario is not None and summary.scenario["comparable"]:
        print_notice(scenario_line(dict(summary.scenario)))
    for warning in summary.warnings:
        print_notice(f"warning: {warning}")


def modelled(summary: Summary) -> str:
    """Return the end of a caption: a note if GPU time is modelled, else nothing."""
    return "; GPU time is modelled" if summary.manifest.modelled else ""


def print_verdict(text: str) -> None:
    """Print a verdict below its table, wrapped between words in a terminal."""
    Terminal(soft_wrap=not _out.is_terminal).print(text)


def print_table(table: TextTable, title: str, words: Sequence[str] = ()) -> None:
    """Print a table. The first column and those with the headings ``words`` are aligned to the left."""
    _out.print(title)
    console = table_console()
    console.print(rich_table(table, words, console.width))


def print_bars(panel: Panel) -> None:
    """Print the lines of a panel as bars: a group of bars for each x, the longest ``BAR`` characters long."""
    values = {(x, line.name): y for line in panel.lines for x, y in zip(line.x, line.y, strict=True)}
    longest, largest = max(len(line.name) for line in panel.lines), max(values.values())
    most = max(10, min(BAR, table_console().width - longest - 20))
    _out.print(f"{panel.y_title}, by {panel.x_title}:")
    for x in sorted({x for x, _ in values}):
        of_x = [(line.name, values[x, line.name]) for line in panel.lines if (x, line.name) in values]
        for at, (label, y) in enumerate(of_x):
            bar = "█" * round(most * y / largest)
            _out.print(f"{'' if at else f'{x:g}':>8}  {label:<{longest}}  {bar} {y:#.3g}")


def table_console() -> Terminal:
    """Return the console of tables, which has a width also where the output is no terminal."""
    return Terminal(width=None if _out.is_terminal or "COLUMNS" in os.environ else WIDTH)


def rich_table(table: TextTable, words: Sequence[str] = (), width: int = UNLIMITED) -> Table:
    """Return a table for rich that is at most ``width`` columns wide.

    Cells are wrapped between words. If that does not suffice, there are no vertical lines; then long words are folded.
    """
    columns = [
        [harmless(heading), *(harmless(row[index]) for row in table.rows)]
        for index, heading in enumerate(table.headings)
    ]
    longest = [max(map(cell_len, cells)) for cells in columns]
    shortest = [max(cell_len(word) for cell in cells for word in (cell.split() or [""])) for cells in columns]
    left = [index == 0 or heading in words for index, heading in enumerate(table.headings)]
    whole = [  # of numbers with their units only the heading is wrapped
        least if of_words else max(least, *map(cell_len, cells[1:]), 0)
        for least, of_words, cells in zip(shortest, left, columns, strict=True)
    ]
    boxed, plain = 3 * len(columns) + 1, len(columns) - 1
    fits = [(least, lines) for least in (whole, shortest) for lines in (boxed, plain) if sum(least) + lines <= width]
    least, lines = fits[0] if fits else (shortest, plain)
    made = Table() if lines == boxed else Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    widths = _widths(least, longest, width - lines)
    for index, (heading, *_) in enumerate(columns):
        justify: JustifyMethod = "left" if left[index] else "right"
        made.add_column(heading, justify=justify, width=widths[index], overflow="fold")
    for row in zip(*(cells[1:] for cells in columns), strict=True):
        made.add_row(*row)
    return made


def _widths(shortest: Sequence[int], longest: Sequence[int], room: int) -> list[int]:
    """Return the width of each column: as wide as its longest cell, if all have room; never wider.

    Args:
        shortest: the longest word of each column.
        longest: the longest cell of each column.
        room: the columns of the screen that they share.
    """
    widths = list(shortest)
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    needs = [most - width for most, width in zip(longest, widths, strict=True)]
    left, wanted = max(0, room - sum(widths)), sum(needs)
    for number, index in enumerate(sorted(range(len(needs)), key=needs.__getitem__)):
        need = needs[index]
        fair = max(left // (2 * (len(needs) - number)), left * need // max(1, wanted))  # small needs are met first
        widths[index] += (more := min(need, fair))
        left, wanted = left - more, wanted - need
    return widths
