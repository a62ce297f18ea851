"""Finds the programs that begin with the same text, in sources that have the text of the first prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from continuum_traces.importers.usage import digest, estimate_tokens
from continuum_traces.schema import Program

PREFIX_ESTIMATED = "shared prefix estimated at 4 characters a token"
HEAD_CHARS = 256
"""Different first messages count as one template if they agree in so many characters (four blocks of 16 tokens)."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A program and the messages of its first prompt, in the order of the prompt."""

    program: Program
    messages: tuple[str, ...]


def with_shared_prefixes(opened: Iterable[Opened]) -> Iterator[Program]:
    """The programs in their order, each with the prefix that it shares with the others of its group.

    The programs of a group have the same first message (a system prompt), or first messages that begin alike (a
    template). If all have the same first prompt, the prefix has the length that the source says. The length of a part
    of the prompt is estimated, and ``source`` says so.
    """
    kept = list(opened)
    alike = Counter(_first(one) for one in kept if one.program.turns)
    keys = [_first(one) if alike[_first(one)] > 1 else _first(one)[:HEAD_CHARS] for one in kept]
    groups: dict[str, list[Opened]] = {}
    for key, one in zip(keys, kept, strict=True):
        if one.program.turns:
            groups.setdefault(key, []).append(one)
    prefixes = {key: _common(group) for key, group in groups.items() if len(group) > 1 and len(key) > 0}
    for key, one in zip(keys, kept, strict=True):
        yield _behind(one.program, prefixes.get(key) if one.program.turns else None)


@dataclass(frozen=True, slots=True)
class _Prefix:
    id: str
    tokens: int
    estimated: bool


def _first(one: Opened) -> str:
    return one.messages[0] if one.messages else ""


def _common(group: list[Opened]) -> _Prefix:
    texts = ["\n".join(one.messages) for one in group]
    text, shortest = _common_head(min(texts), max(texts)), min(one.program.turns[0].new_input_tokens for one in group)
    whole = all(other == text for other in texts)
    return _Prefix(digest(text), shortest if whole else min(shortest, estimate_tokens(text)), not whole)


def _common_head(one: str, other: str) -> str:
    """The common prefix of two texts. Every text between them in alphabetical order has it too."""
    differs = (index for index, (ours, theirs) in enumerate(zip(one, other, strict=False)) if ours != theirs)
    return one[: next(differs, min(len(one), len(other)))]


def _behind(program: Program, prefix: _Prefix | None) -> Program:
    if prefix is None:
        return program
    source = f"{program.source}, {PREFIX_ESTIMATED}" if prefix.estimated else program.source
    return replace(program, source=source, shared_prefix_id=prefix.id, shared_prefix_tokens=prefix.tokens)
