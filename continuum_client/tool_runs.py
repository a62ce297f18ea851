"""``Tool`` measures a tool in a ``with`` block, and ``ToolRun`` is the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from continuum_client.ending import unless_dropped
from continuum_client.spans import end_tool_span, tool_span

MAX_RUNS = 256
"""The number of tool runs that are kept between two calls; further runs are dropped."""


@dataclass(frozen=True, slots=True)
class ToolRun:
    """One run of a tool between two calls. Instants are seconds on the client's clock."""

    name: str
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


def busy_seconds(runs: Sequence[ToolRun]) -> float:
    """Return the seconds during which at least one of the tools ran."""
    total, until_s = 0.0, float("-inf")
    for run in sorted(runs, key=lambda run: run.start_s):
        total += max(0.0, run.end_s - max(run.start_s, until_s))
        until_s = max(until_s, run.end_s)
    return total


class Tool:
    """A tool that is measured in a ``with`` or ``async with`` block. It counts as run even if the block raises."""

    def __init__(self, name: str, ran: Callable[[ToolRun], None], clock: Callable[[], float], program_id: str) -> None:
        self.name = name
        self.seconds: float | None = None
        """How long the tool took; None while it runs."""
        self._ran = ran
        self._clock = clock
        self._start_s = 0.0
        self._program_id = program_id
        self._span: Any = None

    def __enter__(self) -> Tool:
        self._span = tool_span(self.name, self._program_id)
        self._start_s = self._clock()
        return self

    def __exit__(self, kind: object = None, error: object = None, *_: object) -> None:
        end_s = self._clock()
        self.seconds = end_s - self._start_s
        if self._span is not None:
            end_tool_span(self._span, error)
        unless_dropped(kind, lambda: self._ran(ToolRun(self.name, self._start_s, end_s)))

    async def __aenter__(self) -> Tool:
        return self.__enter__()

    async def __aexit__(self, *raised: object) -> None:
        self.__exit__(*raised)
