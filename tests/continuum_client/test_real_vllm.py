"""The same agent in every dialect against a real vLLM, stock and with our plugin: a tiny random model on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from waiting import until

from continuum_client import OpenAI
from continuum_client.dialects import DIALECTS

pytestmark = pytest.mark.slow
vllm = pytest.importorskip("vllm")
jsonl = pytest.importorskip("continuum_traces.programs.jsonl")
local_model = pytest.importorskip("continuum_server.local_model")
ports = pytest.importorskip("continuum_server.ports")
live_server = pytest.importorskip("live_server")

MODEL = "tiny"
TASK = "You are a careful agent. " * 40 + "List what is in the folder, then stop."


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM as it comes: no plugin, no middleware. Gives its base URL."""
    held = ports.hold_port("127.0.0.1", 0)  # until vLLM listens there
    port = held.getsockname()[1]
    log = tmp_path_factory.mktemp("stock") / "log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--load-format", "dummy", "--enforce-eager"]
    command += ["--model", str(local_model.ensure_model(local_model.TINY)), "--served-model-name", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "8192", "--enable-prompt-tokens-details"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    with held, log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        try:
            until(lambda: process.poll() is not None or ports.answers(f"http://127.0.0.1:{port}/health"))
            assert process.poll() is None, log.read_text()[-3000:]
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
def untagged(stock: str) -> list[str]:
    """The agent's answers."""
    return agent(OpenAI(base_url=stock, api_key="none", dialect="headers"), MODEL, "plain")


@pytest.mark.parametrize("dialect", [*DIALECTS, "auto"])
def test_every_dialect(stock: str, untagged: list[str], tmp_path: Path, dialect: str) -> None:
    client = OpenAI(base_url=stock, dialect=dialect, record=tmp_path, max_retries=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = agent(client, MODEL, f"in {dialect}")
    assert said == untagged  # tags never change the answers
    (program,) = jsonl.read_programs(tmp_path / "trace.jsonl")
    assert [(turn.output_tokens, turn.ttft_s is not None) for turn in program.turns] == [(12, False), (12, True)] * 2
    assert all((turn.cached_tokens or 0) > 200 for turn in program.turns[1:])  # the prefix was found
    assert [call.name for turn in program.turns for call in turn.tool_calls] == ["ls"] * 4


def test_other_endpoints(stock: str) -> None:
    client = OpenAI(base_url=stock, dialect="vllm", max_retries=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with client.program("p") as p:
            p.predict("ls", 1, p90=2)
            client.completions.create(model=MODEL, prompt="hello", max_tokens=4)
            client.responses.create(model=MODEL, input="hello", max_output_tokens=8)


def test_vllm_refuses_what_is_not_flat(stock: str) -> None:
    """What the strict fake refuses, the server it stands for refuses too: an object, a null, a list in a list."""
    plain = openai.OpenAI(base_url=stock, max_retries=0)
    ask: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    for wrong in ({"a": {"b": 1}}, {"a": None}, {"a": [[1]]}):
        with pytest.raises(openai.BadRequestError):
            plain.chat.completions.create(**ask, extra_body={"vllm_xargs": wrong})


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


STRANGER = """
import sys
import openai
url, model, task = sys.argv[1:]
client = openai.OpenAI(base_url=url, api_key="EMPTY")
messages = [{"role": "system", "content": task}, {"role": "user", "content": "Begin."}]
for turn in range(3):
    reply = client.chat.completions.create(model=model, messages=messages, max_tokens=12).choices[0].message
    messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": "a.py b.py " * 20}]
"""


def test_an_agent_that_does_not_know_us(plugin: Any, tmp_path: Path) -> None:
    """``continuum-instrument``: its turns are one program, find its KV cache, and are released at the end."""
    (tmp_path / "agent.py").write_text(STRANGER)
    model = plugin.model
    instrument = [sys.executable, "-m", "continuum_client.instrument_command", "--dialect", "vllm", "--record", "runs"]
    agent = [sys.executable, "agent.py", f"{plugin.server.url}/v1", model, TASK]
    subprocess.run([*instrument, *agent], cwd=tmp_path, check=True, timeout=300)
    (program,) = jsonl.read_programs(tmp_path / "runs" / "trace.jsonl")
    assert len(program.turns) == 3
    assert all((turn.cached_tokens or 0) > 200 for turn in program.turns[1:])
    assert program.program_id not in plugin.pins()
