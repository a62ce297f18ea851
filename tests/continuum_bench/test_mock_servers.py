"""The mock servers of guidellm and of aiperf, played by our load generator, asked by our client and behind our proxy.

``make endpoints NAMES="guidellm agentx-harness"`` installs them; aiperf's is in agentx-harness' source distribution.
What they answer is made up, and they say how many tokens it has. Each found a fault: guidellm's counts an answer's
tokens in ``index``; aiperf's has no ``status`` in a response, and can be without a list of models.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench_cli import bench, refused, succeeded
from continuum_server.bound_process import BoundProcess
from continuum_server.ports import hold_port
from continuum_traces.records import read_turns
from endpoints import environment
from small_replays import analyzed, trace_of, turns_of
from source_distributions import source_of
from waiting import until

from continuum_client import OpenAI
from continuum_client.proxy import Proxy
from continuum_client.proxy_command import proxy_state

pytestmark = pytest.mark.slow

FAST = {"guidellm": ("--ttft-ms", "0", "--itl-ms", "0"), "aiperf": ("--fast",)}
MOCKS = tuple(FAST)
MODEL = "m"
ASK = [{"role": "user", "content": "how are you today and tomorrow " * 4}]
GREP: Any = {"type": "object", "properties": {"pattern": {"type": "string"}}}
VERSION = {"anthropic-version": "2023-06-01"}
Start = Callable[..., Any]


@pytest.fixture(scope="session")
def aiperf_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = environment("agentx-harness") / "python"
    return source_of(python, "agentx-harness", tmp_path_factory.mktemp("agentx")) / "tests"


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    """Starts a mock server with options, for a ``with`` block that gets its URL."""

    @contextmanager
    def start(name: str, *options: str, model: str = MODEL) -> Iterator[str]:
        if name == "aiperf":
            source = request.getfixturevalue("aiperf_source")
            command: list[Any] = [environment("agentx-harness") / "python", "-m", "aiperf_mock_server"]
            command += ["--default-model", model, "--no-tokenizer"]
        else:
            source = tmp_path
            command = [environment(name) / name, "mock-server", "--model", model]
        log = tmp_path / f"{name}.log"
        with hold_port("127.0.0.1", 0) as held, log.open("ab") as file:
            port = str(held.getsockname()[1])
            environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(source)}
            words = [*map(str, command), "--host", "127.0.0.1", "--port", port, *options]
            process = BoundProcess(words, environ, file)
            try:
                _wait(process, log, f"http://127.0.0.1:{port}/health")
                yield f"http://127.0.0.1:{port}/v1"
            finally:
                process.kill()

    return start


def _wait(process: BoundProcess, log: Path, url: str) -> None:
    def is_up() -> bool:
        assert process.ended is None, log.read_text()[-3000:]
        with suppress(httpx.TransportError):
            return httpx.get(url, timeout=60.0, trust_env=False).status_code == 200
        return False

    until(is_up, 240.0, log)


def _play(url: str, folder: Path, *options: object) -> tuple[object, ...]:
    words = ["--base-url", url, "--concurrency", 3, "--no-report", "--out", folder / "out", *options]
    return "replay", trace_of(folder), *words


# -------------------------------------------------------------------------------------------- the load generator


@pytest.mark.parametrize(
    ("name", "options"),
    [("guidellm", ()), ("guidellm", ("--token-times",)), ("aiperf", ()), ("aiperf", ("--prompts", "tokens"))],
)
def test_a_replay_gets_every_token_that_it_asks_for(
    name: str, options: tuple[str, ...], started: Start, tmp_path: Path
) -> None:
    """aiperf's counts with token ids are ours to the token; with text it counts words."""
    with started(name, *FAST[name]) as url:
        command, *words = _play(url, tmp_path, *options)
        succeeded(str(command), *words)
    turns = turns_of(tmp_path / "out")
    assert [turn.error for turn in turns if turn.error] == []
    assert sorted(turn.output_tokens for turn in turns) == sorted([20, 10, 5] * 3)
    prompts = sorted(turn.prompt_tokens for turn in turns)
    if options == ("--prompts", "tokens"):
        assert prompts == sorted([400, 520, 574] * 3)
    assert all(prompts)


def test_errors_at_random_cost_tries_and_no_programs(started: Start, tmp_path: Path) -> None:
    with started("aiperf", *FAST["aiperf"], "--error-rate", "30", "--random-seed", "3") as url:
        command, *words = _play(url, tmp_path, "--retries", 90)
        succeeded(str(command), *words)
    found = analyzed(tmp_path / "out")
    assert (found["programs"], found["programs_failed"]) == (3, 0)
    assert {*found["errors_by_kind"]} == {"http-500"}


