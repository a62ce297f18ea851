"""The progress of runs in the terminal: those that run, results, and the time left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from continuum_traces.names import counted
from rich.console import Group
from rich.live import Live
from rich.table import Table

from continuum_bench.show import ERR, duration, print_notice
from continuum_bench.virtual.pool import Report

EVERY_S = 15.0
"""Where no terminal is, a line comes this often."""


class RunsDisplay:
    """One line for each run that ended. In a terminal also a live table of those that run, elsewhere a line about them
    now and then.

    Args:
        costs: the work of each run to play, in any unit, by the run's name.
        done_before: number of runs that were done before and are not among these.
        quiet: show nothing.
        what: the plural of what is counted.
        clock: returns seconds, from which the time left is estimated.
        later: about how many runs will be expected later (``expect``).
        every_s: how often a line comes where no terminal is.
    """

    def __init__(
        self,
        costs: Mapping[str, float],
        done_before: int,
        quiet: bool,
        what: str = "runs",
        clock: Callable[[], float] = time.monotonic,  # noqa: TID251 - the default of an injected clock
        later: int = 0,
        every_s: float = EVERY_S,
    ) -> None:
        self._cost, self._left = dict(costs), dict(costs)
        self._before = done_before
        self.later = later
        self._what = what
        self._running: dict[str, Report] = {}
        self._clock = clock
        self._first_s: float | None = None
        self._since_s: dict[str, float] = {}
        self._quiet, self._every_s, self._over = quiet, every_s, threading.Event()
        live = ERR.is_terminal and not quiet
        self._live = (
            Live(console=ERR, transient=True, refresh_per_second=4, get_renderable=self._table) if live else None
        )

    def expect(self, costs: Mapping[str, float], done_before: int, where: Path) -> None:
        """Add runs to play, whose records go to ``where``, and the number of those among them that were done before."""
        self._cost |= costs
        self._left |= costs
        self._before += done_before
        if not self._quiet:
            number = done_before + len(costs)
            whole = counted(number, self._what.removesuffix("s"))
            print_notice(f"{whole}, {done_before} done before, {len(costs)} to play, into {where}")

    def update(self, report: Report, result: str = "done") -> None:
        """Show the report of a run. ``result`` is the text for a run that is done."""
        if self._first_s is None and report.state in ("running", "done"):
            self._first_s = self._clock()  # vLLM is loaded now
        if report.state not in ("done", "failed"):
            self._running[report.cell] = report
            self._since_s.setdefault(report.cell, self._clock())
            return
        self._running.pop(report.cell, None)
        self._left.pop(report.cell, None)
        words = result if report.state == "done" else f"failed: {report.error}"
        if not self._quiet:
            print_notice(f"{report.cell}: {words}; {self.summary()}")

    def summary(self) -> str:
        """Return the number of runs done and the estimated time left, in words."""
        total = self._before + len(self._cost)
        about = f"about {total + self.later}" if self.later else f"{total}"
        words = f"{total - len(self._left)} of {about} {self._what}"
        left_s = self.left_s()
        return words if left_s is None or not self._left else f"{words}, about {duration(left_s)} left"

    def left_s(self) -> float | None:
        """Estimate the seconds until the end from the programs that ended so far; None until one has ended."""
        left = sum(cost * (1 - self._share(name)) for name, cost in self._left.items())
        played = sum(self._cost.values()) - left
        left += self.later * sum(self._cost.values()) / max(1, len(self._cost))
        if self._first_s is None or not played:
            return None
        return (self._clock() - self._first_s) / played * left

    def _share(self, name: str) -> float:
        """Return the share of a run's programs that have ended."""
        report = self._running.get(name)
        return report.programs_done / report.programs_total if report and report.programs_total else 0.0

    def say_lost(self) -> None:
        """Say how far the runs were that Ctrl-C stopped, which begin again."""
        begun = (report for report in self._running.values() if report.programs_total)
        far = [f"{each.cell} at {each.programs_done} of {each.programs_total} programs" for each in begun]
        if far and not self._quiet:
            print_notice(f"lost, to be played again: {', '.join(far)}")

    def line(self) -> str:
        """Return how far the runs are: of a single one its programs, rate, failures and what is in flight."""
        running = list(self._running.values())
        if len(running) == 1 and running[0].programs_total:
            return f"{running[0].cell}: {self._how_far(running[0])}; {self.summary()}"
        return f"{self.summary()}, {len(running)} running"

    def _how_far(self, report: Report) -> str:
        if not report.programs_total or report.state != "running":
            return report.state
        words = [f"{report.programs_done} of {report.programs_total} programs"]
        passed_s = self._clock() - self._since_s[report.cell]
        if report.in_flight is not None:
            if report.programs_done and passed_s > 0:
                words.append(f"{report.programs_done / passed_s:.3g}/s")
            words += [f"{report.in_flight} in flight", f"{report.programs_failed or 'none'} failed"]
        return ", ".join(words)

    def _table(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for heading in (self._what, "how far"):
            table.add_column(heading, no_wrap=True, overflow="ellipsis")
        for name, report in self._running.items():
            table.add_row(name, self._how_far(report))
        return Group(table, self.summary())

    def _say_now_and_then(self) -> None:
        while not self._over.wait(self._every_s):
            if self._running:
                print_notice(self.line())

    def __enter__(self) -> RunsDisplay:
        if self._live:
            self._live.start()
        elif not self._quiet:
            self._over.clear()
            threading.Thread(target=self._say_now_and_then, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._live:
            self._live.stop()
