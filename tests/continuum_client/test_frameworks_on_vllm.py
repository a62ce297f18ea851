"""The examples of docs/client/frameworks.md and examples/frameworks, each in the framework's own environment, against a
real vLLM server with our plugin (modelled GPU, scripted answers): programs, tools, holds and releases arrive there.

``make frameworks`` builds the environments; the tests of those that are missing are skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from continuum_server.emulated.settings import EmulatedSettings
from continuum_traces.programs import jsonl
from live_server import Live, live
from waiting import until

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
ENVIRONMENTS = REPO / ".frameworks"
PAGE = (REPO / "docs" / "client" / "frameworks.md").read_text(encoding="utf-8")
(LANGCHAIN,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)
EXAMPLES = REPO / "examples" / "frameworks"
TOOL_TIMES = (EXAMPLES / "langchain_tool_times.py").read_text(encoding="utf-8")
LIST: dict[str, Any] = {"tool_calls": [{"name": "list_files", "arguments": {}}]}
LIST_FOLDER: dict[str, Any] = {"tool_calls": [{"name": "list_files", "arguments": {"folder": "."}}]}
ANSWER: dict[str, Any] = {"tool_calls": [{"name": "final_answer", "arguments": {"answer": "a.py and b.py"}}]}
TEXT: dict[str, Any] = {"text": "There are a.py and b.py."}

SCRIPTS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "langchain": {"langchain-1": [LIST_FOLDER, LIST_FOLDER, TEXT]},
    "openai-agents": {"agents-1": [LIST, LIST, TEXT]},
    "pydantic-ai": {"pydantic-1": [LIST, LIST, TEXT]},
    "litellm": {"litellm-1": [TEXT], "litellm-2": [TEXT]},
    "llama-index": {"llama-index-1": [LIST, LIST, TEXT]},
    "smolagents": {"smolagents-1": [LIST, ANSWER]},
    "autogen": {"autogen-1": [TEXT]},
    "instructor": {"instructor-1": [{"text": '{"x": 1}'}]},
    "crewai": {"crewai-1": [TEXT]},
}
"""The model's answers by framework and program."""
UNRECORDED = {"litellm-2"}
"""It has a connection of its own: only its tags and its release are ours."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Twenty times faster than the modelled GPU; every turn's KV is held for two minutes."""
    folder = tmp_path_factory.mktemp("server")
    programs = {name: replies for script in SCRIPTS.values() for name, replies in script.items()}
    lines = [json.dumps({"program": name, "replies": replies}) for name, replies in programs.items()]
    (folder / "replies.jsonl").write_text("\n".join(lines))
    emulated = EmulatedSettings(time_scale=20.0, replies=str(folder / "replies.jsonl"))
    options = {"ttl_s": 120.0}
    with live(folder, policy="static-ttl", policy_options=options, max_model_len=32_000, emulated=emulated) as found:
        yield found


def code_of(name: str) -> str:
    file = EXAMPLES / f"with_{name.replace('-', '_')}.py"
    return LANGCHAIN if name == "langchain" else file.read_text(encoding="utf-8")


def example(name: str, server: Live) -> str:
    """Return the framework's example, for this server."""
    return code_of(name).replace("http://localhost:8000", server.server.url).replace("my-model", server.model)


def ran(name: str, code: str, folder: Path) -> str:
    """What the code says in the framework's environment."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        pytest.skip("make frameworks was not run")
    (folder / "page.py").write_text(code)
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OTEL_SDK_DISABLED": "true", "CREWAI_DISABLE_TELEMETRY": "true"}
    ours = {"PYTHONPATH": f"{REPO}{os.pathsep}{REPO / 'traces'}", "CONTINUUM_RECORD": str(folder / "trace")}
    environ = {**os.environ, **offline, **ours}
    done = subprocess.run([str(python), "page.py"], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


HANDLER = f"""{TOOL_TIMES}
import asyncio
from continuum_client import OpenAI
from langchain_core.tools import tool
times = ToolTimes()
def fail(x: str) -> str:
    raise RuntimeError(x)
async def both():
    tools = tool("good", description="a")(lambda x: x), tool("bad", description="b")(fail)
    runs = [each.ainvoke(dict(x="1"), dict(callbacks=[times])) for each in tools]
    await asyncio.gather(*runs, return_exceptions=True)
with OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k").program("p") as p:
    asyncio.run(both())
    print(sorted(run.name for run in p._state.take().runs))
tool("outside", description="c")(lambda x: x).invoke(dict(x="3"), dict(callbacks=[times]))
print(times.started)
"""


def test_the_handler_of_langchain_measures_tools_that_run_at_once_and_that_raise(tmp_path: Path) -> None:
    assert ran("langchain", HANDLER, tmp_path) == "['bad', 'good']\n{}\n"


def test_examples_are_short() -> None:
    assert len([*EXAMPLES.glob("with_*.py")]) == len(SCRIPTS) - 1  # LangChain's is on the page
    codes = [TOOL_TIMES, *map(code_of, SCRIPTS)]
    assert all(code.count("\n") - code.count("\n\n") <= 20 for code in codes)


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_on_a_real_server(name: str, server: Live, tmp_path: Path) -> None:
    ran(name, example(name, server), tmp_path)
    recorded = {program.program_id: program for program in jsonl.read_programs(tmp_path / "trace" / "trace.jsonl")}
    for program, replies in SCRIPTS[name].items():
        called = [reply["tool_calls"][0]["name"] for reply in replies if "tool_calls" in reply]
        until(lambda program=program: any(event.reason == "last" for event in server.events(program)))  # type: ignore[misc]
        events = server.events(program)
        others: list[str | None] = [None] * (len(replies) - len(called))
        assert [event.tool for event in events if event.event == "finish"] == called + others
        ends = [event.reason for event in events if event.event == "unpin"]
        assert ends == ["hit"] * (len(replies) - 1) + ["last"], "every hold is hit; the release ends the last one"
        if program not in UNRECORDED:
            calls = [call for turn in recorded[program].turns for call in turn.tool_calls]
            assert [call.name for call in calls] == called
            assert all(call.duration_s is not None for call in calls if call.name != "final_answer")  # not a tool
