"""Find the programs of a folder that are one run in several files: a job's trajectory beside the agent's own session, a
report beside the log of its requests, a copy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from continuum_traces.programs.assumptions import Assumptions
from continuum_traces.programs.truth import Truth
from continuum_traces.schema import Program

TWICE = "is in several files: counted once, from the file that says most of it"
LEAST_TURNS = 2
"""Programs of different formats are one run if all their token counts are equal, from so many turns on."""
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Read:
    """A program, and where it was read."""

    program: Program
    form: str
    response_ids: frozenset[str] = frozenset()
    truth: Truth | None = None
    """What of its numbers is exact; None: the source does not say."""


def without_repeats(programs: Sequence[Read], assumptions: Assumptions) -> list[Read]:
    """Return the programs in their order, each run once: of equal ones that with most known tool times, then with most
    counts of cached tokens, a known arrival, and most turns. Sub-agents of a program that is left out have the kept one
    as their parent."""
    same: dict[int, Read] = {}
    kept = _Kept()
    for each in sorted(programs, key=_richness, reverse=True):
        twin = kept.twin(each)
        if twin is None:
            kept.add(each)
        else:
            same[id(each)] = twin
            names = f"{each.program.program_id}: {twin.form}, {each.form}"
            assumptions.assume("program", TWICE, example=names)
    renamed = {
        each.program.program_id: same[id(each)].program.program_id
        for each in programs
        if id(each) in same and each.program.program_id != same[id(each)].program.program_id
    }
    return [_with_parent(each, renamed) for each in programs if id(each) not in same]


def _with_parent(read: Read, renamed: Mapping[str, str]) -> Read:
    parent_id = renamed.get(read.program.parent_id or "")
    return read if parent_id is None else replace(read, program=replace(read.program, parent_id=parent_id))


class _Kept:
    """The programs that were kept, by what can be equal."""

    def __init__(self) -> None:
        self._by_key: dict[object, list[Read]] = {}

    def add(self, read: Read) -> None:
        for key in _keys(read):
            self._by_key.setdefault(key, []).append(read)

    def twin(self, read: Read) -> Read | None:
        for key in _keys(read):
            for other in self._by_key.get(key, ()):
                if _same(read, other):
                    return other
        return None


def _keys(read: Read) -> list[object]:
    """Return what can be equal in two files of one run."""
    lengths = [(turn.output_tokens, prompt) for turn, prompt in zip(read.program.turns, _prompts(read), strict=True)]
    return [("id", read.program.program_id), ("lengths", *lengths), *(("response", each) for each in read.response_ids)]


def _prompts(read: Read) -> Sequence[int]:
    return read.program.prompt_tokens()


def _same(one: Read, other: Read) -> bool:
    """Return whether two programs are one run. Equal names of answers, or of programs in different formats, count if
    the prompts are alike, too: hand-written names, and tasks that ran twice, are equal as well."""
    named = one.program.program_id == other.program.program_id
    if one.form == other.form and not named:
        return False
    mine, theirs = Counter(_prompts(one)), Counter(_prompts(other))
    alike = 2 * sum((mine & theirs).values()) >= min(mine.total(), theirs.total())
    if one.response_ids & other.response_ids and (named or one.form != other.form):
        return alike
    if one.form == other.form:
        return False
    if named and (alike or _UUID.fullmatch(one.program.program_id) is not None):
        return True
    return len(one.program.turns) >= LEAST_TURNS and list(_prompts(one)) == list(_prompts(other))


def _richness(read: Read) -> tuple[int, int, bool, int]:
    turns = read.program.turns
    timed = sum(call.duration_s is not None for turn in turns for call in turn.tool_calls)
    cached = sum(turn.cached_tokens is not None for turn in turns)
    return timed, cached, read.program.arrival_s is not None, len(turns)
