"""Which programs of a source open with the same text, where the source has the text of their first prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from continuum_traces.importers.usage import digest, estimate_tokens
from continuum_traces.schema import Program

PREFIX_ESTIMATED = "shared prefix estimated at 4 characters a token"
HEAD_CHARS = 256
"""First messages that differ are compared where they agree in so many characters: 16 tokens a block, four blocks."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A program, and the messages of its first prompt in the order in which its model reads them."""

    program: Program
    messages: tuple[str, ...]


def with_shared_prefixes(opened: Iterable[Opened]) -> Iterator[Program]:
    """The programs in their order, each with what it has in common with the others of its group.

    A group has the same first message (a system prompt), or first messages with the same head (a template). Where all
    of a group have the same first prompt its length is the source's own; a part of it is estimated, and ``source`` says
    so.
    """
    kept = list(opened)
    alike = Counter(_first(one) for one in kept)
    keys = [_first(one) if alike[_first(one)] > 1 else _first(one)[:HEAD_CHARS] for one in kept]
    groups: dict[str, list[Opened]] = {}
    for key, one in zip(keys, kept, strict=True):
        groups.setdefault(key, []).append(one)
    prefixes = {key: _common(group) for key, group in groups.items() if len(group) > 1 and len(key) > 0}
    for key, one in zip(keys, kept, strict=True):
        yield _behind(one.program, prefixes.get(key))


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
    """Of the first and the last in the order of the alphabet it is that of all between."""
    differs = (index for index, (ours, theirs) in enumerate(zip(one, other, strict=False)) if ours != theirs)
    return one[: next(differs, min(len(one), len(other)))]


def _behind(program: Program, prefix: _Prefix | None) -> Program:
    if prefix is None:
        return program
    source = f"{program.source}, {PREFIX_ESTIMATED}" if prefix.estimated else program.source
    return replace(program, source=source, shared_prefix_id=prefix.id, shared_prefix_tokens=prefix.tokens)
