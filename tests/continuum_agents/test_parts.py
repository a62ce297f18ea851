"""The protocol, environments, files of tasks, entries and recorded webs, workspaces, and mistakes in options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_batches import SCENARIOS
from continuum_agents import environments
from continuum_agents.edge import recording_client, tool_name
from continuum_agents.environments import (
    FRAMEWORKS,
    AgentEnvironmentError,
    Framework,
    NoPython,
    find_framework,
    find_python,
    is_current,
    python_of,
    set_up,
)
from continuum_agents.protocol import (
    Done,
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
from continuum_agents.recorded_web import query_key, read_web
from continuum_bench.agents.bfcl import read_entries
from continuum_bench.agents.mini_swe import run_mini_swe, with_image
from continuum_bench.agents.tasks import Task, TaskError, prepare_workspace, read_tasks, write_fixes
from continuum_bench.cli import app
from continuum_bench.errors import BenchError
from continuum_bench.options.agent import MiniSweOptions
from continuum_server.emulated.replies import read_script
from continuum_traces.programs.jsonl import TraceError
from typer.testing import CliRunner

from continuum_client.tagging import check_tool

BFCL = SCENARIOS / "bfcl"
ENTRIES = "BFCL_v4_web_search.json"
START = Start("p", "Mend é.", "/w", "http://x/v1", "m", "/r", "/t.json", config=("a.yaml", "k=v"), step_limit=3)

# ------------------------------------------------------------------------------------------- protocol


def test_messages_come_back_as_they_were() -> None:
    done = (Done("Submitted", "diff\n--- a"), Done("Answered", "42", passed=True), Failed("ValueError: x"))
    for event in (Ready(), TurnEnded(), ToolEnded("pytest", 0.5), *done):
        assert to_line(event).count("\n") == 1
        assert read_event(to_line(event)) == event
    assert read_start(to_line(START)) == START
    assert read_event('{"type": "ready", "new": 1}\n') == Ready()  # a newer version's


@pytest.mark.parametrize("line", ["", "{", "[]", '"x"', '{"type": "what"}', '{"type": "tool"}', '{"type": ["x"]}'])
def test_anything_else_is_an_error(line: str) -> None:
    for read in (read_event, read_start):
        with pytest.raises(ProtocolError):
            read(line)


def test_the_key_is_the_client_s_and_not_for_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    client = recording_client(replace(START, run_dir=str(tmp_path)), "test", lambda name, arguments: name)
    assert client.api_key == "sk-secret"
    assert "sk-secret" not in subprocess.run(["env"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("name", "sent"), [("think", "think"), (" a\nb\x00 ", "ab"), ("x" * 500, "x" * 128), ("\n", "unknown"), ("é", "é")]
)
def test_a_name_that_a_model_made_up_can_be_sent(name: str, sent: str) -> None:
    assert check_tool(tool_name(name)) == sent


# -------------------------------------------------------------------------------------- environments


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No environment has been made."""
    monkeypatch.setenv("CONTINUUM_AGENTS_DIR", str(tmp_path / "agents"))
    return tmp_path / "agents"


def test_doctor_lists_environments_and_none_is_needed(nowhere: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for framework in FRAMEWORKS.values():
        check = checks[f"agent {framework.name}"]
        assert (check["ok"], check["advice"]) == (False, framework.setup_command)
        assert framework.pinned_version in check["found"]
    assert done.exit_code == (0 if all(check["ok"] or check["optional"] for check in checks.values()) else 1)
    assert [check["name"] for check in checks.values() if check["optional"]] == [f"agent {n}" for n in FRAMEWORKS]


def test_an_environment_that_is_missing_or_of_other_pins(nowhere: Path) -> None:
    framework = find_framework("mini-swe")
    with pytest.raises(AgentEnvironmentError, match="continuum-bench agent setup mini-swe"):
        python_of(framework)
    python = nowhere / "mini-swe" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    (nowhere / "mini-swe" / "continuum-environment.txt").write_text("mini-swe-agent==1.0\n")
    assert not is_current(framework)
    with pytest.raises(AgentEnvironmentError, match="other versions"):
        python_of(framework)


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


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=str)
def test_every_version_is_pinned(framework: Framework) -> None:
    lines = framework.pins.read_text().splitlines()
    assert all("==" in line for line in lines if line and not line.startswith("#"))
    assert framework.pinned_version


