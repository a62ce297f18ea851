"""``continuum-bench agent mini-swe``: runs tasks from a file or from SWE-bench, in folders or in containers."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from continuum_agents.protocol import BUBBLEWRAP, DOCKER
from continuum_traces.json_io import write_text

from continuum_bench.agents.batch import environment_for, run_batch
from continuum_bench.agents.containers import pull_images, remove_containers
from continuum_bench.agents.environment import Environment
from continuum_bench.agents.runner import Work, batch_label
from continuum_bench.agents.tasks import Task, read_tasks
from continuum_bench.errors import BenchError
from continuum_bench.invocation import default_out
from continuum_bench.options.agent import MiniSweOptions

TASKS = "tasks.jsonl"
LOADER = "continuum_agents.swebench"
_SWE_BENCH = re.compile(r"[\w.-]+__[\w.-]+-\d+")


def run_mini_swe(options: MiniSweOptions) -> int:
    """Play tasks of a file or of a dataset. Returns the exit code, as ``run_batch``."""
    _check(options)
    environment, file, out = environment_for(options), options.tasks, options.out
    if file is None:
        out = out or default_out(options.framework)
        file = _load(environment, options, out)
    work = Work(read_tasks(file, options.repos), facts=_facts(options))
    if options.environment == DOCKER:
        tasks = [with_image(file, task) for task in work.tasks]
        if out is not None:
            remove_containers(batch_label(out))
        if options.pull:
            pull_images(dict.fromkeys(task.image for task in tasks if task.image))
        work = replace(work, tasks=tasks, conclude=lambda done: remove_containers(batch_label(done.out)))
    return run_batch(replace(options, out=out), environment, file, work)


def _check(options: MiniSweOptions) -> None:
    if (options.tasks is None) == (options.subset is None):
        raise BenchError("give --tasks FILE or --subset NAME, one of them")
    if options.environment == BUBBLEWRAP and shutil.which(_bwrap()) is None:
        raise BenchError(f"--environment bubblewrap: there is no {_bwrap()}; Debian: apt-get install bubblewrap")


def _bwrap() -> str:
    return os.environ.get("MSWEA_BUBBLEWRAP_EXECUTABLE", "bwrap")


def with_image(file: Path, task: Task) -> Task:
    """Return the task with its Docker image: the image that it names, else SWE-bench's image for its id."""
    if task.image is not None:
        return task
    if not _SWE_BENCH.fullmatch(task.instance_id):
        missing = "image: missing; --environment docker runs each task in its image"
        raise BenchError(f"{file}: {task.instance_id}: {missing} (only SWE-bench's ids, ORG__REPO-NUMBER, have one)")
    name = task.instance_id.replace("__", "_1776_").lower()  # as SWE-bench and mini-swe-agent name it
    return replace(task, image=f"docker.io/swebench/sweb.eval.x86_64.{name}:latest")


def _facts(options: MiniSweOptions) -> dict[str, Any]:
    chosen: dict[str, Any] = {"subset": options.subset, "split": options.split, "slice": options.slice_spec}
    chosen |= {"filter": options.filter_spec, "shuffle": options.shuffle}
    return {name: value for name, value in chosen.items() if value} if options.subset is not None else {}


def _load(environment: Environment, options: MiniSweOptions, out: Path) -> Path:
    """Write the dataset's tasks to a file in ``out``, and return its path."""
    chosen = ["--subset", str(options.subset), "--split", options.split]
    chosen += [f"--slice={options.slice_spec}", f"--filter={options.filter_spec}"]
    chosen += ["--shuffle"] if options.shuffle else []
    tasks = environment.run(LOADER, *chosen, asked=f"--subset {options.subset}")
    return write_text(out / TASKS, tasks)
