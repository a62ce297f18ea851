"""Goodput: the highest JPS at which the mean JCT stays below a multiple of vllm's mean JCT without load.

There is one search for every point of a grid, policy and seed. Every rate that a search tries is a cell of a sweep, so
an interrupted study continues where it stopped. The arrivals at another rate are the same sequence, stretched or
compressed in time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from continuum_analysis.metrics import analyze_run
from continuum_analysis.sweep.goodput import Found

from continuum_bench.invocation import utc_now
from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.sweep.plan import SweepCell, group_of
from continuum_bench.sweep.run import play_missing
from continuum_bench.sweep.store import SweepStore
from continuum_bench.virtual.pool import Outcome

UNLOADED_JPS = 1e-5
"""The rate without load: about one program a day, so that programs hardly ever overlap."""
MOST_STEPS = 24
BASE = Arm("vllm", "vllm")

Search = Generator[float, float, float]


def search(start_jps: float, limit_s: float, tolerance: float) -> Search:
    """Find the highest rate within a limit: yield a rate to try, and receive the mean JCT at that rate.

    The mean JCT is assumed to grow with the rate. The returned rate is within the limit, and a rate at most
    ``1 + tolerance`` times as high exceeds it. The result is ``inf`` if no rate exceeds the limit.
    """
    low, high, jps = 0.0, inf, _short(start_jps)
    for _ in range(MOST_STEPS):
        if (yield jps) <= limit_s:
            low = jps
        else:
            high = jps
        if high == inf:
            jps = _short(2 * low)
        elif low == 0.0:
            jps = _short(high / 2)
        elif high / low <= 1 + tolerance:
            return low
        else:
            jps = _short(sqrt(low * high))
    return inf if high == inf else low


def _short(jps: float) -> float:
    """Round to four digits, so that a cell's name shows its exact rate."""
    return float(f"{jps:.4g}")


@dataclass(slots=True)
class _Running:
    """A search and its state."""

    point: Point
    arm: Arm
    seed: int
    factor: float
    limit_s: float
    steps: Search
    wanted: float
    result: float | None = None

    def advance(self, mean_s: float) -> None:
        """Continue the search with the mean JCT that was measured at the rate ``wanted``."""
        try:
            self.wanted = self.steps.send(mean_s)
        except StopIteration as end:
            self.result = end.value

    @property
    def found(self) -> Found:
        axes = {name: value for name, value in self.point.axes.items() if name != "jps"} | {"limit": self.factor}
        return Found(axes, self.arm.label, self.seed, self.limit_s, inf if self.result is None else self.result)


class GoodputStudy:
    """All searches of a figure. Each round plays one cell of every search.

    Args:
        grid: the workloads, engines, arms and seeds. ``jps`` of a point is the first rate that is tried.
        factors: limits as multiples of vllm's mean JCT without load.
        tolerance: largest relative distance between a rate within the limit and one beyond it.
    """

    def __init__(
        self,
        grid: Grid,
        store: SweepStore,
        players: PlayerOptions,
        factors: Sequence[float],
        tolerance: float,
    ) -> None:
        self._grid, self._store, self._players = grid, store, players
        self._factors, self._tolerance, self._created = factors, tolerance, utc_now()
        self._cells: list[SweepCell] = []
        self.outcome = Outcome()

    def run(self) -> list[Found]:
        """Return the result of every search; empty if Ctrl-C or a failed cell ended the study (see ``outcome``)."""
        unloaded = self._unloaded()
        if unloaded is None:
            return []
        searches = [
            self._start(point, arm, seed, factor, unloaded[number, seed])
            for factor in self._factors
            for number, point in enumerate(self._grid.points)
            for seed in point.seeds
            for arm in point.arms
        ]
        while live := [running for running in searches if running.result is None]:
            cells = [self._cell(each.point, each.wanted, each.arm, each.seed) for each in live]
            means = self._play(list({cell.name: cell for cell in cells}.values()))
            if means is None:
                return []
            for running, cell in zip(live, cells, strict=True):
                running.advance(means[cell.name])
        return [ended.found for ended in searches]

    def _unloaded(self) -> dict[tuple[int, int], float] | None:
        """Return vllm's mean JCT in seconds without load, by point and seed."""
        where = [(n, point, seed) for n, point in enumerate(self._grid.points) for seed in point.seeds]
        cells = [self._cell(point, UNLOADED_JPS, BASE, seed) for _, point, seed in where]
        means = self._play(cells)
        if means is None:
            return None
        return {(n, seed): means[cell.name] for (n, _, seed), cell in zip(where, cells, strict=True)}

    def _start(self, point: Point, arm: Arm, seed: int, factor: float, unloaded_s: float) -> _Running:
        steps = search(point.options.jps, factor * unloaded_s, self._tolerance)
        return _Running(point, arm, seed, factor, factor * unloaded_s, steps, next(steps))

    def _cell(self, point: Point, jps: float, arm: Arm, seed: int) -> SweepCell:
        options = replace(point.options, jps=jps)
        at = replace(point, axes={**point.axes, "jps": jps}, options=options)
        return SweepCell(group_of(at, self._grid), arm, seed)

    def _play(self, cells: Sequence[SweepCell]) -> Mapping[str, float] | None:
        """Return the mean JCT of each cell in seconds; None if not all of them are complete."""
        known = {cell.name for cell in self._cells}
        self._cells += [cell for cell in cells if cell.name not in known]
        self._store.write_plan(self._grid, self._cells, self._created)
        outcome = play_missing(self._store, self._grid, cells, self._players, self._players.quiet)
        self.outcome.done += outcome.done
        self.outcome.failed |= outcome.failed
        self.outcome.interrupted |= outcome.interrupted
        if outcome.failed or outcome.interrupted:
            return None
        means = {cell.name: analyze_run(self._store.path / cell.name).values["jct_mean_s"] for cell in cells}
        return {name: inf if mean is None else float(mean) for name, mean in means.items()}
