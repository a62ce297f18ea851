"""The Python in docs/client and in examples runs as written, against a local server in place of the one it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer
from sdk import turns_of

from continuum_client import uninstrument
from continuum_client.dialects import DIALECTS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "client"


NAMED = "http://localhost:8000/v1"


def blocks(page: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    if page.endswith(".py"):
        return text
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S))


def run(page: str, server: FakeServer) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    code = blocks(page).replace(NAMED, server.url)
    assert code.strip()
    exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture
def vllm(serve: Callable[..., FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    monkeypatch.chdir(tmp_path)
    server = serve("vllm")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return server


@pytest.mark.parametrize(
    ("page", "programs", "recorded"),
    [
        ("README.md", ["task-7"] * 3, 3),
        ("../quickstart.md", ["task-1"] * 2, None),
        ("../../examples/agent.py", ["files-1"] * 3, 3),
        ("instrument.md", ["task-11"], 1),
        ("../../examples/predict.py", None, None),
        ("../../examples/dialect.py", None, None),
    ],
)
def test_pages(vllm: FakeServer, tmp_path: Path, page: str, programs: list[str] | None, recorded: int | None) -> None:
    """Which programs the page's code calls, and how many turns it records. A client that it only makes is tried."""
    client = run(page, vllm).get("client")
    if programs is None:
        with client.program("p"):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert vllm.bodies[-1].get("metadata") == ({"run": "p"} if page.endswith("dialect.py") else None)
    assert vllm.ids[-1:] == ["p"] if programs is None else vllm.ids == programs
    if recorded is not None:
        assert (tmp_path / "runs" / "agent" / "trace.jsonl").read_text().count('"kind":"turn"') == recorded


def test_a_streamed_answer_of_a_web_server(vllm: FakeServer) -> None:
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    app = run("../../examples/web_server.py", vllm)["app"]
    with testclient.TestClient(app) as browser:
        assert [browser.get("/ask", params={"question": "hi"}).text for _ in range(2)] == ["fine", "fine"]
    assert len(set(vllm.ids)) == 2
    assert len(vllm.released) == 2


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

def test_without_calls():
    pass
"""


def test_a_test_suite_is_a_trace(vllm: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(blocks("../../examples/suite/conftest.py"))
    (tmp_path / "test_süite.py").write_text(SUITE)
    assert pytest.main(["-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "."]) == 0
    uninstrument()
    ids = [f"test_s_ite.py::test_agent[{letter}]" for letter in "ab"]
    assert vllm.ids == [ids[0]] * 2 + [ids[1]] * 2
    assert turns_of(tmp_path / "runs" / "tests") == dict.fromkeys(ids, 2)


def test_the_table_has_every_dialect() -> None:
    table, _, _ = (DOCS / "dialects.md").read_text().partition("\n## ")
    rows = re.findall(r"^\| `(\w+)`", table, flags=re.M)
    assert sorted(rows) == sorted([*DIALECTS, "auto"])
