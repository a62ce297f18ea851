"""What the client does inside other frameworks, beyond docs/client/frameworks.md (that: test_frameworks_on_vllm.py).

Each framework needs an environment of its own. ``make frameworks`` builds them in ``.frameworks``; without them, the
tests of the frameworks that are not installed are skipped.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from fake_server import FakeServer, Planned

from continuum_client import AsyncOpenAI, OpenAI, inherit_threads, uninstrument
from continuum_client.hook import hook

REPO = Path(__file__).resolve().parents[2]
ENVIRONMENTS = REPO / ".frameworks"
HELLO: Any = [{"role": "user", "content": "Hello"}]


MODULES = {"langchain": "langchain_openai", "openai-agents": "agents", "litellm": "litellm"}


class State(TypedDict):
    """Of the graph in ``test_langgraph``."""

    task: str


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in ("LITELLM_LOCAL_MODEL_COST_MAP", "OTEL_SDK_DISABLED"):
        monkeypatch.setenv(name, "True")
    yield
    uninstrument()
    hook.remove()


def needs(name: str) -> None:
    found = importlib.util.find_spec(MODULES[name])
    if found is None or "site-packages" not in f"{found.origin} {found.submodule_search_locations}":
        pytest.skip(f"{name} runs in an environment of its own")


def tools(server: FakeServer) -> tuple[str | None, ...]:
    return tuple(turn.body["vllm_xargs"].get("last_func_call") for turn in server.turns)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_in_its_own_environment(name: str) -> None:
    """What the tests below check of a framework; test_frameworks_on_vllm.py runs every example."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        pytest.skip("make frameworks was not run")
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-m", "not slow"]
    command += ["-k", name.replace("-", "_")]
    variables = {**os.environ, "PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'traces'}"}
    done = subprocess.run(command, cwd=REPO, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout


# ------------------------------------------------------------------------------------------- LangChain


def test_langchain_graph(client: OpenAI, vllm: FakeServer) -> None:
    """LangGraph's nodes that run in threads of its own are the caller's program's."""
    needs("langchain")
    graph_module = importlib.import_module("langgraph.graph")

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
    assert vllm.ids == ["graph", "graph"]


# --------------------------------------------------------------------------------------------- LiteLLM


def test_litellm_retries_and_async(vllm: FakeServer) -> None:
    needs("litellm")
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
    assert vllm.ids[-1] == "async"


# ------------------------------------------------------------------------------------------ the others


def test_openai_agents_default_client_and_responses(vllm: FakeServer) -> None:
    needs("openai-agents")
    agents = importlib.import_module("agents")
    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=vllm.url, dialect="vllm")
    agents.set_default_openai_client(client, use_for_tracing=False)

    async def run() -> None:
        async with client.program("default"):
            await agents.Runner.run(agents.Agent(name="worker", model="m"), "Hello")

    asyncio.run(run())
    assert [(turn.path, turn.program_id) for turn in vllm.turns] == [("/v1/responses", "default")]
