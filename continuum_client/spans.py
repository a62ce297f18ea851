"""OpenTelemetry: a span for each call and for each tool, below the caller's span.

If another library has made a span for the call or the tool, no further one is made. Nothing is written if the process
does not use OpenTelemetry; its package is never imported here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from continuum_traces.schema import Tags

if TYPE_CHECKING:
    from continuum_client.reply import Reply

CONVERSATION, TOOL_NAME, OPERATION = "gen_ai.conversation.id", "gen_ai.tool.name", "gen_ai.operation.name"
REQUEST_MODEL = "gen_ai.request.model"
"""Names of OpenTelemetry's semantic conventions."""
_OPERATIONS = {"/completions": "text_completion"}
"""The operations of requests by their path; ``chat`` for all others."""


def current_span() -> Any:
    """Return the current span if it is being recorded, else None."""
    trace = sys.modules.get("opentelemetry.trace")
    span = None if trace is None else trace.get_current_span()
    return span if span is not None and span.is_recording() else None


class CallSpan:
    """The span of one call: the current span, if another library made it for this call, or else a new one.

    Args:
        outer: the current span.
        path: the path of the request.
        model: the model in the request.
        tags: the tags of the call.
    """

    def __init__(self, outer: Any, path: str, model: str, tags: Tags) -> None:
        is_calls = _attributes(outer).get(OPERATION) in ("chat", "text_completion")
        operation = _OPERATIONS.get(path, "chat")
        about = {OPERATION: operation, "gen_ai.provider.name": "openai"} | ({REQUEST_MODEL: model} if model else {})
        self._own = not is_calls
        self._span = outer if is_calls else _start(f"{operation} {model}".rstrip(), about, "CLIENT")
        self._write(
            {
                CONVERSATION: tags.program_id,
                "continuum.program_id": tags.program_id,
                "continuum.parent_id": tags.parent_id,
                "continuum.turn_id": tags.turn_id,
                "continuum.tool": tags.last_func_call,
                "continuum.tool_seconds": tags.last_tool_duration_s,
            }
        )

    def end(self, reply: Reply, at_s: float, error: str | None) -> None:
        """Write the facts of the reply, which has ended, with an error or without."""
        if not self._span.is_recording():
            return
        self._write({"continuum.cached_tokens": reply.cached_tokens})
        if self._own:
            self._write(
                {
                    "gen_ai.response.model": reply.model,
                    "gen_ai.response.finish_reasons": [reason for reason in reply.reasons.values() if reason] or None,
                    "gen_ai.usage.input_tokens": reply.prompt_tokens,
                    "gen_ai.usage.output_tokens": reply.output_tokens,
                    "gen_ai.usage.cache_read.input_tokens": reply.cached_tokens,
                    "error.type": error and error.partition(":")[0],
                }
            )
            if error is not None:
                _set_error(self._span, error)
            self._span.end()

    def _write(self, attributes: dict[str, Any]) -> None:
        self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})


def tool_span(name: str, program_id: str) -> Any:
    """Return a new span for a tool; None if the current span is a tool's already, or if there is no current span."""
    outer = current_span()
    if outer is None or TOOL_NAME in _attributes(outer):
        return None
    attributes = {TOOL_NAME: name, OPERATION: "execute_tool", CONVERSATION: program_id}
    return _start(f"execute_tool {name}", attributes, "INTERNAL")


def end_tool_span(span: Any, error: object) -> None:
    """End the span of a tool.

    Args:
        span: the span.
        error: what the tool raised, or None.
    """
    if isinstance(error, Exception):
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        _set_error(span, str(error))
    span.end()


def _start(name: str, attributes: dict[str, Any], kind: str) -> Any:
    trace = sys.modules["opentelemetry.trace"]
    tracer = trace.get_tracer("continuum_client")
    return tracer.start_span(name, kind=trace.SpanKind[kind], attributes=attributes)


def _set_error(span: Any, description: str) -> None:
    trace = sys.modules["opentelemetry.trace"]
    span.set_status(trace.Status(trace.StatusCode.ERROR, description))


def _attributes(span: Any) -> Any:
    return getattr(span, "attributes", None) or {}
