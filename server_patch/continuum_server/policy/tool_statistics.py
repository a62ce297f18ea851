"""Samples of tool times, of each tool and of all together, and sizes of tasks; as JSON, merged from several runs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from continuum_server.policy.estimate import Memoryfulness, Moments
from continuum_server.policy.facts import ProgramState, TurnState
from continuum_server.policy.tasks import Tasks, merge_tasks
from continuum_server.policy.tool_times import ToolTimes

SCHEMA, VERSION = "continuum-tool-statistics", 1
MAX_TOOLS = 256
UNKNOWN_TOOL = "(unknown)"
"""The key of tool times after outputs that name no tool."""

T = TypeVar("T")


class ByTool(Generic[T]):
    """One value for each tool; beyond ``limit`` tools, the tool that was not used for longest is forgotten."""

    def __init__(self, make: Callable[[], T], limit: int = MAX_TOOLS) -> None:
        self._make = make
        self._limit = max(1, limit)
        self._values: OrderedDict[str, T] = OrderedDict()

    def of(self, tool: str) -> T:
        """The tool's value, made if there is none."""
        value = self._values.get(tool)
        if value is None:
            value = self._values[tool] = self._make()
            if len(self._values) > self._limit:
                self._values.popitem(last=False)
        self._values.move_to_end(tool)
        return value

    def has_room(self, tool: str) -> bool:
        return tool in self._values or len(self._values) < self._limit

    def get(self, tool: str) -> T | None:
        return self._values.get(tool)

    def items(self) -> Iterable[tuple[str, T]]:
        return self._values.items()


