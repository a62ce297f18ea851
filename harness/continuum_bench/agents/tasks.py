"""Tasks for real agents: reads files in the formats of SWE-bench and Multi-SWE-bench, and prepares workspaces."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continuum_traces.importers.usage import json_object
from continuum_traces.jsonl import TraceError

from continuum_bench.errors import BenchError

FIXES = "fix_patches.jsonl"
_IMAGES = ("image", "image_name", "docker_image")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")
_GIT = ("git", "-c", "user.name=continuum", "-c", "user.email=continuum@localhost", "-c", "commit.gpgsign=false")
_AS_GIVEN = (("init", "-q"), ("add", "-A", "-f"), ("commit", "-q", "--allow-empty", "-m", "as given"))


class TaskError(Exception):
    """A task cannot be started. Its program fails; other programs go on."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task: a line of the file."""

    instance_id: str
    problem_statement: str
    folder: Path | None = None
    """Code that is copied for the agent; None: the task names no folder."""
    test: str | None = None
    """Shell command that ends with status 0 if the task is solved."""
    repository: str | None = None
    """ORG/REPO of the clone in ``folder``, which is checked out at ``commit``."""
    commit: str | None = None
    """Commit that the agent starts from; None: the code as it is in ``folder``."""
    number: int | None = None
    """Number of the pull request, in Multi-SWE-bench."""
    image: str | None = None
    """Docker image that contains the code."""
    empty: bool = False
    """The agent starts in an empty folder."""


def read_tasks(path: Path, repos: Path | None = None) -> list[Task]:
    """Read the tasks of a file, in their order.

    Args:
        path: the file.
        repos: folder with clones of the repositories that tasks name, ORG/REPO or ORG__REPO.

    Raises:
        BenchError: a line is invalid. The message names the file, the line and the field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"--tasks {path}: cannot read: {error}") from error
    tasks: dict[str, Task] = {}
    for where, data in objects_of(path, text):
        task = _task(where, data, path.parent, repos)
        if task.instance_id in tasks:
            raise BenchError(f"{where}: instance_id: {task.instance_id!r} is there already")
        tasks[task.instance_id] = task
    if not tasks:
        raise BenchError(f"--tasks {path}: no task in it")
    return list(tasks.values())


def objects_of(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the JSON object in each line of ``text``, with its place (``FILE:LINE``). Empty lines are skipped.

    Raises:
        BenchError: a line is not a JSON object. The message names the file and the line.
    """
    for number, line in enumerate(text.split("\n"), 1):  # JSON may contain other line separators
        if line.strip():
            where = f"{path}:{number}"
            try:
                data = json_object(where, line)
            except TraceError as error:
                raise BenchError(str(error)) from error
            yield where, data


def _task(where: str, data: dict[str, Any], base: Path, repos: Path | None) -> Task:
    if "org" in data:
        data = _as_swe_bench(where, data)
    instance_id = _text(where, data, "instance_id")
    if not _ID.match(instance_id):
        raise BenchError(f"{where}: instance_id: {instance_id!r}: letters, digits, dot, dash, underscore; at most 200")
    folder = base / _text(where, data, "folder") if data.get("folder") is not None else None
    repository = _optional(where, data, "repo")
    if folder is None and repository is not None and repos is not None:
        folder = _clone(repos, repository)
    return Task(
        instance_id,
        _text(where, data, "problem_statement"),
        None if folder is None else folder.resolve(),
        _optional(where, data, "test"),
        repository,
        None if data.get("folder") is not None else _optional(where, data, "base_commit"),
        data.get("number"),
        next((_text(where, data, name) for name in _IMAGES if data.get(name) is not None), None),
    )


def _as_swe_bench(where: str, data: dict[str, Any]) -> dict[str, Any]:
    """Convert a line of Multi-SWE-bench to SWE-bench's fields. The first issue of the pull request is the problem."""
    org, repo, number = _text(where, data, "org"), _text(where, data, "repo"), data.get("number")
    if not isinstance(number, int) or isinstance(number, bool):
        raise BenchError(f"{where}: number: expected a whole number")
    issues, base = data.get("resolved_issues"), data.get("base")
    if not isinstance(issues, list) or not issues or not isinstance(issues[0], dict):
        raise BenchError(f"{where}: resolved_issues: expected a list with an issue in it")
    if not isinstance(base, dict):
        raise BenchError(f"{where}: base: expected an object with sha")
    texts = (issues[0].get(part) for part in ("title", "body"))
    return {
        "instance_id": data.get("instance_id") or f"{org}__{repo}-{number}",
        "problem_statement": "\n\n".join(text.strip() for text in texts if isinstance(text, str) and text.strip()),
        "repo": f"{org}/{repo}",
        "base_commit": _text(f"{where}: base", base, "sha"),
        "number": number,
        **{name: data[name] for name in ("folder", "test") if name in data},
    }


def write_fixes(out: Path, tasks: Sequence[Task], predictions: Mapping[str, Any]) -> None:
    """Write predictions in Multi-SWE-bench's format for the tasks that came in that format."""
    lines = []
    for task in tasks:
        if task.number is not None and task.repository is not None and task.instance_id in predictions:
            org, _, repo = task.repository.partition("/")
            patch = predictions[task.instance_id]["model_patch"]
            lines.append(json.dumps({"org": org, "repo": repo, "number": task.number, "fix_patch": patch}) + "\n")
    if lines:
        (out / FIXES).write_text("".join(lines), encoding="utf-8")


def _clone(repos: Path, repository: str) -> Path:
    """Return the folder of a repository's clone."""
    flat = repos / repository.replace("/", "__")
    return flat if flat.is_dir() else repos / repository


def _optional(where: str, data: dict[str, Any], name: str) -> str | None:
    return _text(where, data, name) if data.get(name) is not None else None


def _text(where: str, data: dict[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BenchError(f"{where}: {name}: expected text")
    return value


def prepare_workspace(task: Task, workspace: Path) -> None:
    """Make a fresh copy of the task's code and commit it, so that ``git diff`` shows the agent's changes only.

    Raises:
        TaskError: the folder or the commit does not exist, or git is not installed.
    """
    if task.folder is None and not task.empty:
        named = f" or give --repos, a folder with a clone of {task.repository}" if task.repository else ""
        raise TaskError(f'the task names no folder: add "folder", the path of the code to work on{named}')
    if task.folder is not None and not task.folder.is_dir():
        hint = f"; git clone https://github.com/{task.repository} {task.folder}" if task.commit else ""
        raise TaskError(f"folder {task.folder}: there is none{hint}")
    try:
        if workspace.exists():
            shutil.rmtree(workspace)
        if task.folder is None:
            workspace.mkdir(parents=True)
            _commit(workspace)
        elif task.commit is None:
            _copied(task.folder, workspace)
        else:
            _checked_out(task.folder, task.commit, workspace)
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
