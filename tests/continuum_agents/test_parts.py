"""What needs no framework: the protocol, environments that are missing, task files, workspaces."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS
from continuum_agents import environments
from continuum_agents.edge import recording_client
from continuum_agents.environments import (
    FRAMEWORKS,
    AgentEnvironmentError,
    Framework,
    find_framework,
    is_current,
    python_of,
    set_up,
)
from continuum_agents.protocol import (
    Done,
    Event,
    Failed,
    ProtocolError,
    Ready,
    Start,
    ToolEnded,
    TurnEnded,
    read_event,
    read_start,
    to_line,
)
from continuum_agents.recorded_web import read_web
from continuum_bench.agents.tasks import Task, TaskError, prepare_workspace, read_tasks
from continuum_bench.cli import app
from continuum_bench.errors import BenchError
from continuum_server.emulated.replies import read_script
from typer.testing import CliRunner

START = Start("p", "Mend é.", "/w", "http://x/v1", "m", "/r", "/t.json", config=("a.yaml", "k=v"), step_limit=3)


@pytest.mark.parametrize(
    "event",
    [
        Ready("2.4.6"),
        TurnEnded(0, 10, 5, 0),
        ToolEnded(1, "pytest", 0.5, 1),
        Done("Submitted", "diff\n--- a", 7),
        Done("Answered", "42", 3, passed=True),
        Failed("ValueError: x"),
    ],
)
def test_events_come_back_as_they_were(event: Event) -> None:
    line = to_line(event)
    assert line.count("\n") == 1
    assert read_event(line) == event


def test_a_start_comes_back_as_it_was() -> None:
    assert read_start(to_line(START)) == START


def test_the_key_is_the_client_s_and_not_for_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    client = recording_client(replace(START, run_dir=str(tmp_path)), "test", lambda name, arguments: name)
    assert client.api_key == "sk-secret"
    assert "sk-secret" not in subprocess.run(["env"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("line", ["", "{", "[]", '{"type": "what"}', '{"type": "turn"}', '{"type": ["x"]}'])
def test_anything_else_is_an_error(line: str) -> None:
    with pytest.raises(ProtocolError):
        read_event(line)
    with pytest.raises(ProtocolError):
        read_start(line)


def test_fields_of_a_newer_version_are_left_out() -> None:
    assert read_event('{"type": "ready", "framework_version": "3", "new": 1}\n') == Ready("3")


# -------------------------------------------------------------------------------------- environments


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No environment has been made."""
    monkeypatch.setenv("CONTINUUM_AGENTS_DIR", str(tmp_path / "agents"))
    return tmp_path / "agents"


def test_a_missing_environment_names_the_command(nowhere: Path) -> None:
    framework = find_framework("mini-swe")
    assert not is_current(framework)
    with pytest.raises(AgentEnvironmentError, match="continuum-bench agent setup mini-swe"):
        python_of(framework)
    tasks = str(SCENARIOS / "tasks.jsonl")
    done = CliRunner().invoke(app, ["agent", "mini-swe", "--tasks", tasks, "--base-url", "http://127.0.0.1:9/v1"])
    assert done.exit_code == 2
    assert "continuum-bench agent setup mini-swe" in done.output


