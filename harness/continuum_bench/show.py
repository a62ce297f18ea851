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
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table

from continuum_bench.options.run import OutputOptions

WIDTH = 160
"""Columns of tables if the output is no terminal and COLUMNS is not set."""
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
    table = rich_table(shown)
    if Measurement.get(console, console.options.update(max_width=1000), table).maximum > console.width:
        first, *rest = zip(shown.headings, *shown.rows, strict=True)
        table = rich_table(TextTable(first, rest))
    intervals = "; in brackets: 95% intervals over seeds" if len(summary.seeds) >= ENOUGH_SEEDS else ""
    _out.print(caption + modelled(summary) + intervals)
    console.print(table)
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
    table_console().print(rich_table(table, words))


def print_bars(panel: Panel) -> None:
    """Print the lines of a panel as bars: a group of bars for each x, the longest ``BAR`` characters long."""
    values = {(x, line.name): y for line in panel.lines for x, y in zip(line.x, line.y, strict=True)}
    longest, largest = max(len(line.name) for line in panel.lines), max(values.values())
    _out.print(f"{panel.y_title}, by {panel.x_title}:")
    for x in sorted({x for x, _ in values}):
        of_x = [(line.name, values[x, line.name]) for line in panel.lines if (x, line.name) in values]
        for at, (label, y) in enumerate(of_x):
            bar = "█" * round(BAR * y / largest)
            _out.print(f"{'' if at else f'{x:g}':>8}  {label:<{longest}}  {bar} {y:#.3g}")


def table_console() -> Terminal:
    """Return the console of tables, which has a width also where the output is no terminal."""
    return Terminal(width=None if _out.is_terminal or "COLUMNS" in os.environ else WIDTH)


def rich_table(table: TextTable, words: Sequence[str] = ()) -> Table:
    """Return a table for rich whose cells are wrapped between words only."""
    made = Table()
    for index, heading in enumerate(table.headings):
        cells = [heading, *(row[index] for row in table.rows)]
        longest = max(len(word) for cell in cells for word in (cell.split() or [""]))
        made.add_column(heading, justify="left" if index == 0 or heading in words else "right", min_width=longest)
    for row in table.rows:
        made.add_row(*map(harmless, row))  # before rich measures how wide they are
    return made
