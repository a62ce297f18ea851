"""Measure tools of which a framework reports the start and the end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from continuum_client.errors import once
from continuum_client.program import current_program
from continuum_client.tool_runs import Tool

MAX_RUNNING = 10_000
"""The number of tools that may run at once; of more tools, the oldest is forgotten."""


class Running:
    """Measures the tools of the current program. Never raises into the framework."""

    def __init__(self) -> None:
        self._tools: OrderedDict[Hashable, Tool] = OrderedDict()

    def begin(self, key: Hashable, name: str) -> None:
        """Note that the tool ``name`` starts. ``key`` is the same at its start and its end."""
        once.guard("tool times", "a tool could not be measured", lambda: self._begin(key, name))

    def _begin(self, key: Hashable, name: str) -> None:
        program = current_program()
        if program is not None:
            self._tools[key] = program.tool(name).__enter__()
            if len(self._tools) > MAX_RUNNING:
                self._tools.popitem(last=False)

    def end(self, key: Hashable, name: str | None = None) -> None:
        """Note that the tool with this key has ended. ``name`` is its name if it was unknown at the start."""
        tool = self._tools.pop(key, None)
        if tool is not None:
            tool.name = name or tool.name
            tool.__exit__()
