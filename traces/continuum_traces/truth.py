"""How much of a trace its source counted: exact, estimated or unknown, of each number. A trace's header carries it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from continuum_traces.names import counted

PROMPT, OUTPUT, CACHED, TOOLS = "prompt", "output", "cached", "tools"
KINDS = ("exact", "estimated", "unknown")
_NAMES = {PROMPT: "prompts", OUTPUT: "outputs", CACHED: "cached tokens", TOOLS: "tool times"}
FIELD = "counts"
"""The header's field."""


@dataclass(slots=True)
class Truth:
    """How many numbers of a trace are exact, estimated and unknown."""

    programs: int = 0
    turns: int = 0
    counts: dict[str, list[int]] = field(default_factory=lambda: {name: [0, 0, 0] for name in _NAMES})
    """For each kind of number, as many as are in ``KINDS``. Prompts, outputs and cached tokens are one of a turn."""

    def add(self, name: str, estimated: bool, known: bool = True) -> None:
        self.counts[name][1 if estimated and known else 0 if known else 2] += 1

    def include(self, other: Truth) -> None:
        self.programs += other.programs
        self.turns += other.turns
        for name, numbers in other.counts.items():
            self.counts[name] = [a + b for a, b in zip(self.counts[name], numbers, strict=True)]

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each kind of number, with its name."""
        for name, numbers in self.counts.items():
            yield _NAMES[name], *(f"{number:,}" for number in numbers)

    def line(self) -> str:
        """Return in one line what is not exact; empty if everything is."""
        parts = []
        for name, (exact, *rest) in self.counts.items():
            said = [f"{n:,} {kind}" for n, kind in zip(rest, KINDS[1:], strict=True) if n]
            if said:
                parts.append(f"{_NAMES[name]}: {', '.join(said)} of {exact + sum(rest):,}")
        return f"of {counted(self.turns, 'turn')}, {'; '.join(parts)}" if parts else ""

    def as_json(self) -> dict[str, Any]:
        return {"programs": self.programs, "turns": self.turns, **self.counts}


def from_header(header: Mapping[str, Any]) -> Truth | None:
    """Return what the header of a trace says; None: nothing, or something malformed."""
    data = header.get(FIELD)
    if not isinstance(data, dict):
        return None
    numbers = [data.get("programs"), data.get("turns"), *(data.get(name) for name in _NAMES)]
    whole = numbers[:2] + [each for row in numbers[2:] if isinstance(row, list) for each in row]
    if len(whole) != 2 + len(_NAMES) * len(KINDS) or not all(type(each) is int and each >= 0 for each in whole):
        return None
    rows = {name: list(data[name]) for name in _NAMES}
    return Truth(data["programs"], data["turns"], rows) if {*map(len, rows.values())} == {len(KINDS)} else None
