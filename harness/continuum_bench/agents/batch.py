"""``continuum-bench agent FRAMEWORK``: runs a batch of real agents against a server."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from continuum_agents.environments import Framework, find_framework
from continuum_agents.protocol import CHECK, Start, to_line
from continuum_traces.schema import Engine, Manifest, Workload

from continuum_bench.agents.environment import Environment, environment_of
from continuum_bench.agents.results import Results, show_results
from continuum_bench.agents.runner import ArrivingTask, BatchSettings, Work, play
from continuum_bench.agents.tasks import Task, read_tasks, write_fixes
from continuum_bench.ctrl_c import INTERRUPTED
from continuum_bench.errors import BenchError
from continuum_bench.invocation import default_out, utc_now
from continuum_bench.live.endpoint import Endpoint, probe_server
from continuum_bench.options.agent import AgentOptions, OpenHandsOptions
from continuum_bench.options.run import uses_rate
from continuum_bench.progress import RunsDisplay
from continuum_bench.show import print_notice
from continuum_bench.workload.arrivals import arrival_times, lanes_of, pace

WORKERS = 4
"""Number of agent processes at the same time if the user gives none."""


def run_openhands(options: OpenHandsOptions) -> int:
    """Play tasks on code. Returns the exit code, as ``run_batch``."""
    environment = environment_for(options)
    return run_batch(options, environment, options.tasks, Work(read_tasks(options.tasks, options.repos)))


def environment_for(options: AgentOptions) -> Environment:
    """Check the options that all frameworks have, and return the framework's environment.

    Raises:
        BenchError: the options exclude each other, or tasks cannot arrive so.
        AgentEnvironmentError: the framework is not installed.
    """
    environment = environment_of(options.framework)
    arrivals = options.arrivals
    if options.workers is not None and options.workers != at_once(options):
        raise BenchError(f"--workers {options.workers}, --arrivals {arrivals}: give one of them")
    if arrivals.startswith("recorded"):
        raise BenchError(f"--arrivals {arrivals}: tasks have no recorded arrivals")
    if arrivals.startswith("steps"):
        raise BenchError(f"--arrivals {arrivals}: agents start one at a time; give concurrency:N")
    return environment


def run_batch(options: AgentOptions, environment: Environment, tasks: Path, work: Work) -> int:
    """Play and record a batch. Returns the exit code: 0, 1 if programs failed, 130 after Ctrl-C.

    Args:
        options: the user's options.
        environment: as ``environment_for`` returns it.
        tasks: file that the tasks come from, for the manifest.
        work: the tasks.
    """
    endpoint = probe_server(options.base_url, os.environ.get("OPENAI_API_KEY") or None, options.model)
    start = _start(options, endpoint, work.config)
    if options.config:
        asked = f"-c {' -c '.join(options.config)}"
        environment.run(environment.framework.runner, CHECK, asked=asked, stdin=to_line(start))
    out = (options.out or default_out(options.framework)).absolute()
    manifest = _manifest(options, tasks, environment.framework, endpoint, start, work)
    with Results(out, manifest, start, environment.framework.distribution, work.answers) as results:
        arrivals, complete = _arrivals(options, work.tasks, results), True
        finished = len(work.tasks) - len(arrivals)
        again = f", {finished} finished before" if finished else ""
        rate = pace(options.arrivals, options.jps)
        print_notice(f"{len(arrivals)} programs {rate} against {endpoint.base_url}{again}, into {out}")
        if arrivals:
            batch = BatchSettings(environment, work, start, out, at_once(options), options.time_limit_s)
            costs, results.to_run = {arrival.program_id: 1.0 for arrival in arrivals}, len(arrivals)
            with RunsDisplay(costs, finished, quiet=False, what="programs") as results.display:
                complete = asyncio.run(play(batch, arrivals, results))
        write_fixes(out, work.tasks, results.predictions)
        if work.conclude is not None:
            work.conclude(results)
    show_results(results, options.json_output)
    if not complete:
        return INTERRUPTED
    return 0 if all(record.finished for record in results.records) else 1


def at_once(options: AgentOptions) -> int:
    """Return the number of agent processes at the same time."""
    lanes = lanes_of(options.arrivals)
    return lanes.number if lanes is not None else options.workers or WORKERS


def _start(options: AgentOptions, endpoint: Endpoint, config: tuple[str, ...]) -> Start:
    """Return the message that starts a program, without the program's id, task and folders."""
    given = {
        **options.shared_with(Start),
        "base_url": endpoint.base_url,
        "model": options.model or endpoint.models[0],
        "dialect": endpoint.dialect_of(options.dialect).name,
        "config": config or tuple(options.config or find_framework(options.framework).config),
    }
    return Start(**given)


def _arrivals(options: AgentOptions, tasks: list[Task], results: Results) -> list[ArrivingTask]:
    """Return the programs still to be run, in a random order. A resumed batch has the same order."""
    rng = np.random.default_rng(options.seed)
    order = list(tasks)
    rng.shuffle(cast(Any, order))
    left = [task for task in order if task.instance_id not in results.predictions]
    lanes = lanes_of(options.arrivals)
    times: Sequence[float | None] = []
    if lanes is not None:
        step_s = lanes.ramp_s / lanes.number
        times = [place * step_s if place < lanes.number else None for place in range(len(left))]
    elif left:
        times = arrival_times(options.arrivals)(rng, options.jps, cast(Any, left)).tolist()
    return [
        ArrivingTask(task, results.new_program_id(task.instance_id), at_s)
        for task, at_s in zip(left, times, strict=True)
    ]


def _manifest(
    options: AgentOptions, tasks: Path, framework: Framework, endpoint: Endpoint, start: Start, work: Work
) -> Manifest:
    return endpoint.manifest(
        start.model,
        versions={framework.distribution: framework.pinned_version},
        created=utc_now(),
        policy=endpoint.policy,
        seed=options.seed,
        workload=Workload(
            name=f"agent {framework.name}",
            sha256=hashlib.sha256(tasks.read_bytes()).hexdigest(),
            programs=len(work.tasks),
            synthetic=False,
            jps=options.jps if uses_rate(options.arrivals) else None,
            arrivals=options.arrivals,
            more={
                "file": tasks.name,
                "last_step": "known when the last request is sent at the step limit only; else told afterwards",
                **work.facts,
            },
        ),
        engine_options=Engine(
            more={
                "dialect": start.dialect,
                **{"content": start.content, "config": start.config, "step_limit": start.step_limit},
                **{"tool_limit_s": start.tool_limit_s, "environment": start.environment},
                **{"workers": at_once(options), "time_limit_s": options.time_limit_s},
            },
        ),
    )
