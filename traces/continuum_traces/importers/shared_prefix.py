"""Find the programs whose first prompts begin with the same text, in sources that contain these prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix

from continuum_traces.importers.usage import estimate_tokens
from continuum_traces.lines import digest
from continuum_traces.schema import Program

PREFIX_ESTIMATED = "shared prefix estimated at 4 characters a token"
HEAD_CHARS = 256
"""Different first messages are one template if their first 256 characters (four blocks of 16 tokens) agree."""


def with_shared_prefixes(programs: Sequence[Program], messages: Sequence[Sequence[str]]) -> Iterator[Program]:
    """Yield the programs in their order, each with the prefix that it shares with the other programs of its group.

    Args:
        programs: the programs; those that have no turns, or no messages, stay as they are.
        messages: the texts of the messages in each program's first prompt.

    The programs of a group have the same first message (a system prompt), or first messages that begin alike (a
    template). If the whole first prompts are equal, the prefix has the length that the source reports. If only a part
    of the prompts is equal, its length is estimated, and ``source`` says so.
    """
    firsts = [texts[0] if texts and program.turns else "" for program, texts in zip(programs, messages, strict=True)]
    alike = Counter(firsts)
    keys = [first if alike[first] > 1 else first[:HEAD_CHARS] for first in firsts]
    groups: dict[str, list[int]] = {}
    for number, key in enumerate(keys):
        groups.setdefault(key, []).append(number)
    prefixes = {
        key: _common_prefix([programs[n] for n in group], ["\n".join(messages[n]) for n in group])
        for key, group in groups.items()
        if key and len(group) > 1
    }
    for key, program in zip(keys, programs, strict=True):
        yield _with_prefix(program, prefixes[key]) if key in prefixes else program


@dataclass(frozen=True, slots=True)
class _Prefix:
    id: str
    tokens: int
    estimated: bool


def _common_prefix(programs: Sequence[Program], texts: Sequence[str]) -> _Prefix:
    text = commonprefix(texts)  # noqa: RUF071 - characters are compared, not path components
    shortest = min(program.turns[0].new_input_tokens for program in programs)
    whole = all(other == text for other in texts)
    return _Prefix(digest(text), shortest if whole else min(shortest, estimate_tokens(text)), not whole)


def _with_prefix(program: Program, prefix: _Prefix) -> Program:
    source = f"{program.source}, {PREFIX_ESTIMATED}" if prefix.estimated else program.source
    return replace(program, source=source, shared_prefix_id=prefix.id, shared_prefix_tokens=prefix.tokens)