class ToolSamples(ABC):
    """Where a policy records tool times: from a turn's finish to the arrival of its program's next turn."""

    @abstractmethod
    def add(self, tool: str, seconds: float, own_s: float | None = None) -> None:
        """A tool time. ``own_s``: what counts for this tool alone; None: the same."""

    @abstractmethod
    def has_room(self, tool: str) -> bool:
        """Whether the tool is remembered, or can be without another being forgotten."""

    def note_return(self, turn: TurnState, now_s: float) -> None:
        """A turn arrived: record the tool time that ends with it, if there is one.

        The tool is the one that the output called. If the output called none, the server cannot see what the time was
        spent on: then the client's word counts, ``ran`` and ``ran_s``, under a name of its own (``told``).
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
        self.add(name if self.has_room(name) else UNKNOWN_TOOL, away_s, ran_s)


def told(tool: str, program: ProgramState) -> str:
    """The key of a tool that only the program's client named: no other API key's tools have it, nor have outputs."""
    return f"{tool} (told)" if program.namespace is None else f"{tool} (told by {program.namespace})"


class ToolMoments(ToolSamples):
    """Mean and variance of tool times, of all tools and of each."""

    def __init__(self) -> None:
        self.all = Moments()
        self._by_tool = ByTool(Moments)

    def add(self, tool: str, seconds: float, own_s: float | None = None) -> None:
        self.all.add(seconds)
        self._by_tool.of(tool).add(seconds if own_s is None else own_s)

    def has_room(self, tool: str) -> bool:
        return self._by_tool.has_room(tool)

    def of(self, tool: str) -> Moments | None:
        """None: the tool has no samples."""
        return self._by_tool.get(tool)


class ToolStatistics(ToolSamples):
    """Recent tool times S of all tools and S[f] of each tool f, with the papers' cold start at K samples.

    Args:
        cold_samples: K.
        window: most recent times kept of each tool, and of all together.
        max_tools: tools remembered; the tool that was not called for longest is forgotten first.
    """

    def __init__(self, cold_samples: int, window: int, max_tools: int = MAX_TOOLS) -> None:
        self._cold = cold_samples
        self._all = ToolTimes(window)
        self._by_tool = ByTool(lambda: ToolTimes(window), max_tools)

    def add(self, tool: str, seconds: float, own_s: float | None = None) -> None:
        self._all.add(seconds)
        self._by_tool.of(tool).add(seconds if own_s is None else own_s)

    def has_room(self, tool: str) -> bool:
        return self._by_tool.has_room(tool)

    @property
    def is_cold(self) -> bool:
        """|S| <= K: too few samples to estimate anything from."""
        return self._all.count <= self._cold

    def times_for(self, tool: str) -> ToolTimes:
        """S[f] if it has more than K samples, otherwise S."""
        own = self._by_tool.get(tool)
        return self._all if own is None or own.count <= self._cold else own

    def counts(self) -> dict[str, int]:
        return {tool: times.count for tool, times in self._by_tool.items()}

    def to_json(self) -> dict[str, Any]:
        tools = {tool: _times_to_json(times) for tool, times in self._by_tool.items()}
        return {"all": _times_to_json(self._all), "tools": tools}

    def from_json(self, data: Mapping[str, Any]) -> None:
        """Append these samples to those recorded already.

        Raises:
            ValueError: not the form ``to_json`` writes.
        """
        _check(data)
        _read_times(self._all, data["all"])
        for tool, given in data["tools"].items():
            _read_times(self._by_tool.of(tool), given)


def _times_to_json(times: ToolTimes) -> dict[str, Any]:
    return {"count": times.count, "recent_s": times.recent()}


def _read_times(times: ToolTimes, given: Mapping[str, Any]) -> None:
    samples = [float(seconds) for seconds in given["recent_s"]]
    times.count += int(given["count"]) - len(samples)
    for seconds in samples:
        times.add(seconds)


def _check(data: Any) -> None:
    tools = data.get("tools") if isinstance(data, Mapping) else None
    if not isinstance(tools, Mapping):
        raise ValueError("tool statistics: tools: missing")
    for name, given in [("all", data.get("all")), *tools.items()]:
        samples = given.get("recent_s") if isinstance(given, Mapping) else None
        if not isinstance(samples, list) or not all(_is_seconds(value) for value in samples):
            raise ValueError(f"tool statistics: {name}: recent_s: expected a list of seconds")
        count = given.get("count")
        if not isinstance(count, int) or count < len(samples):
            raise ValueError(f"tool statistics: {name}: count: expected a number of at least the samples")


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


# ------------------------------------------------------------------------------------------------ files of a run


def export_statistics(tools: ToolStatistics, memory: Memoryfulness) -> dict[str, Any]:
    """What a policy has learned, as JSON."""
    return {"schema": SCHEMA, "version": VERSION, **tools.to_json(), "program_lengths": memory.to_json()}


def import_statistics(data: Mapping[str, Any], tools: ToolStatistics, memory: Memoryfulness) -> None:
    """Start from what was exported.

    Raises:
        ValueError: of another form or version.
    """
    _check_version(data)
    tools.from_json(data)
    memory.from_json(data.get("program_lengths", {}))


def with_tasks(tasks: Tasks) -> dict[str, Any]:
    """The statistics of a policy that learns the sizes of tasks, as JSON; empty if it has learned none."""
    learned = tasks.to_json() if len(tasks) else None
    return {} if learned is None else {**merge_statistics([]), "tasks": learned}


def read_tasks(data: Mapping[str, Any], tasks: Tasks) -> None:
    """Start from the sizes of tasks that were exported, if there are any.

    Raises:
        ValueError: of another form or version.
    """
    _check_version(data)
    if "tasks" in data:
        tasks.from_json(data["tasks"])


def merge_statistics(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of several runs as one. Recent times alternate between runs, so a window keeps some of each.

    Raises:
        ValueError: of another form or version.
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
    of_tasks = [run["tasks"] for run in runs if "tasks" in run]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "all": merged,
        "tools": tools,
        "program_lengths": lengths.to_json(),
        **({"tasks": merge_tasks(of_tasks)} if of_tasks else {}),
    }


def _merge_times(given: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    parts = list(given)
    newest_first = zip_longest(*(reversed(part["recent_s"]) for part in parts))
    recent = [seconds for row in newest_first for seconds in row if seconds is not None]
    return {"count": sum(part["count"] for part in parts), "recent_s": recent[::-1]}


def _check_version(data: Mapping[str, Any]) -> None:
    if not isinstance(data, Mapping) or (data.get("schema"), data.get("version")) != (SCHEMA, VERSION):
        raise ValueError(f"not {SCHEMA} version {VERSION}")