def test_doctor_lists_environments_and_none_is_needed(nowhere: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for framework in FRAMEWORKS.values():
        check = checks[f"agent {framework.name}"]
        assert (check["ok"], check["advice"]) == (False, framework.setup_command)
        assert framework.pinned_version in check["found"]
    assert done.exit_code == (0 if all(check["ok"] or check["optional"] for check in checks.values()) else 1)
    assert [check["name"] for check in checks.values() if check["optional"]] == [f"agent {n}" for n in FRAMEWORKS]


def test_an_environment_of_other_pins_is_not_current(nowhere: Path) -> None:
    python = nowhere / "mini-swe" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (nowhere / "mini-swe" / "continuum-environment.txt").write_text("mini-swe-agent==1.0\n")
    with pytest.raises(AgentEnvironmentError, match="other versions"):
        python_of(find_framework("mini-swe"))


@pytest.mark.slow
def test_an_environment_of_an_installed_wheel(nowhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a checkout and without a package index: our own packages are copied from where they are installed."""
    (tmp_path / "none.txt").write_text("")
    monkeypatch.setattr(environments, "source_root", lambda: None)
    monkeypatch.setattr(environments, "PINS", tmp_path)
    monkeypatch.setattr(environments, "version", lambda name: "0.1.0")
    monkeypatch.setattr(Framework, "pinned_version", "0")
    framework = Framework("none", "m", "none")
    python = set_up(framework, lambda line: None)
    code = "import continuum_agents.protocol, continuum_client.tagging, continuum_traces.schema"
    assert subprocess.run([python, "-I", "-c", code], cwd=tmp_path).returncode == 0
    assert is_current(framework)


def test_an_unknown_framework() -> None:
    done = CliRunner().invoke(app, ["agent", "setup", "nobody"])
    assert done.exit_code == 2
    assert "there are: mini-swe" in done.output


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=str)
def test_every_version_is_pinned(framework: Any) -> None:
    lines = framework.pins.read_text().splitlines()
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    assert framework.pinned_version


# --------------------------------------------------------------------------------------------- names


# --------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("{", "t.jsonl:1: not JSON"),
        ("[]", "t.jsonl:1: expected an object"),
        ('{"problem_statement": "x"}', "t.jsonl:1: Object missing required field `instance_id`"),
        ('{"instance_id": "../x", "problem_statement": "x"}', "matching regex"),
        ('\n{"instance_id": "a"}', "t.jsonl:2: Object missing required field `problem_statement`"),
        ('{"instance_id": "a", "problem_statement": "x", "folder": 3}', "`$.folder`"),
        ('{"instance_id": "a", "problem_statement": "x"}\n' * 2, "t.jsonl:2: instance_id: 'a' is there already"),
        ("\n", "no task in it"),
    ],
)
def test_faults_of_a_task_file_are_named(tmp_path: Path, lines: str, said: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(lines)
    with pytest.raises(BenchError) as caught:
        read_tasks(file)
    assert said in str(caught.value)


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_line_separators_inside_json_are_text(tmp_path: Path, separator: str) -> None:
    """``str.splitlines`` would end the line at each of these."""

    def written(data: dict[str, Any]) -> Path:
        file = tmp_path / "lines.jsonl"
        file.write_text(json.dumps(data, ensure_ascii=False) + "\n\n", encoding="utf-8", newline="")
        return file

    text = f"one{separator}two"
    assert read_tasks(written({"instance_id": "a", "problem_statement": text}))[0].problem_statement == text
    answer = read_web(written({"url": "u", "text": text, "seconds": 1})).page("u")
    assert answer is not None
    assert answer.text == text
    reply = read_script(written({"program": "a", "replies": [{"text": text}]})).due("a")
    assert reply is not None
    assert reply.text == text


def test_the_scenarios_are_tasks() -> None:
    tasks = read_tasks(SCENARIOS / "tasks.jsonl")
    assert [task.instance_id for task in tasks] == ["roman", "spans", "slugs"]
    assert all(task.folder is not None and task.folder.is_dir() and task.test for task in tasks)


def test_a_workspace_is_a_commit_of_the_code_as_given(tmp_path: Path) -> None:
    workspace = tmp_path / "w"
    for _ in range(2):  # the second attempt starts afresh
        prepare_workspace(Task("roman", "x", SCENARIOS / "roman"), workspace)
        assert subprocess.run(["git", "status", "--porcelain"], cwd=workspace, capture_output=True).stdout == b""
        (workspace / "roman" / "__init__.py").write_text("changed\n")
        assert b"changed" in subprocess.run(["git", "diff"], cwd=workspace, capture_output=True).stdout


@pytest.mark.parametrize("folder", [None, Path("nowhere")])
def test_a_task_without_code(tmp_path: Path, folder: Path | None) -> None:
    with pytest.raises(TaskError, match="folder"):
        prepare_workspace(Task("a", "x", folder), tmp_path / "w")
