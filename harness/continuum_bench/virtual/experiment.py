"""Plays a workload on the virtual engine, prints the table of results and writes the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import inf

from continuum_analysis.compare.runs import SWEEP
from continuum_analysis.compare.summary import Summary, summarize
from continuum_analysis.compare.verdict import verdict
from continuum_server.policy.registry import OFFLOAD, split_arm
from continuum_server.step_times.catalog import find_gpu
from continuum_traces.records.run_dir import MANIFEST, begin

from continuum_bench.invocation import default_out, utc_now
from continuum_bench.options.forms import UNTIL
from continuum_bench.options.policies import arms_of, read_policy_options
from continuum_bench.options.run import DEFAULT_POLICIES, RunOptions
from continuum_bench.options.sweep import PlayerOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import conclude, print_verdict
from continuum_bench.sweep.grid import Arm, Grid, Point
from continuum_bench.sweep.plan import Cell, Group, group_of
from continuum_bench.sweep.play_cells import SweepOutcome, exit_code, play_missing
from continuum_bench.sweep.store import SweepStore

MOST_SEEDS = 100
"""``--until`` gives up at this number."""


def run_policies(name: str, options: RunOptions) -> int:
    """Play every policy and seed. Returns the exit code, as ``exit_code``."""
    grid = Grid(name, "virtual", (Point({}, options, name, _arms(options)),))
    find_gpu(options.gpu)
    group = replace(group_of(grid.points[0], grid), folder="")
    wanted = inf if options.until is None else UNTIL.read(options.until)[1][0] / 100
    store = SweepStore(options.out or default_out(name))
    with store.locked(other=SWEEP):
        cells, outcome = _play(store, grid, group, wanted)
    if any(map(store.is_done, cells)):
        summary = conclude(store.path, options)
        if not options.json_output:
            print_verdict(verdict(summary))
    return exit_code(outcome, store, cells, "runs")


def _play(store: SweepStore, grid: Grid, group: Group, wanted: float) -> tuple[list[Cell], SweepOutcome]:
    """Play the seeds that were asked for, then one more at a time until the intervals are as narrow as ``wanted``."""
    options, arms = group.point.options, group.point.arms
    policies = ",".join(arm.policy for arm in arms)
    begin(store.path, group.manifest(Arm(policies, policies), options.seed, utc_now()))
    for number in count(options.seeds):
        cells = [Cell(group, arm, options.seed + index) for index in range(number) for arm in arms]
        _check_manifests(store, cells)
        display = RunsDisplay({}, 0, options.json_output or options.quiet)
        outcome = play_missing(store, grid, cells, PlayerOptions(options.jobs), display)
        stopped = outcome.failed or outcome.interrupted or number >= max(MOST_SEEDS, options.seeds)
        if stopped or wanted == inf or _widest(summarize(store.path)) <= wanted:
            break
    return cells, outcome


def _check_manifests(store: SweepStore, cells: Sequence[Cell]) -> None:
    """Refuse a directory that holds a run of the same name with other options of its policy."""
    for cell in cells:
        if (store.path / cell.name / MANIFEST).exists():
            begin(store.path / cell.name, cell.manifest)


def _widest(summary: Summary) -> float:
    """Return the widest relative half of the intervals of the JCT ratios, or of the mean JCT of a single policy."""
    ratios = [arm.jct_ratio for name, arm in summary.arms.items() if name != summary.baseline]
    means = ratios or [summary.arms[summary.baseline].metrics["jct_mean_s"]]
    return max(inf if each is None or each.high is None else each.high / each.mean - 1 for each in means)


def _arms(options: RunOptions) -> tuple[Arm, ...]:
    """Return the arms. With ``--offload`` and no arm NAME+offload, ``+offload`` is added to all names."""
    names = arms_of(options.policy or DEFAULT_POLICIES)
    if options.offload is not None and not any(split_arm(name)[1] for name in names):
        names = [name + OFFLOAD for name in names]
    given = read_policy_options(options.policy_option or [], names)
    return tuple(Arm(name, name, given.get(name, {})) for name in names)
