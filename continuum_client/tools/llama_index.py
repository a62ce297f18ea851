"""Measure the tools of LlamaIndex's agent workflows."""

from __future__ import annotations

import inspect
from typing import Any

from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from pydantic import PrivateAttr

from continuum_client.tools.running import Running


class ToolTimes(BaseSpanHandler[BaseSpan]):  # type: ignore[misc]
    """Measures the tools of the current program: call ``ToolTimes.install()`` once, at the start."""

    _running: Running = PrivateAttr(default_factory=Running)

    @classmethod
    def install(cls) -> ToolTimes:
        """Add a handler to LlamaIndex's root dispatcher, and return the handler."""
        handler = cls()
        get_dispatcher().add_span_handler(handler)
        return handler

    def new_span(self, id_: str, bound_args: inspect.BoundArguments, **more: Any) -> None:
        for value in bound_args.arguments.values():
            if type(value).__name__ == "ToolCall":  # the event of the step that runs a tool
                self._running.begin(id_, value.tool_name)

    def span_exit(self, id_: str, *arguments: Any, **more: Any) -> None:
        self._running.end(id_)

    def span_drop(self, id_: str, *arguments: Any, **more: Any) -> None:
        self._running.end(id_)

    def prepare_to_exit_span(self, id_: str, *arguments: Any, **more: Any) -> None:
        """Spans are not kept."""

    def prepare_to_drop_span(self, id_: str, *arguments: Any, **more: Any) -> None:
        """Spans are not kept."""
