"""Measure the tools of the OpenAI Agents SDK."""

from __future__ import annotations

from typing import Any

from agents import RunHooks  # type: ignore[attr-defined]
from continuum_client.tools.running import Running


class ToolTimes(RunHooks):  # type: ignore[misc]
    """Measures the tools of the current program: ``Runner.run(agent, "...", hooks=ToolTimes())``."""

    def __init__(self) -> None:
        self._running = Running()

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self._running.begin(_key(context, tool), tool.name)

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        self._running.end(_key(context, tool))


def _key(context: Any, tool: Any) -> Any:
    return getattr(context, "tool_call_id", None) or (id(context), tool.name)
