"""What clients receive over HTTP: scripted answers, structured output and metrics. The state has no client's text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from continuum_server.emulated.settings import EmulatedSettings
from live_server import Live, live
from prometheus_client.parser import text_string_to_metric_families

pytestmark = pytest.mark.slow

ALERTS = Path(__file__).parents[3] / "docs" / "server" / "alerts.yml"
KEY = "secret-key"
LONG = "first " * 6000
"""A reply that takes two seconds: a client that leaves after its first token leaves long before its end."""
SCRIPT = [
    {
        "program": "strict",
        "replies": [{"text": "Look:", "tool_calls": [{"name": "bash", "arguments": {"wrong": "ls"}}]}],
    },
    {"program": "again", "replies": [{"text": LONG}, {"text": "second"}]},
    {"program": "*", "replies": [{"tool_calls": [{"name": "bash", "arguments": {"c": "ls"}}]}, {"text": "done"}]},
]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with a key and scripts, and asynchronous scheduling switched off."""
    folder = tmp_path_factory.mktemp("agents")
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
    emulated = EmulatedSettings(time_scale=20.0, replies=str(script), async_scheduling=False)
    config = {"kv_blocks": 2000, "max_model_len": 16_000, "vllm_arguments": ("--api-key", KEY)}
    with live(folder, emulated=emulated, policy="static-ttl", policy_options={"ttl_s": 30.0}, **config) as found:
        yield found


def client_of(server: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.server.url}/v1", api_key=KEY, max_retries=0)


def test_an_aborted_reply_is_given_again(agents: Live) -> None:
    headers = {"X-Session-ID": "again"}
    stream = chat(agents, "?", extra_headers=headers, stream=True)
    next(iter(stream))
    stream.close()
    answers = [chat(agents, "?", extra_headers=headers).choices[0].message.content for _ in range(2)]
    assert answers == [LONG, "second"]


def test_the_script_of_all_programs_answers_agents_that_send_no_ids(agents: Live) -> None:
    """Two conversations at once: each gets the reply that follows the answers in its own prompt."""
    tools: Any = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    first = [chat(agents, question, tools=tools).choices[0].message for question in ("one?", "two?")]
    assert [message.tool_calls[0].function.name for message in first] == ["bash", "bash"]
    for question, message in zip(("one?", "two?"), first, strict=True):
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a.py"}
        done = chat(agents, question, message.model_dump(exclude_none=True), result, tools=tools)
        assert done.choices[0].message.content == "done"


def test_state_holds_no_prompt_text(agents: Live) -> None:
    chat(agents, "xyzzy-prompt", max_tokens=3, extra_body={"job_id": "s"})
    assert httpx.get(f"{agents.server.url}/continuum/state").status_code == 401
    text = json.dumps(agents.state(KEY))
    assert not [word for word in ("xyzzy", KEY) if word in text]


def test_the_page_that_prometheus_reads_has_what_the_alerts_ask_for(agents: Live) -> None:
    page = httpx.get(f"{agents.server.url}/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
    served = {sample.name for family in text_string_to_metric_families(page.text) for sample in family.samples}
    assert set(re.findall(r"(?:continuum|vllm):\w+", ALERTS.read_text())) <= served


def test_structured_output_and_logprobs(agents: Live) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    done = chat(agents, "json", response_format=form, logprobs=True).choices[0]
    assert isinstance(json.loads(done.message.content)["a"], int)
    assert done.logprobs is not None
    ask: Any = client_of(agents).completions.create
    echo = ask(model=agents.model, prompt="a b", max_tokens=2, echo=True, logprobs=1).choices[0]
    assert echo.text.startswith("a b")
    assert echo.logprobs.token_logprobs[:2] == [None, 0.0]


def test_a_scripted_answer_that_a_strict_tool_refuses_ends_soon_and_is_logged(agents: Live) -> None:
    """It used to continue up to the context's end, with the script's tokens over and over."""
    parameters = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "bash", "strict": True, "parameters": parameters}}
    done = chat(agents, "json", tools=[tool], extra_body={"vllm_xargs": {"program_id": "strict"}})
    assert [call.function.arguments for call in done.choices[0].message.tool_calls] == ["{}"]
    assert done.usage.completion_tokens < 100
    refused = "program strict: the request's strict tools or response format refuse its scripted answer"
    assert refused in (agents.record.parent / "server.log").read_text()


def chat(server: Live, *messages: Any, **more: Any) -> Any:
    """The server's answer to a conversation, or to one question of a user."""
    return client_of(server).chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": each} if isinstance(each, str) else each for each in messages],
        **more,
    )
