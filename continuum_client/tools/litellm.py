"""Measure the tools of agents that use LiteLLM."""

from __future__ import annotations

from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from continuum_client.program import current_program
from continuum_client.tools.running import Running


class ToolTimes(CustomLogger):  # type: ignore[misc]
    """Measures the tools of the current program: ``litellm.callbacks.append(ToolTimes())``.

    LiteLLM does not run tools. The time from a reply to the next call counts as tool time if the next call contains the
    tools' results.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running = Running()

    def log_post_api_call(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        program = current_program()
        if program is not None:
            self._running.begin(program.id, "tool")

    def log_pre_api_call(self, model: Any, messages: Any, kwargs: Any) -> None:
        program, name = current_program(), _tool(messages or [])
        if program is not None and name is not None:
            self._running.end(program.id, name)


def _tool(messages: list[Any]) -> str | None:
    """Return the first of the tools whose results end the messages, or None."""
    for results, message in enumerate(reversed(messages)):
        if message.get("role") != "tool":
            calls = message.get("tool_calls") if results else None
            return calls[0]["function"]["name"] if calls else None
    return None
