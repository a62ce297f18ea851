"""Samples of tool times by tool, and the JSON form of everything that a policy learns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec

from continuum_server.policy.estimate import Memoryfulness, Moments
from continuum_server.policy.facts import TurnState
from continuum_server.policy.programs import name_of
from continuum_server.policy.tool_times import ToolTimes

SCHEMA: Final = "continuum-tool-statistics"
VERSION: Final = 1
MAX_TOOLS = 256
UNKNOWN_TOOL = "(unknown)"
"""The key of tool times after outputs that name no tool."""


Samples = TypeVar("Samples", Moments, ToolTimes)


class ToolSamples(Generic[Samples]):
    """Tool times, which are the times from a turn's finish to the arrival of its program's next turn.

    The samples of a tool are kept apart for each API key, if the server has several.

    Args:
        make: returns samples without a value, of all tools together and of each tool.
        max_tools: number of tools remembered. If there are more, the key with the most tools loses the tool that it did
            not call for longest, so that no key's tools can keep another key's from being learned.
    """

    def __init__(self, make: Callable[[], Samples], max_tools: int = MAX_TOOLS) -> None:
        self.all: Samples = make()
        self._make: Callable[[], Samples] = make
        self._max_tools = max(1, max_tools)
        self._keys: dict[str | None, OrderedDict[str, Samples]] = {}

    def get(self, tool: str, key: str | None = None) -> Samples | None:
        return self._keys[key].get(tool) if key in self._keys else None

    def of(self, tool: str, key: str | None = None) -> Samples:
        """Return the tool's samples, and mark the tool as called. A new tool is added."""
        tools = self._keys.setdefault(key, OrderedDict())
        if tool not in tools:
            tools[tool] = self._make()
            if self._number > self._max_tools:
                largest = max(self._keys, key=lambda other: (len(self._keys[other]), other != key))
                self._keys[largest].popitem(last=False)
                self._keys = {other: named for other, named in self._keys.items() if named}
        tools.move_to_end(tool)
        return tools[tool]

    @property
    def _number(self) -> int:
        return sum(map(len, self._keys.values()))

    def _has_room(self, tool: str, key: str | None) -> bool:
        """Whether ``of`` removes no tool of the same key."""
        tools = self._keys.get(key, ())
        return tool in tools or self._number < self._max_tools or max(map(len, self._keys.values())) > len(tools) + 1

    def add(self, tool: str, seconds: float, own_s: float | None = None, key: str | None = None) -> None:
        """Add a tool time. ``own_s``: the time in this tool's own samples; None: ``seconds``."""
        self.all.add(seconds)
        self.of(tool, key).add(seconds if own_s is None else own_s)

    def note_return(self, turn: TurnState, now_s: float) -> None:
        """Record the time since the program's previous turn, if it ended well.

        The tool is the one that the output called. If the output called no tool, the client's ``last_func_call`` and
        ``last_tool_duration_s`` are recorded under a name of their own (``hinted``).
        """
        program, key, tags = turn.program, turn.program.namespace, turn.tags
        if program.last_finish_s is None:
            return
        tool_s = now_s - program.last_finish_s
        if program.last_tool is not None or tags.last_func_call is None:
            self.add(program.last_tool or UNKNOWN_TOOL, tool_s, key=key)
            return
        name = hinted(tags.last_func_call)
        own_s = tool_s if tags.last_tool_duration_s is None else min(tags.last_tool_duration_s, tool_s)
        self.add(name if self._has_room(name, key) else UNKNOWN_TOOL, tool_s, own_s, key)

    def items(self) -> Iterator[tuple[str | None, str, Samples]]:
        """Yield API key, tool and samples. Of a key's tools, the one that was called last comes last."""
        for key, tools in self._keys.items():
            for tool, samples in tools.items():
                yield key, tool, samples


def hinted(tool: str) -> str:
    """Return the name of a tool that only the client named. It differs from the names in outputs."""
    return f"{tool} (hint)"


