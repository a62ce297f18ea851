"""Samples of tool times by tool, and the JSON form of everything that a policy learns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from continuum_server.policy.estimate import Memoryfulness, Moments
from continuum_server.policy.facts import ProgramState, TurnState
from continuum_server.policy.lru import Lru
from continuum_server.policy.tool_times import ToolTimes

SCHEMA, VERSION = "continuum-tool-statistics", 1
MAX_TOOLS = 256
UNKNOWN_TOOL = "(unknown)"
"""The key of tool times after outputs that name no tool."""


Samples = TypeVar("Samples", Moments, ToolTimes)


class ToolSamples(Generic[Samples]):
    """Tool times, which are the times from a turn's finish to the arrival of its program's next turn.

    Args:
        make: returns samples without a value, of all tools together and of each tool.
        max_tools: number of tools remembered. The tool that was not called for longest is forgotten first.
    """

    def __init__(self, make: Callable[[], Samples], max_tools: int = MAX_TOOLS) -> None:
        self.all: Samples = make()
        self.by_tool: Lru[str, Samples] = Lru(make, max_tools)

    def add(self, tool: str, seconds: float, own_s: float | None = None) -> None:
        """Add a tool time. ``own_s``: the time in this tool's own samples; None: ``seconds``."""
        self.all.add(seconds)
        self.by_tool.of(tool).add(seconds if own_s is None else own_s)

    def note_return(self, turn: TurnState, now_s: float) -> None:
        """Record the tool time that the arrival of ``turn`` ends, if there is one.

        The tool is the one that the output called. If the output called no tool, the client's ``ran`` and ``ran_s`` are
        recorded under a key of their own (``told``).
        """
        program = turn.program
        if program.last_finish_s is None:
            return
        away_s = now_s - program.last_finish_s
        if program.last_tool is not None or turn.ran is None:
            self.add(program.last_tool or UNKNOWN_TOOL, away_s)
            return
        name = told(turn.ran, program)
        ran_s = away_s if turn.ran_s is None else min(turn.ran_s, away_s)
        self.add(name if self.by_tool.has_room(name) else UNKNOWN_TOOL, away_s, ran_s)


def told(tool: str, program: ProgramState) -> str:
    """Return the key of a tool that only the client named. It differs from other API keys' and from keys of outputs."""
    return f"{tool} (told)" if program.namespace is None else f"{tool} (told by {program.namespace})"


class ToolStatistics(ToolSamples[ToolTimes]):
    """Recent tool times S of all tools and S[f] of each tool f, with the papers' cold start at K samples.

    Args:
        cold_samples: K.
        window: number of most recent times kept of each tool, and of all tools together.
        max_tools: number of tools remembered. The tool that was not called for longest is forgotten first.
    """

    def __init__(self, cold_samples: int, window: int, max_tools: int = MAX_TOOLS) -> None:
        super().__init__(lambda: ToolTimes(window), max_tools)
        self._cold = cold_samples

    @property
    def is_cold(self) -> bool:
        """|S| <= K: too few samples to estimate anything from."""
        return self.all.count <= self._cold

    def times_for(self, tool: str) -> ToolTimes:
        """Return S[f] if it has more than K samples, otherwise S."""
        own = self.by_tool.get(tool)
        return self.all if own is None or own.count <= self._cold else own

    def counts(self) -> dict[str, int]:
        return {tool: times.count for tool, times in self.by_tool.items()}

    def to_json(self) -> dict[str, Any]:
        tools = {tool: _times_to_json(times) for tool, times in self.by_tool.items()}
        return {"all": _times_to_json(self.all), "tools": tools}

    def from_json(self, data: Mapping[str, Any]) -> None:
        """Append samples to the recorded ones.

        Raises:
            ValueError: ``data`` does not have the form that ``to_json`` writes.
        """
        _check(data)
        _read_times(self.all, data["all"])
        for tool, times in data["tools"].items():
            _read_times(self.by_tool.of(tool), times)


def _times_to_json(times: ToolTimes) -> dict[str, Any]:
    return {"count": times.count, "recent_s": times.recent()}


def _read_times(times: ToolTimes, data: Mapping[str, Any]) -> None:
    samples = [float(seconds) for seconds in data["recent_s"]]
    times.count += int(data["count"]) - len(samples)
    for seconds in samples:
        times.add(seconds)


def _check(data: Any) -> None:
    tools = data.get("tools") if isinstance(data, Mapping) else None
    if not isinstance(tools, Mapping):
        raise ValueError("tool statistics: tools: missing")
    for name, times in [("all", data.get("all")), *tools.items()]:
        samples = times.get("recent_s") if isinstance(times, Mapping) else None
        if not isinstance(samples, list) or not all(_is_seconds(value) for value in samples):
            raise ValueError(f"tool statistics: {name}: recent_s: expected a list of seconds")
        count = times.get("count")
        if not isinstance(count, int) or count < len(samples):
            raise ValueError(f"tool statistics: {name}: count: expected a number of at least the samples")


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


# ------------------------------------------------------------------------------------------------ files of a run


def export_statistics(tools: ToolStatistics, memory: Memoryfulness) -> dict[str, Any]:
    """Return what a policy has learned as JSON."""
    return {"schema": SCHEMA, "version": VERSION, **tools.to_json(), "program_lengths": memory.to_json()}


def import_statistics(data: Mapping[str, Any], tools: ToolStatistics, memory: Memoryfulness) -> None:
    """Add exported statistics.

    Raises:
        ValueError: ``data`` has another form or version.
    """
    _check_version(data)
    tools.from_json(data)
    memory.from_json(data.get("program_lengths", {}))


def merge_statistics(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the statistics of several runs. Recent times alternate between runs, so a window keeps some of each run.

    Raises:
        ValueError: an element has another form or version.
    """
    for run in runs:
        _check_version(run)
        _check(run)
    names = dict.fromkeys(name for run in runs for name in run["tools"])
    tools = {name: _merge_times(run["tools"][name] for run in runs if name in run["tools"]) for name in names}
    lengths = Memoryfulness()
    for run in runs:
        lengths.from_json(run.get("program_lengths", {}))
    merged = _merge_times(run["all"] for run in runs)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "all": merged,
        "tools": tools,
        "program_lengths": lengths.to_json(),
    }


def _merge_times(runs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    parts = list(runs)
    newest_first = zip_longest(*(reversed(part["recent_s"]) for part in parts))
    recent = [seconds for row in newest_first for seconds in row if seconds is not None]
    return {"count": sum(part["count"] for part in parts), "recent_s": recent[::-1]}


def _check_version(data: Mapping[str, Any]) -> None:
    if not isinstance(data, Mapping) or (data.get("schema"), data.get("version")) != (SCHEMA, VERSION):
        raise ValueError(f"not {SCHEMA} version {VERSION}")
