"""Goodput: the highest JPS that a policy sustains: its queue does not grow, and the P95 slowdown is within a limit.

There is one search for every point of a grid, policy and seed. Every rate that a search tries is a cell of a sweep, so
an interrupted study continues where it stopped. The arrivals at another rate are the same sequence, stretched or
compressed in time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt

from continuum_analysis.metrics import Value, analyze_run, is_overloaded
from continuum_analysis.sweep.goodput import Found

from continuum_bench.errors import BenchError
from continuum_bench.invocation import utc_now
from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.sweep.plan import Cell, group_of
from continuum_bench.sweep.run import Outcome, play_missing
from continuum_bench.sweep.store import SweepStore

MOST_STEPS = 24
FIRST_STEP, LONGEST_STEP = 1.25, 16.0
"""Factors between the rates that are tried until the limit lies between two of them. Each is the square of the last."""


def search(start_jps: float, tolerance: float) -> Generator[float, bool, float]:
    """Find the highest rate that is sustained: yield a rate to try, and receive whether it was.

    What is sustained at a rate is assumed to be sustained at all lower ones. The returned rate is sustained, and a rate
    at most ``1 + tolerance`` times as high is not. The result is ``inf`` if every rate is sustained.
    """
    low, high, jps, step = 0.0, inf, _short(start_jps), FIRST_STEP
    for _ in range(MOST_STEPS):
        if (yield jps):
            low = jps
        else:
            high = jps
        if high == inf or low == 0.0:
            jps, step = _short(low * step if low else high / step), min(step * step, LONGEST_STEP)
        elif high / low <= 1 + tolerance:
            return low
        else:
            jps = _short(sqrt(low * high))
    return inf if high == inf else low


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
class GoodputStudy:
    """All searches of a figure. Each round plays one cell of every search."""

    grid: Grid
    """The workloads, engines, arms and seeds. ``jps`` of a point is the first rate that is tried."""
    store: SweepStore
    players: PlayerOptions
    limits: Sequence[float]
    """On the P95 slowdown; ``inf``: the queue alone decides."""
    tolerance: float
    """Largest relative distance between a rate that is sustained and one that is not."""
    created: str = field(default_factory=utc_now)
    cells: list[Cell] = field(default_factory=list)
    """All that were played."""
    outcome: Outcome = field(default_factory=Outcome)

    def run(self) -> list[Found]:
        """Return the result of every search; empty if Ctrl-C or a failed cell ended the study (see ``outcome``)."""
        searches = [
            self._search(point, arm, seed, limit)
            for limit in self.limits
            for point in self.grid.points
            for seed in point.seeds
            for arm in point.arms
        ]
        wanted = {number: next(each) for number, each in enumerate(searches)}
        found: dict[int, Found] = {}
        while wanted:
            measured = self._play(list({cell.name: cell for cell in wanted.values()}.values()))
            if measured is None:
                return []
            for number, cell in list(wanted.items()):
                try:
                    wanted[number] = searches[number].send(measured[cell.name])
                except StopIteration as end:
                    found[number] = end.value
                    del wanted[number]
        return [found[number] for number in range(len(searches))]

    def _search(self, point: Point, arm: Arm, seed: int, limit: float) -> Generator[Cell, Mapping[str, Value], Found]:
        """Yield a cell to play, and receive its metrics, until the highest rate is found."""
        steps = search(point.options.jps, self.tolerance)
        jps = next(steps)
        while True:
            at = replace(point, axes={**point.axes, "jps": jps}, options=replace(point.options, jps=jps))
            values = yield Cell(group_of(at, self.grid), arm, seed)
            try:
                jps = steps.send(_is_sustained(values, limit))
            except StopIteration as end:
                axes = {name: value for name, value in point.axes.items() if name != "jps"}
                return Found({**axes, "limit": limit}, arm.label, seed, end.value)

    def _play(self, cells: Sequence[Cell]) -> Mapping[str, Mapping[str, Value]] | None:
        """Return the metrics of each cell; None if not all of them are complete."""
        known = {cell.name for cell in self.cells}
        self.cells += [cell for cell in cells if cell.name not in known]
        self.store.write_plan(self.grid, self.cells, self.created)
        self.outcome = play_missing(self.store, self.grid, cells, self.players, self.players.quiet)
        if self.outcome.failed or self.outcome.interrupted:
            return None
        return {cell.name: analyze_run(self.store.path / cell.name).values for cell in cells}
