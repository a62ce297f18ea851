"""Attributes and spans where a process uses OpenTelemetry, and nothing where it does not."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from aiohttp import web
from fake_server import FakeServer, Planned, as_event, streaming
from sdk import ask

from continuum_client import OpenAI

trace_sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    exporter = memory.InMemorySpanExporter()
    provider = trace_sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    exporter.tracer = provider.get_tracer("agent")
    return exporter


def test_calls_and_tools(client: OpenAI, vllm: FakeServer, spans: Any) -> None:
    """Each call and each tool has a span of its own, whether the program is recorded or not. The agent's span keeps to
    itself what belongs to programs in it."""
    with client.program("p") as p, spans.tracer.start_as_current_span("agent"):
        ask(client)
        with p.tool("grep"):
            pass
        list(ask(client, stream=True, stream_options={"include_usage": True}))
        with p.child("kid"):
            client.completions.create(model="m", prompt="hello " * 9)
    found = spans.get_finished_spans()
    assert [span.name for span in found] == ["chat m", "execute_tool grep", "chat m", "text_completion m", "agent"]
    *own, agent = (dict(span.attributes or {}) for span in found)
    assert agent == {}
    assert {span.parent and span.parent.span_id for span in found[:-1]} == {found[-1].context.span_id}
    assert [span["gen_ai.conversation.id"] for span in own] == ["p", "p", "p", "kid"]
    for call in (own[0], own[2], own[3]):
        named = [call[f"gen_ai.{name}"] for name in ("request.model", "response.model", "usage.output_tokens")]
        assert named == ["m", "m", 7]
        assert call["gen_ai.usage.input_tokens"] > call["gen_ai.usage.cache_read.input_tokens"] > 0
    assert own[2]["continuum.tool"] == "grep"
    assert own[2]["continuum.turn_id"].startswith("1-")
    assert own[3]["continuum.parent_id"] == "p"


def test_spans_of_other_libraries(client: OpenAI, vllm: FakeServer, spans: Any) -> None:
    """A call or a tool that has a span already gets no second one; the call's tags are written to it."""
    start = spans.tracer.start_as_current_span
    with client.program("p") as p, start("agent", attributes={"gen_ai.operation.name": "invoke_agent"}):
        with start("call", attributes={"gen_ai.operation.name": "chat"}):
            ask(client)
        with start("tool", attributes={"gen_ai.tool.name": "find"}), p.tool("find"):
            pass
    call, tool, agent = spans.get_finished_spans()
    assert call.attributes["gen_ai.conversation.id"] == "p"
    assert call.attributes["continuum.cached_tokens"] > 0
    assert (tool.name, agent.name) == ("tool", "agent")
    assert "continuum.program_id" not in agent.attributes


def test_names_and_values_are_those_of_the_semantic_conventions(client: OpenAI, vllm: FakeServer, spans: Any) -> None:
    names = pytest.importorskip("opentelemetry.semconv._incubating.attributes.gen_ai_attributes")
    attributes = {value for name, value in vars(names).items() if name.startswith("GEN_AI_")}
    operations = {each.value for each in names.GenAiOperationNameValues}
    with client.program("p") as p, spans.tracer.start_as_current_span("agent"):
        ask(client)
        client.completions.create(model="m", prompt="hello")
        client.responses.create(model="m", input="hello")
        ask(client, model="")
        with p.tool("grep"):
            pass
    found = spans.get_finished_spans()[:-1]
    for span in found:
        named = {name: value for name, value in span.attributes.items() if name.startswith("gen_ai.")}
        assert {*named} <= attributes
        assert named["gen_ai.operation.name"] in operations
        is_tool = named["gen_ai.operation.name"] == "execute_tool"
        assert ("gen_ai.provider.name" in named, span.kind.name) == (
            (False, "INTERNAL") if is_tool else (True, "CLIENT")
        )
        about = named.get("gen_ai.tool.name" if is_tool else "gen_ai.request.model")
        assert span.name == " ".join(filter(None, (named["gen_ai.operation.name"], about)))
    assert found[3].name == "chat"
    assert found[0].attributes["gen_ai.response.finish_reasons"] == ("stop",)


def test_an_error_s_type_is_a_word_and_its_text_the_description(client: OpenAI, vllm: FakeServer, spans: Any) -> None:
    async def short(request: web.Request, number: int) -> web.StreamResponse:
        stream = await streaming(request)
        await stream.write(as_event({"choices": [{"index": 0, "delta": {"content": "a"}}]}))
        return stream

    vllm.handler = short
    with client.program("p"), spans.tracer.start_as_current_span("agent"):
        list(ask(client, stream=True))
    call, _ = spans.get_finished_spans()
    assert call.attributes["error.type"] == "stream"
    assert call.status.description == "stream: ended without a finish reason"


def test_failures(vllm: FakeServer, spans: Any) -> None:
    vllm.plan.append(Planned(500))
    client = OpenAI(base_url=vllm.url, dialect="vllm", max_retries=0)
    with client.program("p") as p, spans.tracer.start_as_current_span("agent"):
        with pytest.raises(openai.InternalServerError):
            ask(client)
        with pytest.raises(OSError, match="broken"), p.tool("pytest"):
            raise OSError("broken")
    call, tool, agent = spans.get_finished_spans()
    assert [span.status.status_code.name for span in (call, tool, agent)] == ["ERROR", "ERROR", "UNSET"]
    assert call.attributes["error.type"] == "InternalServerError 500"
    assert (tool.attributes["error.type"], tool.status.description) == ("OSError", "broken")
    assert [event.name for event in tool.events] == ["exception"]
