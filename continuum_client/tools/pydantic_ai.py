"""Measure the tools of PydanticAI."""

from __future__ import annotations

from typing import Any

from pydantic_ai.capabilities import AbstractCapability

from continuum_client.tools.running import Running


class ToolTimes(AbstractCapability[Any]):  # type: ignore[misc]
    """Measures the tools of the current program: ``Agent(..., capabilities=[ToolTimes()])``."""

    def __init__(self) -> None:
        self._running = Running()

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        key = object()
        self._running.begin(key, call.tool_name)
        try:
            return await handler(args)
        finally:
            self._running.end(key)
