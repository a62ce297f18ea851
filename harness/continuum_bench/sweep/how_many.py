"""How many agents at a time an engine serves within a service level, under each policy.

The virtual engine first plays every policy at a ladder of numbers around the one at which the programs' contexts fill
the KV pool, then halves each policy's bracket. A running server is asked for more and more, up to the first number
that breaks the level. Every number that is tried is a cell of a sweep, so an interrupted search continues where it
stopped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log2

from continuum_analysis.compare.words import THROUGHPUT
from continuum_analysis.metrics import analyze_run
from continuum_analysis.slo import Slo, read_slo
from continuum_analysis.sweep.capacity import AT_A_TIME, DEFAULT_LEVEL, NEWCOMERS, TOKENS, bracket_of, capacity_of
from continuum_analysis.sweep.report import write_tables
from continuum_analysis.sweep.tables import read_sweep
from continuum_server.step_times.catalog import find_model
from continuum_traces.schema import Program

from continuum_bench.invocation import default_out, utc_now
from continuum_bench.live.endpoint import probe_server
from continuum_bench.options.policies import arms_of, read_policy_options
from continuum_bench.options.run import LiveOptions, RunOptions
from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import notices_once
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.sweep.plan import Cell, group_of
from continuum_bench.sweep.play_cells import SweepOutcome, exit_code, play_missing
from continuum_bench.sweep.play_sweep import show_sweep
from continuum_bench.sweep.store import SweepStore
from continuum_bench.workload.workload import load_workload

MOST_AT_A_TIME = 256
"""The largest number that is tried."""
ROUNDS = 4
"""A run plays so many programs for each of those at a time: fewer would measure how the run begins and ends."""
POLICIES = ("vllm", "working-set")
LEVEL_S = 300.0
"""Seconds for each number of agents against a server, unless ``--time-limit-s`` says other."""
CURVE_METRICS = ("ttft_p50_s", "ttft_p95_s", NEWCOMERS[1], "output_tokens_s_p25")
"""Metrics of the curve, besides throughput."""


def ladder(fitting: float) -> list[int]:
    """Return the numbers to play first.

    Args:
        fitting: how many programs fill the KV pool. Below half of it the numbers double; up to half as many again
            there is one more between each two.
    """
    steps = ceil(log2(min(MOST_AT_A_TIME, max(2.0, 1.5 * fitting))))
    between = [3 * 2**step for step in range(steps - 1) if fitting / 2 <= 3 * 2**step]
    return sorted({*(2**step for step in range(steps + 1)), *between})


def next_number(kept: Mapping[int, bool], numbers: Sequence[int], halves: bool = True) -> int | None:
    """Return the number to play next, in a search that knows for these numbers whether they keep the level.

    Args:
        kept: by number.
        numbers: those to play first.
        halves: whether a bracket is halved until it is a sixteenth wide.
    """
    bracket = bracket_of(kept)
    for number in numbers:
        if number not in kept:
            return number
    if bracket.high is None:
        return min(MOST_AT_A_TIME, 2 * bracket.low) if bracket.low < MOST_AT_A_TIME else None
    if not halves or bracket.high - bracket.low <= max(1, bracket.low // 16):
        return None
    return (bracket.low + bracket.high) // 2


def halvings(numbers: Sequence[int]) -> int:
    """Return how many more numbers a search of these is expected to play: those to halve the last bracket."""
    return max(0, round(log2(max(1, numbers[-1] - numbers[-2])))) if len(numbers) > 1 else 0


@dataclass(slots=True)
class _Study:
    """The searches of all policies and seeds. Each round plays one cell of every search."""

    name: str
    options: RunOptions
    arms: Sequence[Arm]
    grid: Grid
    store: SweepStore
    slo: Slo
    numbers: Sequence[int]
    """Those that every policy plays first."""
    distinct: int
    """Number of programs in the trace. Each run plays every one at least once."""
    cells: dict[str, Cell] = field(default_factory=dict)
    """All that were planned, by name."""
    outcome: SweepOutcome = field(default_factory=SweepOutcome)
    created: str = field(default_factory=utc_now)
    say: Callable[[str], None] = field(default_factory=notices_once)
    """Prints what is assumed of the programs, once for all runs."""

    @property
    def live(self) -> bool:
        return self.grid.engine != "virtual"

    def run(self) -> None:
        """Play until every search has its answer. Ctrl-C between two runs stops it as within one."""
        try:
            self._search()
        except KeyboardInterrupt:
            self.outcome.interrupted = True

    def _search(self) -> None:
        options = self.options
        seeds = range(options.seed, options.seed + options.seeds)
        kept: dict[tuple[str, int], dict[int, bool]] = {(arm.label, seed): {} for seed in seeds for arm in self.arms}
        quiet = options.quiet or options.json_output
        later = 0 if self.live else halvings(self.numbers) * len(kept)
        display, going = RunsDisplay({}, 0, quiet, later=later), {search: list(self.numbers) for search in kept}
        while going and not self.outcome.interrupted:
            cells = {(search, n): self._cell(*search, n) for search, numbers in going.items() for n in numbers}
            display.later = min(display.later, halvings(self.numbers) * len(going))
            self._play(list(cells.values()), display)
            for (search, number), cell in cells.items():
                if self.store.is_done(cell):
                    kept[search][number] = self._keeps(cell)
            lost = {search for (search, _), cell in cells.items() if not self.store.is_done(cell)}
            tried = {search: next_number(kept[search], self.numbers, not self.live) for search in {*going} - lost}
            going = {search: [number] for search, number in tried.items() if number is not None}
            display.later = max(0, display.later - len(going))

    def _keeps(self, cell: Cell) -> bool:
        measured = analyze_run(self.store.path / cell.name)
        return self.slo.kept_by(measured.facts, measured.values)

    def _cell(self, label: str, seed: int, number: int) -> Cell:
        programs = self.options.num_programs or max(self.distinct, ROUNDS * number)
        options = replace(self.options, arrivals=f"concurrency:{number}", num_programs=programs)
        point = Point({"workload": self.name, AT_A_TIME: number}, options, self.name, tuple(self.arms), (seed,))
        return Cell(group_of(point, self.grid, self.say), next(arm for arm in self.arms if arm.label == label), seed)

    def _play(self, cells: Sequence[Cell], display: RunsDisplay) -> None:
        self.cells |= {cell.name: cell for cell in cells}
        self.store.write_plan(self.grid, list(self.cells.values()), self.created)
        outcome = play_missing(self.store, self.grid, cells, PlayerOptions(self.options.jobs), display)
        self.outcome = SweepOutcome(self.outcome.failed | outcome.failed, outcome.interrupted)


def find_how_many(name: str, options: RunOptions, live: LiveOptions | None = None) -> int:
    """Search for each policy and seed, or on a running server, and write the report. Returns the exit code, as
    ``exit_code``."""
    level = options.slo or DEFAULT_LEVEL
    slo, store = read_slo(level), SweepStore(options.out or default_out(f"{name}-how-many"))
    options = replace(options, how_many=False, slo=None)
    if live is not None and live.base_url is not None:
        study = _on_server(name, options, live, level, store, slo)
    else:
        study = _modelled(name, options, level, store, slo)
    with store.locked():
        study.run()
        sweep = read_sweep(store.path)
        if capacity_of(sweep) is not None and not study.outcome.interrupted:
            write_tables(sweep)
            show_sweep(sweep, options)
    return exit_code(study.outcome, store, list(study.cells.values()), "runs")


def _modelled(name: str, options: RunOptions, level: str, store: SweepStore, slo: Slo) -> _Study:
    policies = arms_of(options.policy or POLICIES)
    given = read_policy_options(options.policy_option or [], policies)
    arms = [Arm(policy, policy, given.get(policy, {})) for policy in policies]
    grid = _grid(name, "virtual", level, None)
    say = notices_once()
    workload = load_workload(name, options, options, find_model(options.model).max_context_tokens, say)
    study = _Study(name, options, arms, grid, store, slo, (1,), len(workload.trace.programs), say=say)
    pool = study._cell(arms[0].label, options.seed, 1).manifest.hardware.kv_capacity
    tokens = (pool.tokens or 0) * options.replicas if pool is not None else 0
    study.numbers = ladder(tokens / mean_context(workload.trace.programs))
    return study


def _on_server(name: str, options: RunOptions, live: LiveOptions, level: str, store: SweepStore, slo: Slo) -> _Study:
    assert live.base_url is not None
    endpoint = probe_server(live.base_url, os.environ.get(live.api_key_env) or None, live.served_model, live.wait)
    policy = live.label or endpoint.policy
    options = replace(options, time_limit_s=options.time_limit_s or LEVEL_S)
    grid = _grid(name, endpoint.base_url, level, live)
    say = notices_once()
    workload = load_workload(name, options, options, endpoint.max_model_len or 131072, say)
    arms = [Arm(policy, policy, {})]
    return _Study(name, options, arms, grid, store, slo, (1,), len(workload.trace.programs), say=say)


def _grid(name: str, engine: str, level: str, live: LiveOptions | None) -> Grid:
    plot = {"x": AT_A_TIME, "y": [THROUGHPUT, TOKENS, *CURVE_METRICS], "panels": [], "slo": level}
    return Grid(name, engine, (), plot=plot, live=live)


def mean_context(programs: Sequence[Program]) -> float:
    """Return the mean over turns of the tokens of a program's context."""
    lengths = [tokens for program in programs for tokens in program.prompt_tokens()]
    return sum(lengths) / len(lengths)
