"""BFCL's parts that need no server: entries, a recorded web, options, and the web as BFCL's tools see it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from agent_batches import environment
from bfcl_batches import BFCL, write_lines
from continuum_agents.environments import find_framework, python_of
from continuum_agents.recorded_web import RecordedWebError, read_web
from continuum_bench.agents.bfcl import read_entries
from continuum_bench.cli import app
from continuum_bench.errors import BenchError
from typer.testing import CliRunner

ENTRIES = BFCL / "BFCL_v4_web_search.json"


# ----------------------------------------------------------------------------------------- recorded webs


def test_a_recorded_web_answers_as_it_did() -> None:
    web = read_web(BFCL / "web.jsonl")
    answer = web.search("  halden reach LIGHTHOUSE   engineer ")
    assert answer is not None
    assert (answer.seconds, answer.response["organic_results"][0]["title"]) == (0.42, "Halden Reach Light")
    page = web.page("https://valley.example/railways")
    assert page is not None
    assert (page.status, page.seconds) == (404, 0.12)
    assert web.search("something else") is None
    assert web.page("https://valley.example/") is None


def test_the_later_recording_counts(tmp_path: Path) -> None:
    url = "https://x.example/"
    lines = [{"url": url, "text": text, "seconds": 1} for text in ("old", "new")]
    answer = read_web(write_lines(tmp_path / "web.jsonl", lines)).page(url)
    assert answer is not None
    assert answer.text == "new"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "w.jsonl:1: not JSON"),
        ("[]", "w.jsonl:1: expected an object with query or url"),
        ('{"query": "a", "url": "b"}', "expected an object with query or url"),
        ('{"query": 3, "seconds": 1}', "w.jsonl:1: query: expected text"),
        ('{"query": "a", "response": {}}', "w.jsonl:1: seconds: expected a number"),
        ('{"query": "a", "response": {}, "seconds": -1}', "seconds: expected a number, 0 or more"),
        ('{"query": "a", "response": {}, "seconds": NaN}', "seconds: expected a number, 0 or more"),
        ('{"query": "a", "response": [], "seconds": 1}', "w.jsonl:1: response"),
        ('{"query": "a", "error": "429 Too Many Requests", "seconds": 1}', "for ever"),
        ('{"url": "a", "seconds": 1}', "w.jsonl:1: text: expected text"),
        ('\n{"url": "a", "text": "", "status": 7, "seconds": 1}', "w.jsonl:2: status"),
    ],
)
def test_faults_of_a_recorded_web_are_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "w.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(RecordedWebError) as caught:
        read_web(file)
    assert said in str(caught.value)


@pytest.mark.slow
def test_bfcl_s_tools_see_the_recorded_web_as_the_live_one(tmp_path: Path) -> None:
    """A web on this machine: seen live and recorded, then seen in the recording. SerpAPI's key is in neither."""
    environment("bfcl")
    framework = find_framework("bfcl")
    script, file = Path(__file__).with_name("web_in_bfcl.py"), tmp_path / "web.jsonl"
    variables = {**os.environ, **framework.variables(), "SERPAPI_API_KEY": "a-secret"}
    command = [str(python_of(framework)), "-I", str(script), str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=variables)
    seen = json.loads(done.stdout.splitlines()[-1])
    assert len(seen["live"]) == 9
    assert seen["live"] == seen["recorded"]
    assert "a-secret" not in done.stdout + file.read_text()


# ----------------------------------------------------------------------------------------------- entries


def test_entries_have_bfcl_s_names() -> None:
    base = read_entries(ENTRIES, "web_search_base")
    assert [task.instance_id for task in base] == [f"web_search_base_{number}" for number in range(3)]
    assert base[0].problem_statement.startswith("The lighthouse of Halden Reach")
    both = read_entries(ENTRIES, "web_search", "1:")
    assert [task.instance_id for task in both] == [
        *("web_search_base_1", "web_search_base_2"),
        *("web_search_no_snippet_1", "web_search_no_snippet_2"),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "json:1: not JSON"),
        ("[]", "json:1: expected an object"),
        ('{"id": "memory_3"}', "matching regex '^web_search_[0-9]+\\\\Z' - at `$.id`"),
        (
            '\n{"id": "web_search_1", "involved_classes": ["MathAPI"]}',
            "json:2: Invalid enum value 'MathAPI'",
        ),
        ('{"id": "web_search_1", "involved_classes": ["WebSearchAPI"], "question": []}', "`$.question`"),
        ("", "has no entry there"),
    ],
)
def test_faults_of_entries_are_named(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "BFCL_v4_web_search.json"
    file.write_text(line + "\n")
    with pytest.raises(BenchError) as caught:
        read_entries(file, "web_search_base")
    assert said in str(caught.value)


# ----------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "SERPAPI_API_KEY"),
        (("--web", "nowhere.jsonl"), "nowhere.jsonl: cannot read"),
        (("--web", "WEB", "--record-web", "x.jsonl"), "--record-web"),
        (("--web", "WEB", "--temperature", "3"), "--temperature 3"),
        (("--web", "WEB", "--category", "memory"), "there are web_search_base"),
        (("--web", "WEB", "--slice", "3"), "expected START:STOP"),
        (("--web", "WEB", "--slice", "7:"), "has no entry there"),
        (("--web", "WEB", "--tasks", "/nowhere"), "BFCL_v4_web_search.json: cannot read"),
    ],
)
def test_a_user_s_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str) -> None:
    environment("bfcl")
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    given = [str(BFCL / "web.jsonl") if option == "WEB" else option for option in options]
    tasks = [] if "--tasks" in options else ["--tasks", str(BFCL)]
    done = CliRunner().invoke(app, ["agent", "bfcl", "--base-url", "http://127.0.0.1:9/v1", *tasks, *given])
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_missing_environment_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTINUUM_AGENTS_DIR", str(tmp_path))
    done = CliRunner().invoke(app, ["agent", "bfcl", "--base-url", "http://127.0.0.1:9/v1"])
    assert done.exit_code == 2
    assert "continuum-bench agent setup bfcl" in done.output
