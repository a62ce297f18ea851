"""A test suite that is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from continuum_traces.importers.registry import read_any
from continuum_traces.jsonl import validate
from fake_server import FakeServer

from continuum_client.pytest_plugin import program_id_of

SUITE = """
import openai, pytest

def ask():
    openai.OpenAI().chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])

@pytest.fixture
def primed():
    ask()

@pytest.mark.parametrize("letter", ["a", "b"])
def test_agent(primed, letter):
    ask()

def test_that_fails():
    ask()
    assert False

def test_without_calls():
    pass
"""


def run(folder: Path, server: FakeServer, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_suite.py").write_text(SUITE)
    line = [sys.executable, "-m", "pytest", "-q", "-p", "continuum_client.pytest_plugin", *options, "test_suite.py"]
    environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "none", "PYTEST_ADDOPTS": ""}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_each_test_is_a_program(vllm: FakeServer, tmp_path: Path) -> None:
    done = run(tmp_path, vllm, "--continuum-record", "out", "--continuum-dialect", "vllm")
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    trace = tmp_path / "out" / "trace.jsonl"
    assert list(validate(trace)) == []
    turns = {program.program_id: len(program.turns) for program in read_any(trace, None)}
    name = "test_suite.py::test_"
    assert turns == {f"{name}agent[a]": 2, f"{name}agent[b]": 2, f"{name}that_fails": 1}
    assert len(vllm.released) == 3
    plain = run(tmp_path, vllm)
    assert "1 failed, 3 passed" in plain.stdout
    assert vllm.seen[-1].program_id is None


def test_an_unknown_dialect_is_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plugin = f"-p continuum_client.pytest_plugin --continuum-record {tmp_path} --continuum-dialect none"
    assert pytest.main(f"{plugin} -c /dev/null --rootdir {tmp_path} {tmp_path}".split()) == 4
    assert "dialect 'none': there are" in capfd.readouterr().err


def test_node_ids_as_program_ids() -> None:
    assert program_id_of("a.py::t[é x] ") == "a.py::t[_ x]"
    assert len(program_id_of("a" * 500)) == 200
