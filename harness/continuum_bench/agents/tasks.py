"""Tasks for real agents: reads files in the formats of SWE-bench and Multi-SWE-bench, and prepares workspaces."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from continuum_bench.errors import BenchError
from continuum_bench.json_files import Text, documents, objects, read_as

FIXES = "fix_patches.jsonl"
Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")]
"""A task's id, which names files and containers."""
_GIT = ("git", "-c", "user.name=continuum", "-c", "user.email=continuum@localhost", "-c", "commit.gpgsign=false")
_AS_GIVEN = (("init", "-q"), ("add", "-A", "-f"), ("commit", "-q", "--allow-empty", "-m", "as given"))


class TaskError(Exception):
    """A task cannot be started. Its program fails; other programs go on."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task: a line of the file, in SWE-bench's format with ``folder`` and ``test`` for tasks of one's own."""

    instance_id: Id
    problem_statement: Text
    folder: Path | None = None
    """Code that is copied for the agent; None: the task names no folder."""
    test: Text | None = None
    """Shell command that ends with status 0 if the task is solved."""
    repo: Text | None = None
    """ORG/REPO of the clone in ``folder``, which is checked out at ``base_commit``."""
    base_commit: Text | None = None
    """Commit that the agent starts from; None: the code as it is in ``folder``."""
    number: int | None = None
    """The task's pull request, for tasks in Multi-SWE-bench's format."""
    image: Text | None = None
    """Docker image that contains the code."""
    image_name: Text | None = None
    docker_image: Text | None = None
    """Other names of ``image`` in datasets."""
    empty: bool = False
    """The agent starts in an empty folder."""


class _Issue(Struct):
    title: str | None = None
    body: str | None = None


class _Base(Struct):
    sha: Text


class _MultiSweBench(Struct):
    """A line in Multi-SWE-bench's format."""

    org: Text
    repo: Text
    number: int
    resolved_issues: Annotated[list[_Issue], Meta(min_length=1)]
    base: _Base
    instance_id: Text | None = None
    folder: Text | None = None
    test: Text | None = None

    def as_swe_bench(self) -> dict[str, Any]:
        """Return the fields of SWE-bench. The first issue of the pull request is the problem."""
        texts = (self.resolved_issues[0].title, self.resolved_issues[0].body)
        return {
            "instance_id": self.instance_id or f"{self.org}__{self.repo}-{self.number}",
            "problem_statement": "\n\n".join(text.strip() for text in texts if text and text.strip()),
            "repo": f"{self.org}/{self.repo}",
            "base_commit": self.base.sha,
            **{"number": self.number, "folder": self.folder, "test": self.test},
        }


def read_tasks(path: Path, repos: Path | None = None) -> list[Task]:
    """Read the tasks of a file, in their order.

    Args:
        path: the file.
        repos: folder with clones of the repositories that tasks name, ORG/REPO or ORG__REPO.

    Raises:
        BenchError: a line is invalid. The message names the file, the line and the field.
    """
    tasks: dict[str, Task] = {}
    for where, data in objects(documents(path)):
        row = read_as(where, data, _MultiSweBench).as_swe_bench() if "org" in data else data
        task = _located(read_as(where, row, Task), path.parent, repos)
        if task.instance_id in tasks:
            raise BenchError(f"{where}: instance_id: {task.instance_id!r} is there already")
        tasks[task.instance_id] = task
    if not tasks:
        raise BenchError(f"--tasks {path}: no task in it")
    return list(tasks.values())


def _located(task: Task, base: Path, repos: Path | None) -> Task:
    """Return the task with the path of its code."""
    image = task.image or task.image_name or task.docker_image
    if task.folder is not None:
        return replace(task, folder=(base / task.folder).resolve(), base_commit=None, image=image)
    if task.repo is None or repos is None:
        return replace(task, image=image)
    flat = repos / task.repo.replace("/", "__")
    return replace(task, folder=(flat if flat.is_dir() else repos / task.repo).resolve(), image=image)


def write_fixes(out: Path, tasks: Sequence[Task], predictions: Mapping[str, Any]) -> None:
    """Write predictions in Multi-SWE-bench's format for the tasks that came in that format."""
    lines = []
    for task in tasks:
        if task.number is not None and task.repo is not None and task.instance_id in predictions:
            org, _, repo = task.repo.partition("/")
            patch = predictions[task.instance_id]["model_patch"]
            lines.append(json.dumps({"org": org, "repo": repo, "number": task.number, "fix_patch": patch}) + "\n")
    if lines:
        (out / FIXES).write_text("".join(lines), encoding="utf-8")


def prepare_workspace(task: Task, workspace: Path) -> None:
    """Make a fresh copy of the task's code and commit it, so that ``git diff`` shows the agent's changes only.

    Raises:
        TaskError: the folder or the commit does not exist, or git is not installed.
    """
    if task.folder is None and not task.empty:
        named = f" or give --repos, a folder with a clone of {task.repo}" if task.repo else ""
        raise TaskError(f'the task names no folder: add "folder", the path of the code to work on{named}')
    if task.folder is not None and not task.folder.is_dir():
        hint = f"; git clone https://github.com/{task.repo} {task.folder}" if task.base_commit else ""
        raise TaskError(f"folder {task.folder}: there is none{hint}")
    try:
        if workspace.exists():
            shutil.rmtree(workspace)
        if task.folder is None:
            workspace.mkdir(parents=True)
            _commit(workspace)
        elif task.base_commit is None:
            _copied(task.folder, workspace)
        else:
            _checked_out(task.folder, task.base_commit, workspace)
    except subprocess.CalledProcessError as error:
        raise TaskError(f"git failed: {error.stderr.decode(errors='replace').strip()[-300:]}") from error
    except OSError as error:
        raise TaskError(f"workspace {workspace}: {error}") from error


def _copied(folder: Path, workspace: Path) -> None:
    ignored = shutil.ignore_patterns(".git", "__pycache__", ".pytest_cache")
    shutil.copytree(folder, workspace, symlinks=True, ignore=ignored)
    _commit(workspace)


def _commit(workspace: Path) -> None:
    for arguments in _AS_GIVEN:
        _git(workspace, *arguments)


def _checked_out(clone: Path, commit: str, workspace: Path) -> None:
    """Check out this commit without any later ones, which could contain the solution."""
    workspace.mkdir(parents=True)
    _git(workspace, "init", "-q")
    _git(workspace, "fetch", "-q", "--depth", "1", f"file://{clone}", commit)
    _git(workspace, "checkout", "-q", "--detach", "FETCH_HEAD")


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run([*_GIT, *arguments], cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL)
