"""Tasks for real agents: a JSON-lines file in SWE-bench's words, and a folder of its own for each program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continuum_bench.bench_error import BenchError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")
_GIT = ("git", "-c", "user.name=continuum", "-c", "user.email=continuum@localhost", "-c", "commit.gpgsign=false")
_AS_GIVEN = (("init", "-q"), ("add", "-A", "-f"), ("commit", "-q", "--allow-empty", "-m", "as given"))


class TaskError(Exception):
    """A task that cannot be begun: its program fails, the others go on."""


@dataclass(frozen=True, slots=True)
class Task:
    """One line of the file."""

    instance_id: str
    problem_statement: str
    folder: Path | None = None
    """Code the agent works on, copied for it; None: the task names none."""
    test: str | None = None
    """Shell command that passes (status 0) where the task is solved."""


def read_tasks(path: Path) -> list[Task]:
    """Tasks of a file, in its order.

    Raises:
        BenchError: naming file, line and field.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--tasks {path}: cannot read: {error}") from error
    tasks = list(_tasks(path, lines))
    if not tasks:
        raise BenchError(f"--tasks {path}: no task in it")
    return tasks


def _tasks(path: Path, lines: list[str]) -> Iterator[Task]:
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        task = _task(f"{path}:{number}", line, path.parent)
        if task.instance_id in seen:
            raise BenchError(f"{path}:{number}: instance_id: {task.instance_id!r} is there already")
        seen.add(task.instance_id)
        yield task


def _task(where: str, line: str, base: Path) -> Task:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise BenchError(f"{where}: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BenchError(f"{where}: expected an object")
    instance_id = _text(where, data, "instance_id")
    if not _ID.match(instance_id):
        raise BenchError(f"{where}: instance_id: {instance_id!r}: letters, digits, dot, dash, underscore; at most 200")
    folder = _text(where, data, "folder") if data.get("folder") is not None else None
    return Task(
        instance_id,
        _text(where, data, "problem_statement"),
        None if folder is None else (base / folder).resolve(),
        _text(where, data, "test") if data.get("test") is not None else None,
    )


def _text(where: str, data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BenchError(f"{where}: {name}: expected text")
    return value


def prepare_workspace(task: Task, workspace: Path) -> None:
    """A fresh copy of the task's code, committed as given, so that ``git diff`` is the agent's work.

    Raises:
        TaskError: there is no such folder, or no git.
    """
    if task.folder is None:
        raise TaskError('the task names no folder: add "folder", the path of the code to work on')
    if not task.folder.is_dir():
        raise TaskError(f"folder {task.folder}: there is none")
    try:
        if workspace.exists():
            shutil.rmtree(workspace)
        ignored = shutil.ignore_patterns(".git", "__pycache__", ".pytest_cache")
        shutil.copytree(task.folder, workspace, symlinks=True, ignore=ignored)
        for arguments in _AS_GIVEN:
            subprocess.run(
                [*_GIT, *arguments], cwd=workspace, check=True, capture_output=True, stdin=subprocess.DEVNULL
            )
    except subprocess.CalledProcessError as error:
        raise TaskError(f"git failed: {error.stderr.decode(errors='replace').strip()[-300:]}") from error
    except OSError as error:
        raise TaskError(f"workspace {workspace}: {error}") from error
