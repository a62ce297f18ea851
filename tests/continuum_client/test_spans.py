"""Attributes and spans where a process uses OpenTelemetry, and nothing where it does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from client_fakes import FakeServer

from continuum_client import OpenAI

trace_sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")


def test_calls_and_tools(serve: Callable[..., FakeServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = memory.InMemorySpanExporter()
    provider = trace_sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(spans))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    tracer = provider.get_tracer("agent")
    client = OpenAI(base_url=serve("vllm").url, dialect="vllm", record=tmp_path)

    def ask() -> None:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])

    with client.program("p") as p, tracer.start_as_current_span("agent"):
        ask()
        with p.tool("grep"):
            pass
        with tracer.start_as_current_span("its own", attributes={"gen_ai.tool.name": "find"}), p.tool("find"):
            pass
        with tracer.start_as_current_span("turn"):
            ask()
    found = {span.name: dict(span.attributes or {}) for span in spans.get_finished_spans()}
    assert set(found) == {"execute_tool grep", "its own", "turn", "agent"}
    assert found["execute_tool grep"]["gen_ai.conversation.id"] == found["turn"]["gen_ai.conversation.id"] == "p"
    assert found["turn"]["continuum.tool_seconds"] >= 0
    assert found["turn"]["continuum.cached_tokens"] > 0
    assert str(found["turn"]["continuum.turn_id"]).startswith("1-")


def test_without_opentelemetry_it_is_not_imported() -> None:
    code = "import sys, continuum_client; continuum_client.OpenAI; sys.exit('opentelemetry' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0