def test_a_server_that_fails_for_good_fails_what_is_left(started: Start, tmp_path: Path) -> None:
    with started("guidellm", *FAST["guidellm"], "--fail-after-requests", "4") as url:
        command, *words = _play(url, tmp_path, "--retries", 1)
        done = bench(str(command), *words)
    assert done.exit_code == 1
    turns = turns_of(tmp_path / "out")
    assert [turn.output_tokens for turn in turns if not turn.error] == [20, 20, 20, 10]
    assert all("http-500" in turn.error for turn in turns if turn.error)
    assert analyzed(tmp_path / "out")["programs_failed"] == 3


def test_a_server_without_a_list_of_models_needs_a_model(started: Start, tmp_path: Path) -> None:
    with started("aiperf", *FAST["aiperf"], "--disable-models-endpoint") as url:
        command, *words = _play(url, tmp_path)
        assert "If the server has no list of models, name the model" in refused(str(command), *words)
        succeeded(str(command), *words, "--served-model", MODEL)


# -------------------------------------------------------------------------------------- the client and the proxy


def _asked(client: OpenAI) -> dict[str, Any]:
    """Ask in every way and return what each answer counts; streams say it as asked."""
    tool: Any = {"type": "function", "function": {"name": "grep", "parameters": GREP}}
    chat: Any = {"model": MODEL, "messages": ASK, "max_tokens": 8}
    text: Any = {"model": MODEL, "prompt": ASK[0]["content"], "max_tokens": 8}
    streams: Any = {"stream": True, "stream_options": {"include_usage": True}}
    usages = {
        "chat": client.chat.completions.create(**chat).usage,
        "a call": client.chat.completions.create(**chat, tools=[tool], tool_choice="required").usage,
        "chat, streamed": [*client.chat.completions.create(**chat, **streams)][-1].usage,
        "text": client.completions.create(**text).usage,
        "text, streamed": [*client.completions.create(**text, **streams)][-1].usage,
    }
    counts = {name: (usage.prompt_tokens, usage.completion_tokens) for name, usage in usages.items() if usage}
    said = client.responses.create(model=MODEL, input=ASK[0]["content"], max_output_tokens=8).to_dict()["usage"]
    names = ("input_tokens", "output_tokens") if said.get("input_tokens") else ("prompt_tokens", "completion_tokens")
    counts["response"] = tuple(said[name] for name in names)  # type: ignore[assignment, index]
    return counts


@pytest.mark.parametrize("name", MOCKS)
def test_the_client_records_what_every_answer_counts(name: str, started: Start, tmp_path: Path) -> None:
    with started(name, *FAST[name]) as url:
        client = OpenAI(base_url=url, api_key="x", dialect="headers", record=tmp_path / "record", max_retries=0)
        with client.program("p"):
            counts = _asked(client)
    turns = [*read_turns(tmp_path / "record")]
    assert [turn.error for turn in turns] == [None] * 6
    assert [(turn.prompt_tokens, turn.output_tokens) for turn in turns] == [*counts.values()]


@pytest.mark.parametrize("split", [(), ("--anthropic-split-usage",)])
def test_the_proxy_records_what_messages_count(split: tuple[str, ...], started: Start, tmp_path: Path) -> None:
    """Anthropic's API, whose streams count in one event or in two: plain, with thoughts, with a call."""
    tools = {"tools": [{"name": "grep", "input_schema": GREP}], "tool_choice": {"type": "any"}}
    bodies: list[dict[str, Any]] = [{}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, tools]
    said: list[tuple[int, int]] = []

    async def ask(url: str) -> None:
        state = proxy_state("headers", str(tmp_path / "record"), "digest")
        async with Proxy(url, state, "p") as proxy, httpx.AsyncClient(base_url=proxy.address, timeout=60.0) as http:
            for body in bodies:
                whole = {"model": MODEL, "max_tokens": 40, "messages": ASK, **body}
                usage = (await http.post("/v1/messages", json=whole, headers=VERSION)).json()["usage"]
                said.extend([(usage["input_tokens"], usage["output_tokens"])] * 2)
                await http.post("/v1/messages", json={**whole, "stream": True}, headers=VERSION)

    with started("aiperf", *FAST["aiperf"], *split) as url:
        asyncio.run(ask(url))
    turns = [*read_turns(tmp_path / "record")]
    assert [(turn.error, turn.prompt_tokens, turn.output_tokens) for turn in turns] == [(None, *each) for each in said]
    assert [turn.tools for turn in turns] == [()] * 4 + [("grep",)] * 2
