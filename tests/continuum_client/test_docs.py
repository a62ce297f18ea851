"""The Python in docs/client and in the guides runs as written, against a local server in place of the one it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_server import FakeServer

from continuum_client.dialects import DIALECTS
from continuum_client.hook import hook

DOCS = Path(__file__).resolve().parents[2] / "docs" / "client"


NAMED = "http://localhost:8000/v1"


def blocks(page: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
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
    return serve("vllm")


def test_quickstart(vllm: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("quickstart.md", vllm)
    assert vllm.ids == ["task-7"] * 3 + ["task-8"] + ["task-9"] * 2 + ["task-10"]
    assert capsys.readouterr().out == "fine\nfine"
    assert (tmp_path / "runs" / "agent" / "trace.jsonl").read_text().count('"kind":"turn"') == 1


def test_the_sites_quickstart(vllm: FakeServer) -> None:
    run("../quickstart.md", vllm)
    assert vllm.ids == ["task-1"] * 2


def test_an_agent_with_the_openai_client(vllm: FakeServer, tmp_path: Path) -> None:
    """It calls ``list_files`` as the server asks, and answers; every turn is its program's."""
    run("../how-to/openai-agent.md", vllm)
    assert vllm.ids == ["files-1"] * len(vllm.turns)
    assert len(vllm.turns) > 1
    assert (tmp_path / "runs" / "agent" / "trace.jsonl").read_text().count('"kind":"turn"') == len(vllm.turns)


def test_instrument(vllm: FakeServer, tmp_path: Path) -> None:
    run("instrument.md", vllm)
    hook.remove()
    assert vllm.ids == ["task-11"]
    assert (tmp_path / "runs" / "agent" / "trace.jsonl").read_text().count('"name":"pytest"') == 1


@pytest.mark.parametrize("page", ["programs.md", "dialects.md"])
def test_snippets(vllm: FakeServer, page: str) -> None:
    client = run(page, vllm)["client"]
    with client.program("p"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert vllm.ids[-1] == "p"
    assert vllm.bodies[-1].get("metadata") == ({"run": "p"} if page == "dialects.md" else None)  # a dialect of one's own


def test_a_streamed_answer_of_a_web_server(vllm: FakeServer) -> None:
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    app = run("streaming.md", vllm)["app"]
    with testclient.TestClient(app) as browser:
        assert [browser.get("/ask", params={"question": "hi"}).text for _ in range(2)] == ["fine", "fine"]
    assert len(set(vllm.ids)) == 2
    assert len(vllm.released) == 2


def test_the_table_has_every_dialect() -> None:
    rows = re.findall(r"^\| `(\w+)`", (DOCS / "dialects.md").read_text(), flags=re.M)
    assert sorted(rows) == sorted([*DIALECTS, "auto"])


def test_pages_are_linked() -> None:
    links = set(re.findall(r"\]\((\w[\w-]*\.md)\)", (DOCS / "README.md").read_text()))
    assert links | {"README.md"} == {page.name for page in DOCS.glob("*.md")}
