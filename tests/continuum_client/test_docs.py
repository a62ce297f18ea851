"""The Python in docs/client and in the guides runs as written, against a local server in place of the one it names."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from client_fakes import FakeServer, Planned

from continuum_client import AsyncOpenAI, OpenAI, inherit_threads
from continuum_client.dialects import DIALECTS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "client"


class State(TypedDict):
    """Of the graph in ``test_langgraph``."""

    task: str


HELLO: Any = [{"role": "user", "content": "Hello"}]
NAMED = "http://localhost:8000/v1"
FRAMEWORKS = {
    "litellm": "litellm",
    "langchain": "langchain_openai",
    "openai-agents": "agents",
    "pydantic-ai": "pydantic_ai",
}


def blocks(page: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S))


def run(page: str, server: FakeServer) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    code = blocks(page).replace(NAMED, server.url)
    assert code.strip()
    exec(compile(code, page, "exec"), names)
    return names


def ids(server: FakeServer) -> list[str | None]:
    return [turn.program_id for turn in server.turns]


@pytest.fixture
def vllm(serve: Callable[..., FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    monkeypatch.chdir(tmp_path)
    return serve("vllm")


def test_quickstart(vllm: FakeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("quickstart.md", vllm)
    assert ids(vllm) == ["task-7"] * 3 + ["task-8"] + ["task-9"] * 2 + ["task-10"]
    assert capsys.readouterr().out == "fine\nfine"
    assert (tmp_path / "runs" / "agent" / "trace.jsonl").read_text().count('"kind":"turn"') == 1


def test_the_sites_quickstart(vllm: FakeServer) -> None:
    run("../quickstart.md", vllm)
    assert ids(vllm) == ["task-1"] * 2


def test_an_agent_with_the_openai_client(vllm: FakeServer, tmp_path: Path) -> None:
    """It calls ``list_files`` as the server asks, and answers; every turn is its program's."""
    run("../how-to/openai-agent.md", vllm)
    assert ids(vllm) == ["files-1"] * len(vllm.turns)
    assert len(vllm.turns) > 1
    assert (tmp_path / "runs" / "agent" / "trace.jsonl").read_text().count('"kind":"turn"') == len(vllm.turns)


@pytest.mark.parametrize("page", ["programs.md", "dialects.md"])
def test_snippets(vllm: FakeServer, page: str) -> None:
    client = run(page, vllm)["client"]
    with client.program("p"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert ids(vllm) == ["p"]


def test_the_table_has_every_dialect() -> None:
    rows = re.findall(r"^\| `(\w+)`", (DOCS / "dialects.md").read_text(), flags=re.M)
    assert sorted(rows) == sorted([*DIALECTS, "auto"])


def test_pages_are_linked() -> None:
    links = set(re.findall(r"\]\((\w[\w-]*\.md)\)", (DOCS / "README.md").read_text()))
    assert links | {"README.md"} == {page.name for page in DOCS.glob("*.md")}


def framework(name: str) -> None:
    module = FRAMEWORKS[name]
    found = importlib.util.find_spec(module)
    if found is None or "site-packages" not in str(found.origin):
        pytest.skip(f"{name} is not installed here")


def xargs(server: FakeServer) -> list[dict[str, Any]]:
    return [turn.body["vllm_xargs"] for turn in server.turns]


def test_litellm(vllm: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    framework("litellm")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    run("litellm.md", vllm)
    assert ids(vllm) == ["litellm-1", "litellm-1", "litellm-2"]
    assert [tags["program_id"] for tags in xargs(vllm)] == ids(vllm)
    assert [tags.get("last_func_call") for tags in xargs(vllm)] == [None, "pytest", "grep"]


def test_litellm_retries_and_async(vllm: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page says of ``num_retries`` and ``acompletion``."""
    framework("litellm")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = importlib.import_module("litellm")
    client = OpenAI(base_url=vllm.url, dialect="vllm", max_retries=0)
    with client.program("retried") as p:
        with p.tool("pytest"):
            pass
        vllm.plan.append(Planned(500))
        litellm.completion(model="openai/m", messages=HELLO, client=client, num_retries=2)
    sent = [seen.body["vllm_xargs"] for seen in vllm.seen if "chat" in seen.path]
    assert len(sent) == 2
    assert sent[0] == sent[1]

    async def run() -> None:
        other = AsyncOpenAI(base_url=vllm.url, dialect="vllm")
        async with other.program("async"):
            await litellm.acompletion(model="openai/m", messages=HELLO, client=other)

    asyncio.run(run())
    assert ids(vllm)[-1] == "async"


def test_langgraph(vllm: FakeServer) -> None:
    """What the page says of graphs: nodes run by threads of its own are the caller's program's."""
    framework("langchain")
    if importlib.util.find_spec("langgraph") is None:
        pytest.skip("langgraph is not installed here")
    graph_module = importlib.import_module("langgraph.graph")
    client = OpenAI(base_url=vllm.url, dialect="vllm")

    def node(state: State) -> dict[str, str]:
        client.chat.completions.create(model="m", messages=HELLO)
        return {}

    inherit_threads(False)  # by its own doing, not by ours
    try:
        builder = graph_module.StateGraph(State)
        for name in ("left", "right"):
            builder.add_node(name, node)
            builder.add_edge(graph_module.START, name)
            builder.add_edge(name, graph_module.END)
        with client.program("graph"):
            builder.compile().invoke({"task": "hi"})
    finally:
        inherit_threads(True)
    assert ids(vllm) == ["graph", "graph"]


def test_langchain(vllm: FakeServer) -> None:
    framework("langchain")
    run("langchain.md", vllm)
    assert ids(vllm) == ["langchain-1", "langchain-1", "langchain-2", "langchain-3"]
    assert [tags["program_id"] for tags in xargs(vllm)] == ids(vllm)
    assert xargs(vllm)[1]["last_func_call"] == "pytest"


def test_openai_agents(vllm: FakeServer) -> None:
    framework("openai-agents")
    run("openai-agents.md", vllm)
    assert ids(vllm) == ["agents-1"] * 3 + ["agents-2"]
    assert [tags.get("last_func_call") for tags in xargs(vllm)] == [None, "list_files", "list_files", None]


def test_openai_agents_default_client_and_responses(vllm: FakeServer) -> None:
    """What the page says of ``set_default_openai_client`` and of the Responses API."""
    framework("openai-agents")
    agents = importlib.import_module("agents")
    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=vllm.url, dialect="vllm")
    agents.set_default_openai_client(client, use_for_tracing=False)

    async def run() -> None:
        async with client.program("default"):
            await agents.Runner.run(agents.Agent(name="worker", model="m"), "Hello")

    asyncio.run(run())
    assert [(turn.path, turn.program_id) for turn in vllm.turns] == [("/v1/responses", "default")]


def test_pydantic_ai(vllm: FakeServer) -> None:
    framework("pydantic-ai")
    run("pydantic-ai.md", vllm)
    assert ids(vllm) == ["pydantic-1"] * 3 + ["pydantic-2"]
    assert [tags.get("last_func_call") for tags in xargs(vllm)] == [None, "list_files", "list_files", None]
