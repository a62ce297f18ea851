"""Goodput: the highest JPS that a policy sustains: unfinished work does not grow, and P95 slowdown is within a limit.

There is one search for every point of a grid, policy and seed. Every rate that a search tries is a cell of a sweep, so
an interrupted study continues where it stopped. The arrivals at another rate are the same sequence, stretched or
compressed in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt

from continuum_analysis.metrics import Value, analyze_run, is_overloaded
from continuum_analysis.sweep.goodput import Bracket

from continuum_bench.errors import BenchError
from continuum_bench.invocation import utc_now
from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.sweep.plan import Cell, group_of
from continuum_bench.sweep.play_cells import SweepOutcome, play_missing
from continuum_bench.sweep.store import SweepStore

FIRST_STEP, LONGEST_STEP = 1.25, 16.0
"""Factors between the rates that are tried until the limit lies between two of them. Each is the square of the last."""
FARTHEST = 100.0
"""A search without an end up to this multiple of its first rate, or down to this part of it, stops there: almost all
programs then arrive at once, or one after the other, and other rates tell nothing new."""


@dataclass(slots=True)
class Search:
    """A search for the highest rate that is sustained. What is sustained at a rate is assumed to be sustained at all
    lower ones."""

    start_jps: float
    tolerance: float
    """Largest relative distance between a rate that is sustained and one that is not."""
    jps: float = 0.0
    """The rate to try next."""
    low: float = 0.0
    """The highest rate that was sustained; 0: none was."""
    high: float = inf
    """The lowest rate that was not sustained; infinite: every rate was."""
    step: float = FIRST_STEP

    def __post_init__(self) -> None:
        self.jps = _short(self.start_jps)

    @property
    def ended(self) -> bool:
        if self.high == inf or self.low == 0.0:
            return not self.start_jps / FARTHEST <= self.jps <= self.start_jps * FARTHEST
        return self.high / self.low <= 1 + self.tolerance

    def tell(self, sustained: bool) -> None:
        """Take in whether the rate ``jps`` was sustained, and choose the next."""
        if sustained:
            self.low = self.jps
        else:
            self.high = self.jps
        if self.high == inf or self.low == 0.0:
            self.jps = _short(self.low * self.step if self.low else self.high / self.step)
            self.step = min(self.step * self.step, LONGEST_STEP)
        else:
            self.jps = _short(sqrt(self.low * self.high))


def _short(jps: float) -> float:
    """Round to four digits, so that a cell's name shows its exact rate."""
    return float(f"{jps:.4g}")


def _is_sustained(values: Mapping[str, Value], limit: float) -> bool:
    """Judge a run by its metrics.

    Raises:
        BenchError: the run has no slowdown, and there is a limit on it.
    """
    slowdown = values["slowdown_p95"]
    if slowdown is None and limit < inf:
        raise BenchError(f"--limit {limit:g}: only runs in virtual time record how long programs take alone")
    return not is_overloaded(values) and (slowdown or 0.0) <= limit


@dataclass(slots=True)
class _Case:
    """A point, policy and seed whose highest rate is searched."""

    point: Point
    arm: Arm
    seed: int
    limit: float
    search: Search

    def cell(self, grid: Grid) -> Cell:
        """Return the cell to play next."""
        jps = self.search.jps
        at = replace(self.point, axes={**self.point.axes, "jps": jps}, options=replace(self.point.options, jps=jps))
        return Cell(group_of(at, grid), self.arm, self.seed)

    @property
    def bracket(self) -> Bracket:
        axes = {name: value for name, value in self.point.axes.items() if name != "jps"}
        low, high = self.search.low, self.search.high
        return Bracket({**axes, "limit": self.limit}, self.arm.label, self.seed, low, high, self.search.ended)


@dataclass(slots=True)
class GoodputStudy:
    """All searches of a figure. Each round plays one cell of every search."""

    grid: Grid
    """The workloads, engines, arms and seeds. ``jps`` of a point is the first rate that is tried."""
    store: SweepStore
    players: PlayerOptions
    limits: Sequence[float]
    """On the P95 slowdown; ``inf``: growth of the unfinished work alone decides."""
    tolerance: float
    """See ``Search``."""
    created: str = field(default_factory=utc_now)
    cells: list[Cell] = field(default_factory=list)
    """All that were played."""
    outcome: SweepOutcome = field(default_factory=SweepOutcome)

    def run(self) -> list[Bracket]:
        """Return what every search knows. A search whose cell failed stops there, all stop at Ctrl-C (``outcome``)."""
        cases = [
            _Case(point, arm, seed, limit, Search(point.options.jps, self.tolerance))
            for limit in self.limits
            for point in self.grid.points
            for seed in point.seeds
            for arm in point.arms
        ]
        going = cases
        while going and not self.outcome.interrupted:
            cells = [case.cell(self.grid) for case in going]
            measured = self._play(list({each.name: each for each in cells}.values()))
            played = [
                (case, measured[cell.name]) for case, cell in zip(going, cells, strict=True) if cell.name in measured
            ]
            for case, values in played:
                case.search.tell(_is_sustained(values, case.limit))
            going = [case for case, _ in played if not case.search.ended]
        return [case.bracket for case in cases]

    def _play(self, cells: Sequence[Cell]) -> Mapping[str, Mapping[str, Value]]:
        """Return the metrics of each cell that is complete."""
        names = {cell.name for cell in self.cells}
        self.cells += [cell for cell in cells if cell.name not in names]
        self.store.write_plan(self.grid, self.cells, self.created)
        outcome = play_missing(
            self.store, self.grid, cells, self.players, RunsDisplay({}, 0, self.players.quiet, "cells")
        )
        self.outcome = SweepOutcome(self.outcome.failed | outcome.failed, outcome.interrupted)
        done = [cell.name for cell in cells if self.store.is_done(cell)]
        return {name: analyze_run(self.store.path / name).values for name in done}
