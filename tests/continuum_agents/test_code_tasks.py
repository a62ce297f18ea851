"""Tasks on code: Multi-SWE-bench's lines, repositories' clones, and the interpreters that frameworks need."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS
from continuum_agents.edge import tool_name
from continuum_agents.environments import NoPython, find_framework, find_python
from continuum_bench.agents.tasks import Task, TaskError, prepare_workspace, read_tasks, write_fixes
from continuum_bench.cli import app
from continuum_bench.errors import BenchError
from typer.testing import CliRunner

from continuum_client.tagging import check_tool

LINE: dict[str, Any] = {
    "org": "shop",
    "repo": "words",
    "number": 7,
    "base": {"label": "shop:main", "ref": "main", "sha": "0" * 40},
    "resolved_issues": [{"number": 6, "title": "Count is wrong", "body": "For two spaces."}, {"title": "Another"}],
    "fix_patch": "diff --git a/words.go b/words.go",
}


def file_of(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with a commit before the fix and one after it."""
    folder = tmp_path / "repos" / "shop" / "words"
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    for text in ("before", "after"):
        (folder / "words.go").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", text)
    return folder


def test_a_line_of_multi_swe_bench_is_a_task(tmp_path: Path) -> None:
    (task,) = read_tasks(file_of(tmp_path, LINE), tmp_path / "repos")
    assert task == Task(
        "shop__words-7",
        "Count is wrong\n\nFor two spaces.",
        (tmp_path / "repos/shop/words").resolve(),
        repository="shop/words",
        commit="0" * 40,
        number=7,
    )


def test_its_own_id_is_kept_and_a_flat_clone_is_found(tmp_path: Path) -> None:
    (tmp_path / "repos" / "shop__words").mkdir(parents=True)
    (task,) = read_tasks(file_of(tmp_path, {**LINE, "instance_id": "w-1"}), tmp_path / "repos")
    assert (task.instance_id, task.folder) == ("w-1", (tmp_path / "repos/shop__words").resolve())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"number": "7"}, "Expected `int`, got `str` - at `$.number`"),
        ({"number": True}, "got `bool` - at `$.number`"),
        ({"repo": None}, "tasks.jsonl:1: Expected `str`, got `null` - at `$.repo`"),
        ({"resolved_issues": []}, "`$.resolved_issues`"),
        ({"resolved_issues": [{}]}, "tasks.jsonl:1: Expected `str` matching regex '\\\\S' - at `$.problem_statement`"),
        ({"base": None}, "Expected `object`, got `null` - at `$.base`"),
        ({"base": {}}, "missing required field `sha` - at `$.base`"),
    ],
)
def test_faults_of_a_line_are_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(BenchError) as caught:
        read_tasks(file_of(tmp_path, {**LINE, **change}))
    assert said in str(caught.value)


def test_the_workspace_is_the_base_commit_and_nothing_later(tmp_path: Path, clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD~1")
    (task,) = read_tasks(file_of(tmp_path, {**LINE, "base": {"sha": before}}), tmp_path / "repos")
    workspace = tmp_path / "w"
    prepare_workspace(task, workspace)
    assert (workspace / "words.go").read_text() == "before"
    assert git(workspace, "rev-parse", "HEAD") == before
    assert "after" not in git(workspace, "log", "--all", "--format=%s")


def test_a_repository_or_a_commit_that_is_not_there(tmp_path: Path, clone: Path) -> None:
    (without,) = read_tasks(file_of(tmp_path, LINE))
    with pytest.raises(TaskError, match="--repos, a folder with a clone of shop/words"):
        prepare_workspace(without, tmp_path / "w")
    (elsewhere,) = read_tasks(file_of(tmp_path, LINE), tmp_path)
    with pytest.raises(TaskError, match=r"git clone https://github\.com/shop/words"):
        prepare_workspace(elsewhere, tmp_path / "w")
    with pytest.raises(TaskError, match="git failed"):
        prepare_workspace(replace(elsewhere, folder=clone), tmp_path / "w")


def test_patches_go_back_in_its_form(tmp_path: Path) -> None:
    tasks = read_tasks(SCENARIOS / "openhands-tasks.jsonl")
    assert [task.instance_id for task in tasks] == ["roman", "shop__words-7", "menu"]
    assert all(task.folder is not None and task.folder.is_dir() and task.test for task in tasks)
    write_fixes(tmp_path, tasks, {"roman": {"model_patch": "x"}})
    assert list(tmp_path.iterdir()) == []
    write_fixes(tmp_path, tasks, {"roman": {"model_patch": "x"}, "shop__words-7": {"model_patch": "y"}})
    assert json.loads((tmp_path / "fix_patches.jsonl").read_text()) == {
        **{"org": "shop", "repo": "words", "number": 7},
        "fix_patch": "y",
    }


@pytest.mark.parametrize(
    ("name", "sent"), [("think", "think"), (" a\nb\x00 ", "ab"), ("x" * 500, "x" * 128), ("\n", "unknown"), ("é", "é")]
)
def test_a_name_that_a_model_made_up_can_be_sent(name: str, sent: str) -> None:
    assert check_tool(tool_name(name)) == sent


# --------------------------------------------------------------------------------------- interpreters


def test_our_own_python_serves_a_framework_it_can_run() -> None:
    version = sys.version_info[:2]
    framework = replace(find_framework("openhands"), pythons=(version, (version[0], version[1] + 1)))
    assert find_python(framework) == sys.executable


def test_no_python_for_a_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a broken one on PATH nor an old one under the right name will do."""
    monkeypatch.setenv("CONTINUUM_AGENTS_DIR", str(tmp_path / "agents"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    for name, text in (("python3.97", "#!/bin/sh\nexit 127\n"), ("python3.98", "#!/bin/sh\necho 3.6\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    framework = replace(find_framework("openhands"), pythons=((3, 97), (3, 99)))
    with pytest.raises(NoPython, match=r"openhands needs Python 3\.97 or later, before 3\.99, and none was found"):
        find_python(framework)
    monkeypatch.setattr("continuum_bench.agents.environment.FRAMEWORKS", {"openhands": framework})
    monkeypatch.setattr("continuum_bench.agents.environment.find_framework", lambda name: framework)
    named = CliRunner().invoke(app, ["agent", "setup", "openhands"])
    assert (named.exit_code, "needs Python 3.97" in named.output) == (2, True)
    everything = CliRunner().invoke(app, ["agent", "setup"])
    assert (everything.exit_code, "left out: openhands needs" in everything.output) == (0, True)
