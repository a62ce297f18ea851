"""What an import assumes where its source is silent: each once, with how often. A trace's header carries them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from continuum_traces.names import counted
from continuum_traces.playing.sub_programs import parents_of
from continuum_traces.schema import Program


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that a source does not say, or that was left out of it.

    >>> str(Assumption("tool call", "duration unknown, taken as 0 s", 3, "--tool-times constant:2"))
    '3 tool calls: duration unknown, taken as 0 s (--tool-times constant:2)'
    """

    thing: str
    """What it concerns, in the singular: program, turn, tool call."""
    text: str
    """What is assumed of each. No verb in it depends on the number."""
    count: int = 1
    way_out: str = ""
    """The option with which a user can say it himself."""
    example: str = ""
    """Where the first of them is."""

    def __str__(self) -> str:
        ways = "; ".join(filter(None, (self.way_out, self.example and f"the first: {self.example}")))
        return f"{counted(self.count, self.thing)}: {self.text}" + (f" ({ways})" if ways else "")


NO_DURATION = Assumption("tool call", "duration unknown, taken as 0 s", 0, "--tool-times constant:2")


class Assumptions:
    """Assumptions in the order in which the first of each was made. Equal ones are counted together."""

    def __init__(self, assumptions: Iterable[Assumption] = ()) -> None:
        self._by_text: dict[tuple[str, str, str], Assumption] = {}
        self.add(*assumptions)

    def add(self, *assumptions: Assumption) -> None:
        for each in assumptions:
            key = (each.thing, each.text, each.way_out)
            before = self._by_text.get(key)
            if each.count:
                self._by_text[key] = replace(before, count=before.count + each.count) if before else each

    def assume(self, thing: str, text: str, count: int = 1, way_out: str = "", example: object = "") -> None:
        self.add(Assumption(thing, text, count, way_out, str(example)))

    def __iter__(self) -> Iterator[Assumption]:
        return iter(self._by_text.values())

    def lines(self) -> list[str]:
        return [str(each) for each in self]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the field ``assumptions`` of a trace's header."""
        return [{name: value for name, value in asdict(each).items() if value} for each in self]


def from_header(header: Mapping[str, Any]) -> Iterator[Assumption]:
    """Yield the assumptions in the header of a trace. Malformed ones are passed over."""
    names = [field.name for field in fields(Assumption)]
    rows = header.get("assumptions")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("count"), int) and "thing" in row and "text" in row:
            yield Assumption(**{name: row[name] for name in names if name in row})


def of_tool_times(programs: Iterable[Program]) -> Assumption:
    """Return how many tool calls of the programs have no duration."""
    calls = (call for program in programs for turn in program.turns for call in turn.tool_calls)
    return replace(NO_DURATION, count=sum(call.duration_s is None for call in calls))


def of_parents(programs: Sequence[Program]) -> Assumption:
    """Return how many programs were started by another one at a turn that is unknown or is not played."""
    children, started = (p.parent_id is not None for p in programs), len(parents_of(programs))
    text = "the parent's turn that started it is unknown or not played: started by --arrivals"
    return Assumption("sub-program", text, sum(children) - started)
