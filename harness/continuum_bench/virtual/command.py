"""Plays a workload on the virtual engine, prints the table of results and writes the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import count
from math import inf
from pathlib import Path
from typing import Any

from continuum_analysis.compare.summary import Summary, summarize
from continuum_analysis.compare.words import verdict
from continuum_server.policy.registry import OFFLOAD, split_arm
from continuum_server.step_times.catalog import find_gpu, find_model
from continuum_traces.names import counted

from continuum_bench.invocation import default_out
from continuum_bench.lock import locked
from continuum_bench.option_values import read_percent
from continuum_bench.options.policies import arms_of, read_policy_options
from continuum_bench.options.run import DEFAULT_POLICIES, RunOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import conclude, goes_on, print_notice, print_verdict
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.virtual.experiment import Cell, Setup, prepare
from continuum_bench.virtual.pool import Outcome, play_here
from continuum_bench.workload.workload import JobSource, workload_of

MOST_SEEDS = 100
"""``--until`` gives up at this number."""


def run_policies(name: str, options: RunOptions) -> int:
    """Play every policy and seed. Returns the exit code: 0, 1 if runs failed, 130 after Ctrl-C."""
    policies = _policies(options.policy, options.offload)
    policy_options = read_policy_options(options.policy_option or [], policies)
    model = find_model(options.model)
    find_gpu(options.gpu)
    workload = workload_of(name, options, model.max_context_tokens)
    engine, description = engine_of(options)
    setup = Setup(workload, engine, options.token_times)
    out, wanted = options.out or default_out(name), inf if options.until is None else read_percent(options.until)
    with locked(out):
        for end in count(options.seed + options.seeds):
            seeds = range(options.seed, end)
            cells = [Cell(policy, policy_options.get(policy, {}), seed) for seed in seeds for policy in policies]
            outcome = _play(out, cells, setup, description, options)
            stopped = outcome.failed or outcome.interrupted or len(seeds) >= max(MOST_SEEDS, options.seeds)
            if stopped or wanted == inf or _widest(summarize(out)) <= wanted:
                return _conclude(out, len(cells), outcome, options)
    return 0


def _play(out: Path, cells: Sequence[Cell], setup: Setup, description: Any, options: RunOptions) -> Outcome:
    jobs = options.jobs or os.cpu_count() or 1
    left = prepare(out, cells, setup, description)
    if not (options.json_output or options.quiet):
        print_notice(_announcement(setup.workload, len(cells), len(left), jobs, out))
    kept = len(cells) - len(left)
    with RunsDisplay({task.name: 1.0 for task in left}, kept, options.json_output or options.quiet) as display:
        outcome = play_here(left, jobs, display.update) if left else Outcome()
    if outcome.interrupted:
        display.say_lost()
    names = {task.name for task in left}
    outcome.done += [cell.name for cell in cells if cell.name not in names]
    return outcome


def _widest(summary: Summary) -> float:
    """Return the widest relative half of the intervals of the JCT ratios, or of the mean JCT of a single policy."""
    ratios = [arm.jct_ratio for name, arm in summary.arms.items() if name != summary.baseline]
    known = ratios or [summary.arms[summary.baseline].metrics["jct_mean_s"]]
    return max(inf if each is None or each.high is None else each.high / each.mean - 1 for each in known)


def _announcement(workload: JobSource, runs: int, left: int, jobs: int, out: Path) -> str:
    if not left:
        return f"{counted(runs, 'run')}, all complete already, in {out}"
    programs = counted(workload.trace.number, "program")
    before = f"{runs - left} of {runs} runs are complete already; " if left < runs else ""
    where = f"{min(jobs, left)} at a time, into {out}; vLLM takes some seconds to load"
    return f"{before}{counted(left, 'run')} of {programs}, {where}"


def _conclude(out: Path, runs: int, outcome: Outcome, options: RunOptions) -> int:
    for cell, error in outcome.failed.items():
        print_notice(f"error: {cell}: {error} (details in {out / cell / 'engine.log'})")
    if outcome.done:
        summary = conclude(out, options)
        if not options.json_output:
            print_verdict(verdict(summary))
    if outcome.interrupted:
        print_notice(f"stopped; {len(outcome.done)} of {runs} runs are complete in {out}; {goes_on(out)}")
        return 130
    return 1 if outcome.failed else 0


def _policies(given: Sequence[str] | None, offload: str | None) -> list[str]:
    """Return the names of the arms. With ``--offload`` and no arm NAME+offload, ``+offload`` is added to all names."""
    names = arms_of(given or DEFAULT_POLICIES)
    if offload is not None and not any(split_arm(name)[1] for name in names):
        names = [name + OFFLOAD for name in names]
    return names
