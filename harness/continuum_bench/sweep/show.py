"""The progress of a sweep in the terminal: running cells, results, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from continuum_bench.show import print_notice
from continuum_bench.sweep.plan import SweepCell
from continuum_bench.virtual.pool import Report

LAST_SHOWN = 8
_err = Console(stderr=True, highlight=False)


class SweepDisplay:
    """A live table if the output is a terminal, else one line for each cell.

    Args:
        todo: the cells to play, without those that were done before.
        done_before: number of cells that were done before.
        quiet: show nothing.
        clock: returns seconds, from which the time left is estimated.
    """

    def __init__(
        self,
        todo: Sequence[SweepCell],
        done_before: int,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - the default of an injected clock
    ) -> None:
        self._cost = {cell.name: cell.cost for cell in todo}
        self._left = dict(self._cost)
        self._before = done_before
        self._running: dict[str, Report] = {}
        self._ended: list[tuple[str, str]] = []
        self._clock = clock
        self._first_s: float | None = None
        self._quiet = quiet
        live = _err.is_terminal and not quiet
        self._live = Live(console=_err, refresh_per_second=4, get_renderable=self._table) if live else None

    def update(self, report: Report, result: str = "") -> None:
        """Show the report of a cell. ``result`` is the text for a cell that is done."""
        if self._first_s is None and report.state in ("running", "done"):
            self._first_s = self._clock()  # vLLM is loaded now
        if report.state not in ("done", "failed"):
            self._running[report.cell] = report
            return
        self._running.pop(report.cell, None)
        self._left.pop(report.cell, None)
        words = result if report.state == "done" else f"failed: {report.error}"
        self._ended.append((report.cell, words))
        if self._live is None and not self._quiet:
            print_notice(f"{report.cell}: {words}; {self.summary()}")

    def summary(self) -> str:
        """Return the number of cells done and the estimated time left, in words."""
        total = self._before + len(self._cost)
        words = f"{total - len(self._left)} of {total} cells"
        left_s = self.left_s()
        return words if left_s is None or not self._left else f"{words}, about {_duration(left_s)} left"

    def left_s(self) -> float | None:
        """Estimate the seconds until the end from the turns played so far; None until a cell has ended."""
        played = sum(self._cost.values()) - sum(self._left.values())
        if self._first_s is None or not played:
            return None
        return (self._clock() - self._first_s) / played * sum(self._left.values())

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for heading in ("cell", "mean JCT, or how far"):
            table.add_column(heading, no_wrap=True, overflow="ellipsis")
        for name, words in self._ended[-LAST_SHOWN:]:
            table.add_row(name, words)
        for name, report in self._running.items():
            progress = f"{report.programs_done}/{report.programs_total} programs, t = {report.virtual_s:.0f} s"
            table.add_row(name, progress if report.state == "running" else report.state)
        return Group(table, self.summary())

    def __enter__(self) -> SweepDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._live.stop()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
