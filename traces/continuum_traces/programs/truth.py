"""How much of a trace its source counted: exact, estimated or unknown, of each number. A trace's header carries it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from continuum_traces.names import counted

PROMPT, OUTPUT, CACHED, TOOLS = "prompt", "output", "cached", "tools"
KINDS = ("exact", "estimated", "unknown")
_NAMES = {PROMPT: "prompts", OUTPUT: "outputs", CACHED: "cached tokens", TOOLS: "tool times"}
FIELD, RULES = "counts", "estimated_from"
"""The header's field, and within it the field of ``Truth.rules``."""
COLUMNS = (*KINDS, "estimated from")
"""The columns of ``Truth.rows`` after the name."""


@dataclass(slots=True)
class Truth:
    """How many numbers of a trace are exact, estimated and unknown."""

    programs: int = 0
    turns: int = 0
    counts: dict[str, list[int]] = field(default_factory=lambda: {name: [0, 0, 0] for name in _NAMES})
    """For each kind of number, as many as are in ``KINDS``. Prompts, outputs and cached tokens are one of a turn."""
    rules: dict[str, list[str]] = field(default_factory=dict)
    """For each kind of number, the rules by which some are estimated. A rule is a short text, and is there once."""

    def add(self, name: str, rule: str | None, known: bool = True) -> None:
        """Count a number.

        Args:
            name: its kind.
            rule: how it was estimated; None: the source counts it.
            known: False if the source does not have it; the rule then says nothing.
        """
        self.counts[name][2 if not known else 0 if rule is None else 1] += 1
        if rule is not None and known:
            self._note(name, rule)

    def _note(self, name: str, rule: str) -> None:
        rules = self.rules.setdefault(name, [])
        if rule not in rules:
            rules.append(rule)

    def include(self, other: Truth) -> None:
        self.programs += other.programs
        self.turns += other.turns
        for name, numbers in other.counts.items():
            self.counts[name] = [a + b for a, b in zip(self.counts[name], numbers, strict=True)]
        for name, rules in other.rules.items():
            for rule in rules:
                self._note(name, rule)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield a row for each kind of number: its name, how many are exact, estimated and unknown, and the rules."""
        for name, numbers in self.counts.items():
            yield _NAMES[name], *(f"{number:,}" for number in numbers), "; ".join(self.rules.get(name, ()))

    def line(self) -> str:
        """Return in one line what is not exact; empty if everything is."""
        parts = []
        for name, (exact, *rest) in self.counts.items():
            said = [f"{n:,} {kind}" for n, kind in zip(rest, KINDS[1:], strict=True) if n]
            if said:
                parts.append(f"{_NAMES[name]}: {', '.join(said)} of {exact + sum(rest):,}")
        return f"of {counted(self.turns, 'turn')}, {'; '.join(parts)}" if parts else ""

    def as_json(self) -> dict[str, Any]:
        rules = {RULES: self.rules} if self.rules else {}
        return {"programs": self.programs, "turns": self.turns, **self.counts, **rules}


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
    if {*map(len, rows.values())} != {len(KINDS)}:
        return None
    given = data.get(RULES)
    rules = {name: given[name] for name in _NAMES if isinstance(given, dict) and isinstance(given.get(name), list)}
    return Truth(data["programs"], data["turns"], rows, {name: list(map(str, each)) for name, each in rules.items()})