class ToolStatistics(ToolSamples[ToolTimes]):
    """Recent tool times S of all tools and S[f] of each tool f, with the papers' cold start at K samples.

    Args:
        cold_samples: K.
        window: number of most recent times kept of each tool, and of all tools together.
        max_tools: see ``ToolSamples``.
    """

    def __init__(self, cold_samples: int, window: int, max_tools: int = MAX_TOOLS) -> None:
        super().__init__(lambda: ToolTimes(window), max_tools)
        self._cold = cold_samples

    @property
    def is_cold(self) -> bool:
        """|S| <= K: too few samples to estimate anything from."""
        return self.all.count <= self._cold

    def times_for(self, tool: str, key: str | None = None) -> ToolTimes:
        """Return S[f] if it has more than K samples, otherwise S."""
        samples = self.get(tool, key)
        return self.all if samples is None or samples.count <= self._cold else samples

    def counts(self) -> dict[str, int]:
        return {name_of(tool, key): times.count for key, tool, times in self.items()}


def _load(times: ToolTimes, saved: Times) -> None:
    """Append the saved times to the recorded ones."""
    times.count += saved.count - len(saved.recent_s)
    for seconds in saved.recent_s:
        times.add(seconds)


# ------------------------------------------------------------------------------------------------ files of a run

Whole = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]


class Times(msgspec.Struct):
    """Tool times in a file: how many there were, and the most recent ones."""

    count: Whole = 0
    recent_s: list[Seconds] = []

    def __post_init__(self) -> None:
        if self.count < len(self.recent_s):
            raise ValueError("count is less than the number of times in recent_s")


class Statistics(msgspec.Struct):
    """The JSON form of what policies learn. A policy reads the sections that it knows."""

    schema: Literal["continuum-tool-statistics"]
    version: Literal[1]
    all: Times = msgspec.field(default_factory=Times)
    tools: dict[str, Times] = {}
    keys: dict[str, dict[str, Times]] = {}
    """The tools of each API key, if the server has several."""
    program_lengths: dict[str, Whole] = {}

    def items(self) -> Iterator[tuple[str | None, str, Times]]:
        for key, tools in ((None, self.tools), *self.keys.items()):
            for tool, times in tools.items():
                yield key, tool, times


def _read(data: Any) -> Statistics:
    """Check statistics from a file.

    Raises:
        ValueError: ``data`` has another form or version.
    """
    try:
        return msgspec.convert(data, Statistics)
    except msgspec.ValidationError as error:
        raise ValueError(f"not {SCHEMA} version {VERSION}: {error}") from None


def export_statistics(tools: ToolStatistics, memory: Memoryfulness) -> dict[str, Any]:
    """Return what a policy has learned as JSON."""
    learned = ((key, tool, Times(times.count, times.recent())) for key, tool, times in tools.items())
    return _to_json(Times(tools.all.count, tools.all.recent()), learned, memory)


def import_statistics(data: Mapping[str, Any], tools: ToolStatistics, memory: Memoryfulness) -> None:
    """Add exported statistics.

    Raises:
        ValueError: ``data`` has another form or version.
    """
    saved = _read(data)
    _load(tools.all, saved.all)
    for key, tool, times in saved.items():
        _load(tools.of(tool, key), times)
    memory.from_json(saved.program_lengths)


def merge_statistics(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the statistics of several runs. Recent times alternate between runs, so a window keeps some of each run.

    Raises:
        ValueError: an element has another form or version.
    """
    read = [_read(run) for run in runs]
    parts: dict[tuple[str | None, str], list[Times]] = {}
    for run in read:
        for key, tool, times in run.items():
            parts.setdefault((key, tool), []).append(times)
    lengths = Memoryfulness()
    for run in read:
        lengths.from_json(run.program_lengths)
    merged = ((key, tool, _merge(times)) for (key, tool), times in parts.items())
    return _to_json(_merge([run.all for run in read]), merged, lengths)


def _to_json(every: Times, tools: Iterable[tuple[str | None, str, Times]], lengths: Memoryfulness) -> dict[str, Any]:
    made = Statistics(SCHEMA, VERSION, every, program_lengths=lengths.to_json())
    for key, tool, times in tools:
        (made.tools if key is None else made.keys.setdefault(key, {}))[tool] = times
    return dict(msgspec.to_builtins(made))


def _merge(parts: Sequence[Times]) -> Times:
    newest_first = zip_longest(*(reversed(part.recent_s) for part in parts))
    recent = [seconds for row in newest_first for seconds in row if seconds is not None]
    return Times(sum(part.count for part in parts), recent[::-1])
