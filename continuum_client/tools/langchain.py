"""Measure the tools of LangChain and LangGraph."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from continuum_client.tools.running import Running


class ToolTimes(BaseCallbackHandler):  # type: ignore[misc]
    """Measures the tools of the current program: ``invoke(..., config={"callbacks": [ToolTimes()]})``."""

    run_inline = True  # otherwise asynchronous runs would call the handler in another thread

    def __init__(self) -> None:
        self._running = Running()

    def on_tool_start(self, serialized: dict[str, Any] | None, input_str: str, *, run_id: Any, **more: Any) -> None:
        self._running.begin(run_id, (serialized or {}).get("name") or more.get("name") or "tool")

    def on_tool_end(self, output: Any, *, run_id: Any, **more: Any) -> None:
        self._running.end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: Any, **more: Any) -> None:
        self._running.end(run_id)
