"""The same agent in every dialect against a real vLLM with our plugin: a tiny random model on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from continuum_client import OpenAI
from continuum_client.dialects import DIALECTS

pytestmark = pytest.mark.slow
vllm = pytest.importorskip("vllm")
jsonl = pytest.importorskip("continuum_traces.jsonl")
live_server = pytest.importorskip("live_server")

TASK = "You are a careful agent. " * 40 + "List what is in the folder, then stop."


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """vLLM with our scheduler, which holds every turn's KV for a minute."""
    options = {"ttl_s": 60.0}
    folder = tmp_path_factory.mktemp("plugin")
    with live_server.live(
        folder, engine="cpu", policy="static-ttl", policy_options=options, max_model_len=8192
    ) as found:
        yield found


def agent(client: OpenAI, model: str, program_id: str) -> list[str]:
    """Four turns, the second and the last streamed, tools between them."""
    messages: list[Any] = [{"role": "system", "content": TASK}, {"role": "user", "content": "Begin."}]
    ask: dict[str, Any] = {"model": model, "max_tokens": 12, "temperature": 0.0}
    said = []
    with client.program(program_id, output_tokens=12) as p:
        for turn in range(4):
            if turn == 3:
                p.last_step()
            if turn % 2:
                stream = client.chat.completions.create(messages=messages, stream=True, **ask)
                text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            else:
                p.predict("ls", 0.1)
                text = client.chat.completions.create(messages=messages, **ask).choices[0].message.content or ""
            said.append(text)
            with p.tool("ls", expect_s=0.1):
                output = "a.py b.py " * 20
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": output}]
    return said


@pytest.fixture(scope="module")
def untagged(plugin: Any) -> list[str]:
    """The agent's answers."""
    return agent(OpenAI(base_url=plugin.client.base_url, api_key="none"), plugin.model, "plain")


@pytest.mark.parametrize("dialect", [*DIALECTS, "auto"])
def test_every_dialect(plugin: Any, untagged: list[str], tmp_path: Path, dialect: str) -> None:
    client = OpenAI(base_url=plugin.client.base_url, dialect=dialect, record=tmp_path, max_retries=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = agent(client, plugin.model, f"in {dialect}")
    assert said == untagged  # tags never change the answers
    (program,) = jsonl.read_programs(tmp_path / "trace.jsonl")
    assert [(turn.output_tokens, turn.ttft_s is not None) for turn in program.turns] == [(12, False), (12, True)] * 2
    assert all((turn.cached_tokens or 0) > 200 for turn in program.turns[1:])  # the prefix was found
    assert [call.name for turn in program.turns for call in turn.tool_calls] == ["ls"] * 4


def test_other_endpoints(plugin: Any) -> None:
    client, model = OpenAI(base_url=plugin.client.base_url, dialect="vllm", max_retries=0), plugin.model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with client.program("p") as p:
            p.predict("ls", 1, p90=2)
            client.completions.create(model=model, prompt="hello", max_tokens=4)
            client.responses.create(model=model, input="hello", max_output_tokens=8)


def test_vllm_refuses_what_is_not_flat(plugin: Any) -> None:
    """What the strict fake refuses, the server it stands for refuses too: an object, a null, a list in a list."""
    ask: Any = {"model": plugin.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for wrong in ({"a": {"b": 1}}, {"a": None}, {"a": [[1]]}):
        with pytest.raises(openai.BadRequestError):
            plugin.client.chat.completions.create(**ask, extra_body={"vllm_xargs": wrong})


@pytest.mark.parametrize("dialect", ["vllm", "auto", "headers"])
def test_the_plugin_holds_and_lets_go(plugin: Any, dialect: str) -> None:
    """Headers alone say enough for a hold and for the last step; they release nothing."""
    client = OpenAI(base_url=plugin.client.base_url, dialect=dialect)
    ask: Any = {"model": plugin.model, "max_tokens": 4}
    ask["messages"] = [{"role": "user", "content": TASK}]
    with client.program(f"closed/{dialect}"):
        client.chat.completions.create(**ask)
        assert f"closed/{dialect}" in plugin.pins()
    assert (f"closed/{dialect}" in plugin.pins()) == (dialect == "headers")
    with client.program(f"last {dialect}") as p:
        client.chat.completions.create(**ask)
        assert f"last {dialect}" in plugin.pins()
        p.last_step()
        client.chat.completions.create(**ask)
        assert f"last {dialect}" not in plugin.pins()
