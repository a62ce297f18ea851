"""Spans as OpenTelemetry's own library for GenAI writes them (opentelemetry-util-genai), imported as a trace.

``make frameworks NAMES=util-genai`` installs it. Attributes come in the library's order, and sorted as many tools
store them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from continuum_traces.importers.registry import read_any

pytestmark = pytest.mark.slow

PYTHON = Path(__file__).resolve().parents[2] / ".frameworks" / "util-genai" / "bin" / "python"
AGENT = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.util.genai.handler import TelemetryHandler

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
handler = TelemetryHandler(instrumentation_scope_name="agent", tracer_provider=provider)

def ask(**usage):
    with handler.inference("openai", request_model="gpt") as call:
        for name, count in usage.items():
            setattr(call.data, f"usage_{name}_tokens", count)

def run(name):
    with handler.tool(name, tool_type="function"):
        pass

with handler.workflow(name="w"), handler.invoke_local_agent(agent_name="main", conversation_id="conv"):
    ask(input=100, output=10)
    run("grep")
    ask(input=150, output=20, cache_read_input=96, reasoning_output=5)
    with handler.retrieval(data_source_id="d"), handler.embedding("openai", request_model="e") as call:
        call.input_tokens = 7
    parts = dict(text_input=200, image_input=60, audio_input=40, text_output=15, audio_output=5)
    ask(input=300, output=20, cache_read_input=150, text_cache_read_input=100, **parts)
    with handler.fetch_response("openai", response_id="r"):
        pass
    with handler.invoke_local_agent(agent_name="sub"):
        ask(input=50, output=5)
        run("ls")
        ask(input=70, output=5, cache_read_input=48)
    ask(input=330, output=9, cache_read_input=300, cache_write_input=20)
for span in exporter.get_finished_spans():
    print(span.to_json(indent=None))
"""


def sorted_attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {**span, "attributes": dict(sorted(span["attributes"].items()))}


@pytest.fixture(scope="module")
def spans() -> list[dict[str, Any]]:
    if not PYTHON.exists():
        pytest.skip("make frameworks NAMES=util-genai could not install it from PyPI, or was not run")
    done = subprocess.run([str(PYTHON), "-c", AGENT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("order", [lambda span: span, sorted_attributes])
def test_an_agent_and_its_sub_agent(order: Callable[[Any], Any], spans: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    file.write_text("".join(json.dumps(order(span)) + "\n" for span in spans))
    main, sub = read_any(file)
    assert (main.program_id, sub.parent_id, sub.parent_turn) == ("conv", "conv", 2)
    assert [turn.output_tokens for turn in main.turns] == [10, 20, 20, 9]
    assert [turn.cached_tokens for turn in main.turns] == [None, 96, 150, 300]
    assert [turn.new_input_tokens for turn in main.turns] == [100, 40, 135, 10]
    assert [[call.name for call in turn.tool_calls] for turn in main.turns] == [["grep"], [], [], []]
    assert [[call.name for call in turn.tool_calls] for turn in sub.turns] == [["ls"], []]