def test_pythons_for_a_framework(nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours where it will do, else pyenv's."""
    version = sys.version_info[:2]
    ours = replace(find_framework("openhands"), pythons=(version, (version[0], version[1] + 1)))
    assert find_python(ours) == sys.executable
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    installed = tmp_path / "pyenv/versions/any/bin/python"
    installed.parent.mkdir(parents=True)
    installed.symlink_to(sys._base_executable)
    with monkeypatch.context() as old:
        old.setattr(sys, "version_info", (3, 1))
        assert find_python(ours) == str(installed)
    framework = replace(find_framework("openhands"), pythons=((3, 97), (3, 99)))
    with pytest.raises(NoPython, match=r"openhands needs Python 3\.97 or later, before 3\.99"):
        find_python(framework)
    monkeypatch.setattr("continuum_bench.agents.environment.FRAMEWORKS", {"openhands": framework})
    monkeypatch.setattr("continuum_bench.agents.environment.find_framework", lambda name: framework)
    for words, code, said in ((["openhands"], 2, "needs Python 3.97"), ([], 0, "left out: openhands needs")):
        done = CliRunner().invoke(app, ["agent", "setup", *words])
        assert (done.exit_code, said in done.output) == (code, True)


# --------------------------------------------------------------------------------------------- files

LINE: dict[str, Any] = {
    "org": "shop",
    "repo": "words",
    "number": 7,
    "base": {"label": "shop:main", "ref": "main", "sha": "0" * 40},
    "resolved_issues": [{"number": 6, "title": "Count is wrong", "body": "For two spaces."}, {"title": "Another"}],
    "fix_patch": "diff --git a/words.go b/words.go",
}
"""Multi-SWE-bench's."""


def multi(**change: Any) -> str:
    return json.dumps({**LINE, **change})


READERS: dict[str, Callable[[Path], object]] = {
    "w.jsonl": read_web,
    ENTRIES: lambda path: read_entries(path, "web_search_base"),
}
FAULTS = [
    ("w.jsonl", "{", ":1: Invalid JSON"),
    ("w.jsonl", '{"query": "a", "url": "b", "seconds": 1}', ":1: expected query or url"),
    ("w.jsonl", '{"query": "a", "response": {}, "seconds": NaN}', ":1: seconds: "),
    ("w.jsonl", '{"query": "a", "seconds": 1}', ":1: response: missing"),
    ("w.jsonl", '{"query": "a", "error": "429 Too Many Requests", "seconds": 1}', "for ever"),
    ("w.jsonl", '\n{"url": "a", "text": "", "status": 7, "seconds": 1}', ":2: status"),
    (ENTRIES, '{"id": "memory_3"}', "at `$.id`"),
    (ENTRIES, '\n{"id": "web_search_1", "involved_classes": ["MathAPI"]}', ":2: Invalid enum value 'MathAPI'"),
    (ENTRIES, '{"id": "web_search_1", "involved_classes": ["WebSearchAPI"], "question": []}', "`$.question`"),
    (ENTRIES, "", "has no entry there"),
]


@pytest.mark.parametrize(("name", "text", "said"), FAULTS)
def test_faults_of_a_file_are_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text + "\n")
    with pytest.raises((BenchError, TraceError)) as caught:
        READERS[name](tmp_path / name)
    assert (name in str(caught.value), said in str(caught.value)) == (True, True), caught.value


def test_line_separators_inside_json_are_text(tmp_path: Path) -> None:
    """``str.splitlines`` would end the line at each of these."""

    def written(data: dict[str, Any]) -> Path:
        file = tmp_path / "lines.jsonl"
        file.write_text(json.dumps(data, ensure_ascii=False) + "\n\n", encoding="utf-8", newline="")
        return file

    text = "one\u2028two\u2029three\x85four"
    (task,) = read_tasks(written({"instance_id": "a", "problem_statement": text}))
    reply = read_script(written({"program": "a", "replies": [{"text": text}]})).due("a")
    assert reply is not None
    assert task.problem_statement == reply.text == text
    assert read_web(written({"url": "u", "text": text, "seconds": 1}))["u"].text == text


def test_a_recorded_web_answers_as_it_did(tmp_path: Path) -> None:
    lines = [{"url": "u", "text": text, "seconds": 1} for text in ("old", "new")]
    (tmp_path / "web.jsonl").write_text((BFCL / "web.jsonl").read_text() + "\n".join(map(json.dumps, lines)))
    web = read_web(tmp_path / "web.jsonl")
    answer: Any = web[query_key("  halden reach LIGHTHOUSE   engineer ")]
    page, later = web["https://valley.example/railways"], web["u"]
    assert (answer.seconds, answer.response["organic_results"][0]["title"]) == (0.42, "Halden Reach Light")
    assert (page.status, page.seconds, later.text) == (404, 0.12, "new")
    assert not {query_key("something else"), "https://valley.example/"} & set(web)


