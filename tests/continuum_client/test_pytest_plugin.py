"""A test suite that is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fake_server import FakeServer
from sdk import turns_of

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


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(vllm: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs pytest on the suite with our plugin and these options: exit status, and what it said."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    monkeypatch.setenv("OPENAI_BASE_URL", vllm.url)
    given = f"-q -p continuum_client.pytest_plugin -p no:cacheprovider -c /dev/null --rootdir {tmp_path}"

    def started(*options: str) -> tuple[int, str]:
        status = pytest.main([*given.split(), "--import-mode=importlib", *options, str(tmp_path)])
        return status, "".join(capfd.readouterr())

    return started


def test_each_test_is_a_program(vllm: FakeServer, run: Run, tmp_path: Path) -> None:
    status, said = run("--continuum-record", str(tmp_path / "out"), "--continuum-dialect", "vllm")
    assert (status, "1 failed, 3 passed" in said) == (1, True), said
    name = "test_suite.py::test_"
    assert turns_of(tmp_path / "out") == {f"{name}agent[a]": 2, f"{name}agent[b]": 2, f"{name}that_fails": 1}
    assert len(vllm.released) == 3
    assert run()[0] == 1
    assert vllm.seen[-1].program_id is None


def test_an_unknown_dialect_is_one_line(run: Run, tmp_path: Path) -> None:
    status, said = run("--continuum-record", str(tmp_path / "out"), "--continuum-dialect", "none")
    assert (status, "dialect 'none': there are" in said) == (4, True), said


def test_node_ids_as_program_ids() -> None:
    assert program_id_of("a.py::t[é x] ") == "a.py::t[_ x]"
    assert len(program_id_of("a" * 500)) == 200
