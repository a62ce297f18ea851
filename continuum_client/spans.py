"""OpenTelemetry: write attributes to the caller's span, and make a span for each tool.

Nothing is written if the process does not use OpenTelemetry; its package is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from continuum_traces.schema import Tags

CONVERSATION, TOOL_NAME = "gen_ai.conversation.id", "gen_ai.tool.name"
"""Names of OpenTelemetry's semantic conventions."""


def current_span() -> Any:
    """Return the current span if it is being recorded, else None."""
    trace = sys.modules.get("opentelemetry.trace")
    span = None if trace is None else trace.get_current_span()
    return span if span is not None and span.is_recording() else None


def note_call(span: Any, tags: Tags) -> None:
    """Write a call's tags to the span in which the call is sent."""
    attributes = {
        CONVERSATION: tags.program_id,
        "continuum.program_id": tags.program_id,
        "continuum.parent_id": tags.parent_id,
        "continuum.turn_id": tags.turn_id,
        "continuum.tool": tags.last_func_call,
        "continuum.tool_seconds": tags.last_tool_duration_s,
    }
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})


def note_reply(span: Any, cached_tokens: int | None) -> None:
    """Write the number of tokens that the server found in its cache to the span, if the span has not ended."""
    if cached_tokens is not None and span.is_recording():
        span.set_attribute("continuum.cached_tokens", cached_tokens)


def tool_span(name: str) -> Callable[[], None] | None:
    """Begin a span for a tool, unless the current span belongs to a tool already.

    Returns:
        A function that ends the span; None: there is no span.
    """
    outer = current_span()
    outer_attributes = getattr(outer, "attributes", None) or {}
    if outer is None or TOOL_NAME in outer_attributes:
        return None
    attributes = {TOOL_NAME: name, "gen_ai.operation.name": "execute_tool"}
    if outer_attributes.get(CONVERSATION) is not None:
        attributes[CONVERSATION] = outer_attributes[CONVERSATION]
    trace = sys.modules["opentelemetry.trace"]
    span = trace.get_tracer("continuum_client").start_span(f"execute_tool {name}", attributes=attributes)
    end: Callable[[], None] = span.end
    return end