def test_entries_have_bfcl_s_names() -> None:
    base = read_entries(BFCL / ENTRIES, "web_search_base")
    assert [task.instance_id for task in base] == [f"web_search_base_{number}" for number in range(3)]
    assert base[0].problem_statement.startswith("The lighthouse of Halden Reach")
    both = [task.instance_id for task in read_entries(BFCL / ENTRIES, "web_search", "1:")]
    assert both == [f"web_search_{kind}_{number}" for kind in ("base", "no_snippet") for number in (1, 2)]


def test_a_line_of_multi_swe_bench_is_a_task(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(multi())
    (task,) = read_tasks(file, tmp_path / "repos")
    there = (tmp_path / "repos").resolve()
    facts: dict[str, Any] = {"repo": "shop/words", "base_commit": "0" * 40, "number": 7}
    assert task == Task("shop__words-7", "Count is wrong\n\nFor two spaces.", there / "shop/words", **facts)
    (there / "shop__words").mkdir(parents=True)
    file.write_text(multi(instance_id="w-1"))
    (flat,) = read_tasks(file, tmp_path / "repos")
    assert (flat.instance_id, flat.folder) == ("w-1", there / "shop__words")


def test_patches_go_back_in_its_form(tmp_path: Path) -> None:
    tasks = read_tasks(SCENARIOS / "openhands-tasks.jsonl")
    write_fixes(tmp_path, tasks, {"roman": {"model_patch": "x"}})
    assert list(tmp_path.iterdir()) == []
    write_fixes(tmp_path, tasks, {"roman": {"model_patch": "x"}, "shop__words-7": {"model_patch": "y"}})
    written = json.loads((tmp_path / "fix_patches.jsonl").read_text())
    assert written == {"org": "shop", "repo": "words", "number": 7, "fix_patch": "y"}


def test_a_task_without_an_image_has_swe_bench_s() -> None:
    task = with_image(Path("t.jsonl"), Task("Django__django-123", "x"))
    assert task.image == "docker.io/swebench/sweb.eval.x86_64.django_1776_django-123:latest"
    assert with_image(Path("t.jsonl"), replace(task, image="mine")).image == "mine"
    with pytest.raises(BenchError, match="roman: image: missing"):
        with_image(Path("t.jsonl"), Task("roman", "x"))


# ---------------------------------------------------------------------------------------- workspaces


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@localhost")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_a_workspace_is_a_commit_of_the_code_as_given(tmp_path: Path) -> None:
    for _ in range(2):  # the second attempt starts afresh
        prepare_workspace(Task("roman", "x", SCENARIOS / "roman"), tmp_path / "w")
        assert git(tmp_path / "w", "status", "--porcelain") == ""
        (tmp_path / "w" / "roman" / "__init__.py").write_text("changed\n")


def test_the_workspace_is_the_base_commit_and_nothing_later(tmp_path: Path) -> None:
    clone, workspace = tmp_path / "repos" / "shop" / "words", tmp_path / "w"
    clone.mkdir(parents=True)
    git(clone, "init", "-q")
    for text in ("before", "after"):
        (clone / "words.go").write_text(text)
        git(clone, "add", "-A")
        git(clone, "commit", "-q", "-m", text)
    before = git(clone, "rev-parse", "HEAD~1")
    (tmp_path / "t.jsonl").write_text(multi(base={"sha": before}))
    (task,) = read_tasks(tmp_path / "t.jsonl", tmp_path / "repos")
    prepare_workspace(task, workspace)
    assert (workspace / "words.go").read_text() == "before"
    assert git(workspace, "rev-parse", "HEAD") == before
    assert "after" not in git(workspace, "log", "--all", "--format=%s")
    faults = [
        (replace(task, folder=None), "--repos, a folder with a clone of shop/words"),
        (replace(task, folder=tmp_path / "elsewhere"), r"git clone https://github\.com/shop/words"),
        (replace(task, base_commit="0" * 40), "git failed"),
        (Task("a", "x"), "folder"),
        (Task("a", "x", Path("nowhere")), "folder"),
    ]
    for wrong, said in faults:
        with pytest.raises(TaskError, match=said):
            prepare_workspace(wrong, tmp_path / "none")


# ------------------------------------------------------------------------------------------- options


def test_without_an_environment_or_bubblewrap(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in FRAMEWORKS:
        given = ["--tasks", str(BFCL if framework == "bfcl" else SCENARIOS / "tasks.jsonl")]
        done = CliRunner().invoke(app, ["agent", framework, *given, "--base-url", "http://127.0.0.1:9/v1"])
        assert (done.exit_code, f"continuum-bench agent setup {framework}" in done.output) == (2, True), done.output
    monkeypatch.setenv("MSWEA_BUBBLEWRAP_EXECUTABLE", "no-such-bwrap")
    with pytest.raises(BenchError, match="no-such-bwrap; Debian: apt-get install bubblewrap"):
        run_mini_swe(MiniSweOptions(base_url="", subset="lite", environment="bubblewrap"))
