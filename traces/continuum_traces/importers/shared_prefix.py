"""Find the programs whose first prompts begin with the same text, in sources that contain these prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from os.path import commonprefix

from continuum_traces.importers.usage import digest, estimate_tokens
from continuum_traces.schema import Program

PREFIX_ESTIMATED = "shared prefix estimated at 4 characters a token"
HEAD_CHARS = 256
"""Different first messages are one template if their first 256 characters (four blocks of 16 tokens) agree."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A program, and the texts of the messages in its first prompt."""

    program: Program
    messages: tuple[str, ...]


def with_shared_prefixes(opened: Iterable[Opened]) -> Iterator[Program]:
    """Yield the programs in their order, each with the prefix that it shares with the other programs of its group.

    The programs of a group have the same first message (a system prompt), or first messages that begin alike (a
    template). If the whole first prompts are equal, the prefix has the length that the source reports. If only a part
    of the prompts is equal, its length is estimated, and ``source`` says so.
    """
    kept = list(opened)
    alike = Counter(_first_message(entry) for entry in kept if entry.program.turns)
    firsts = [_first_message(entry) for entry in kept]
    keys = [first if alike[first] > 1 else first[:HEAD_CHARS] for first in firsts]
    groups: dict[str, list[Opened]] = {}
    for key, entry in zip(keys, kept, strict=True):
        if entry.program.turns:
            groups.setdefault(key, []).append(entry)
    prefixes = {key: _common_prefix(group) for key, group in groups.items() if len(group) > 1 and len(key) > 0}
    for key, entry in zip(keys, kept, strict=True):
        prefix = prefixes.get(key) if entry.program.turns else None
        yield entry.program if prefix is None else _with_prefix(entry.program, prefix)


@dataclass(frozen=True, slots=True)
class _Prefix:
    id: str
    tokens: int
    estimated: bool


def _first_message(entry: Opened) -> str:
    return entry.messages[0] if entry.messages else ""


def _common_prefix(group: list[Opened]) -> _Prefix:
    texts = ["\n".join(entry.messages) for entry in group]
    text = commonprefix(texts)  # noqa: RUF071 - characters are compared, not path components
    shortest = min(entry.program.turns[0].new_input_tokens for entry in group)
    whole = all(other == text for other in texts)
    return _Prefix(digest(text), shortest if whole else min(shortest, estimate_tokens(text)), not whole)


def _with_prefix(program: Program, prefix: _Prefix) -> Program:
    source = f"{program.source}, {PREFIX_ESTIMATED}" if prefix.estimated else program.source
    return replace(program, source=source, shared_prefix_id=prefix.id, shared_prefix_tokens=prefix.tokens)
