"""Goodput: the highest JPS at which the mean JCT stays under a multiple of vllm's mean JCT without load.

It is searched for every point of a grid, policy and seed. Every rate that is tried is a cell of a sweep, so an
interrupted search goes on where it stopped. Arrivals at another rate are the same sequence, stretched or compressed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from continuum_analysis.metrics import analyze_run
from continuum_analysis.sweep.goodput import Found

from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.sweep.plan import SweepCell, group_of
from continuum_bench.sweep.run import play_missing
from continuum_bench.sweep.store import SweepStore
from continuum_bench.virtual.pool import Outcome

UNLOADED_JPS = 1e-5
"""About one program a day: programs hardly ever overlap."""
MOST_STEPS = 24
BASE = Arm("vllm", "vllm")

Search = Generator[float, float, float]


def search(start_jps: float, limit_s: float, tolerance: float) -> Search:
    """Yields a rate, is sent the mean JCT at that rate, and returns the highest rate within the limit.

    The mean JCT is assumed to grow with the rate. The returned rate is within the limit, and a rate at most
    ``1 + tolerance`` times as high is not. The result is ``inf`` if there are so few programs that no rate exceeds it.
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
    """A search that is running."""

    point: Point
    arm: Arm
    seed: int
    factor: float
    limit_s: float
    steps: Search
    wanted: float
    result: float | None = None

    def go_on(self, mean_s: float) -> None:
        """Go on with the mean JCT that was measured at the rate ``wanted``."""
        try:
            self.wanted = self.steps.send(mean_s)
        except StopIteration as found:
            self.result = found.value

    @property
    def found(self) -> Found:
        axes = {name: value for name, value in self.point.axes.items() if name != "jps"} | {"limit": self.factor}
        return Found(axes, self.arm.label, self.seed, self.limit_s, inf if self.result is None else self.result)


class GoodputStudy:
    """All searches of a figure. Each round plays one cell of every search.

    Args:
        grid: its points give the workload, the engine, and with ``jps`` the first rate; it names the arms and seeds.
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
        command: Sequence[str],
    ) -> None:
        self._grid, self._store, self._players = grid, store, players
        self._factors, self._tolerance, self._command = factors, tolerance, command
        self._cells: list[SweepCell] = []
        self.outcome = Outcome()

    def run(self, created: str, quiet: bool) -> list[Found]:
        """The result of every search; empty if Ctrl-C or a failed cell ended the study (see ``outcome``)."""
        unloaded = self._unloaded(created, quiet)
        if unloaded is None:
            return []
        searches = [
            self._start(point, arm, seed, factor, unloaded[number, seed])
            for factor in self._factors
            for number, point in enumerate(self._grid.points)
            for seed in point.seeds
            for arm in point.arms
        ]
        while live := [one for one in searches if one.result is None]:
            cells = [self._cell(one.point, one.wanted, one.arm, one.seed) for one in live]
            means = self._play(list({cell.name: cell for cell in cells}.values()), created, quiet)
            if means is None:
                return []
            for one, cell in zip(live, cells, strict=True):
                one.go_on(means[cell.name])
        return [one.found for one in searches]

    def _unloaded(self, created: str, quiet: bool) -> dict[tuple[int, int], float] | None:
        """vllm's mean JCT without load, by point and seed."""
        where = [(n, point, seed) for n, point in enumerate(self._grid.points) for seed in point.seeds]
        cells = [self._cell(point, UNLOADED_JPS, BASE, seed) for _, point, seed in where]
        means = self._play(cells, created, quiet)
        if means is None:
            return None
        return {(n, seed): means[cell.name] for (n, _, seed), cell in zip(where, cells, strict=True)}

    def _start(self, point: Point, arm: Arm, seed: int, factor: float, unloaded_s: float) -> _Running:
        steps = search(point.options.jps, factor * unloaded_s, self._tolerance)
        return _Running(point, arm, seed, factor, factor * unloaded_s, steps, next(steps))

    def _cell(self, point: Point, jps: float, arm: Arm, seed: int) -> SweepCell:
        options = replace(point.options, jps=jps)
        at = replace(point, axes={**point.axes, "jps": jps}, options=options)
        return SweepCell(group_of(at, self._grid, self._store.path, self._command), arm, seed)

    def _play(self, cells: Sequence[SweepCell], created: str, quiet: bool) -> Mapping[str, float] | None:
        """The mean JCT of each cell; None if not all of them are complete."""
        known = {cell.name for cell in self._cells}
        self._cells += [cell for cell in cells if cell.name not in known]
        self._store.write_plan(self._grid, self._cells, self._command, created)
        outcome = play_missing(self._store, self._grid, cells, self._players, quiet)
        self.outcome.done += outcome.done
        self.outcome.failed |= outcome.failed
        self.outcome.interrupted |= outcome.interrupted
        if outcome.failed or outcome.interrupted:
            return None
        means = {cell.name: analyze_run(self._store.path / cell.name).values["jct_mean_s"] for cell in cells}
        return {name: inf if mean is None else float(mean) for name, mean in means.items()}
