"""``continuum-bench agent command``: run any program as the agent of a batch. Each program has its own proxy."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace

from continuum_bench.agents.batch import environment_for, run_batch
from continuum_bench.agents.runner import Work
from continuum_bench.agents.tasks import Task, read_tasks
from continuum_bench.errors import BenchError
from continuum_bench.options.agent import CommandOptions


def run_command(options: CommandOptions, words: Sequence[str]) -> int:
    """Play tasks with a command. Returns the exit code, as ``run_batch``."""
    if options.tool_limit_s is not None:
        raise BenchError("--tool-limit: the command runs its own tools; limit them there")
    if shutil.which(words[0]) is None:
        raise BenchError(f"-- {words[0]}: there is no such command")
    environment = environment_for(options)
    tasks = [_with_check(task, options.check) for task in read_tasks(options.tasks, options.repos)]
    facts = {"command": list(words), "check": options.check}
    work = Work(tasks, facts=facts, config=tuple(words), scored=True)
    return run_batch(options, environment, options.tasks, work)


def _with_check(task: Task, check: str | None) -> Task:
    """Return the task with ``check`` as its test if it has none, and with an empty folder if it names no code."""
    return replace(task, test=task.test or check, empty=task.folder is None and task.repo is None)
