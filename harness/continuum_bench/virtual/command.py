"""Plays a workload on the virtual engine, prints the table of results and writes the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from continuum_analysis.compare.words import verdict
from continuum_server.policy.registry import OFFLOAD, split_arm
from continuum_server.step_times.catalog import find_gpu, find_model
from continuum_traces.names import counted

from continuum_bench.invocation import default_out
from continuum_bench.lock import locked
from continuum_bench.options.policies import arms_of, read_policy_options
from continuum_bench.options.run import DEFAULT_POLICIES, RunOptions
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import conclude, goes_on, print_notice, print_verdict
from continuum_bench.virtual.engine_options import engine_of
from continuum_bench.virtual.experiment import Cell, Experiment, Setup, prepare, run
from continuum_bench.virtual.pool import Outcome
from continuum_bench.workload.workload import workload_of


def run_policies(name: str, options: RunOptions) -> int:
    """Play every policy and seed. Returns the exit code: 0, 1 if runs failed, 130 after Ctrl-C."""
    policies = _policies(options.policy, options.offload)
    policy_options = read_policy_options(options.policy_option or [], policies)
    model = find_model(options.model)
    find_gpu(options.gpu)
    workload = workload_of(name, options, model.max_context_tokens)
    engine, description = engine_of(options)
    seeds = range(options.seed, options.seed + options.seeds)
    out = options.out or default_out(name)
    experiment = Experiment(
        cells=tuple(Cell(policy, policy_options.get(policy, {}), seed) for seed in seeds for policy in policies),
        setup=Setup(workload, engine, options.token_times),
        out=out,
        jobs=options.jobs or os.cpu_count() or 1,
    )
    quiet = options.json_output or options.quiet
    with locked(out):
        left = replace(experiment, cells=tuple(prepare(experiment, description)))
        if not quiet:
            print_notice(_announcement(experiment, left))
        kept = len(experiment.cells) - len(left.cells)
        with RunsDisplay({cell.name: 1.0 for cell in left.cells}, kept, quiet) as display:
            outcome = run(left, display.update)
        outcome.done += [cell.name for cell in experiment.cells if cell not in left.cells]
        return _conclude(experiment, outcome, options)


def _announcement(experiment: Experiment, left: Experiment) -> str:
    runs, kept = len(left.cells), len(experiment.cells) - len(left.cells)
    if not runs:
        return f"{counted(kept, 'run')}, all complete already, in {experiment.out}"
    programs = counted(experiment.setup.workload.trace.number, "program")
    before = f"{kept} of {len(experiment.cells)} runs are complete already; " if kept else ""
    where = f"{min(experiment.jobs, runs)} at a time, into {experiment.out}; vLLM takes some seconds to load"
    return f"{before}{counted(runs, 'run')} of {programs}, {where}"


def _conclude(experiment: Experiment, outcome: Outcome, options: RunOptions) -> int:
    for cell, error in outcome.failed.items():
        print_notice(f"error: {cell}: {error} (details in {experiment.out / cell / 'engine.log'})")
    if outcome.done:
        summary = conclude(experiment.out, options)
        if not options.json_output:
            print_verdict(verdict(summary))
    if outcome.interrupted:
        done = f"{len(outcome.done)} of {len(experiment.cells)} runs are complete in {experiment.out}"
        print_notice(f"stopped; {done}; {goes_on(experiment.out)}")
        return 130
    return 1 if outcome.failed else 0


def _policies(given: Sequence[str] | None, offload: str | None) -> list[str]:
    """Return the names of the arms. With ``--offload`` and no arm NAME+offload, ``+offload`` is added to all names."""
    names = arms_of(given or DEFAULT_POLICIES)
    if offload is not None and not any(split_arm(name)[1] for name in names):
        names = [name + OFFLOAD for name in names]
    return names
