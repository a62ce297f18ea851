"""Prompts whose source names their blocks by ids (``hash_ids``): equal ids mean equal blocks behind equal prompts."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from continuum_traces.assumptions import Assumptions
from continuum_traces.grouped import grouped
from continuum_traces.importers.usage import Imported, RequestUsage, turns_from_usage
from continuum_traces.schema import Program

BRANCHES = "shared by prompts of several programs, not kept: prompts branch more than once"
Ids = Sequence[Hashable]
Member = tuple[int, Ids]
"""The index of a program, and the ids of its first prompt."""


class SharedBlocks:
    """What the first prompts of programs share. It is made of all programs, of which it keeps only ids and sizes."""

    def __init__(self, described: Iterable[Imported], assumptions: Assumptions) -> None:
        """Look at the programs once.

        A program has one shared prefix, so where prompts branch more than once a part of what they share is lost;
        ``assumptions`` get how much.
        """
        firsts: list[Member] = []
        largest = 1
        for number, each in enumerate(described):
            largest = max(largest, _block_tokens(each))
            if each.ids and each.ids[0]:
                firsts.append((number, _compact(each.ids[0])))
        if not all(isinstance(ids, array) for _, ids in firsts):
            firsts = [(number, tuple(ids)) for number, ids in firsts]
        saved, groups = _grouped(firsts)
        assumptions.assume("block", BRANCHES, _repeated(firsts) - saved)
        self._shared = {n: (f"blocks-{g}", blocks) for g, group in enumerate(groups) for n, blocks in group if blocks}
        self._block_tokens = 1 << (largest - 1).bit_length()
        """The smallest power of two with which the ids cover every prompt. Most formats do not name it."""

    def program(self, number: int, each: Imported, assumptions: Assumptions) -> Program:
        """Return the program with this number, with its turns, what each prompt keeps of the one before, and its shared
        prefix."""
        block_tokens = each.block_tokens or self._block_tokens
        turns = tuple(turns_from_usage(_with_kept(each, block_tokens), assumptions))
        if number not in self._shared or not turns:
            return replace(each.program, turns=turns)
        name, blocks = self._shared[number]
        tokens = min(blocks * block_tokens, turns[0].new_input_tokens)
        return replace(each.program, turns=turns, shared_prefix_id=name, shared_prefix_tokens=tokens)


def _compact(ids: Ids) -> Ids:
    try:
        return array("q", cast(Sequence[int], ids))
    except (TypeError, OverflowError):
        return tuple(ids)


def alike(ours: Ids, theirs: Ids) -> int:
    """Return the number of leading ids that are equal."""
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            return number
    return min(len(ours), len(theirs))


def _block_tokens(each: Imported) -> int:
    """Return the least tokens of a block with which the ids cover every prompt of the program."""
    return max((-(-request.prompt_tokens // len(ids)) for request, ids in _pairs(each) if ids), default=1)


def _pairs(each: Imported) -> Iterator[tuple[RequestUsage, Ids]]:
    return zip(each.requests, each.ids if each.ids is not None else [()] * len(each.requests), strict=True)


def _with_kept(each: Imported, block_tokens: int) -> Iterator[RequestUsage]:
    """Yield the requests, with the kept tokens of those that do not continue the prompt and the answer before."""
    before: tuple[RequestUsage, Ids] | None = None
    for request, ids in _pairs(each):
        kept = None
        if before is not None and ids and before[1]:
            prompt, blocks = before[0].prompt_tokens, alike(ids, before[1])
            if blocks < prompt // block_tokens:
                kept = blocks * block_tokens
            elif request.prompt_tokens <= prompt + before[0].output_tokens:
                kept = prompt
        yield request if kept is None else replace(request, kept_tokens=min(kept, request.prompt_tokens - 1))
        before = request, ids


def _repeated(members: Sequence[Member]) -> int:
    """Return how many of the blocks stand in an earlier program too: in sorted order, in the one before."""
    ordered = sorted((ids for _, ids in members), key=_any_order)
    return sum(alike(before, after) for before, after in pairwise(ordered))


def _any_order(ids: Ids) -> Any:
    return ids


def _grouped(members: Sequence[Member], depth: int = 0) -> tuple[int, list[list[tuple[int, int]]]]:
    """Divide programs into groups that share a prefix, so that most blocks are saved. All share ``depth`` blocks.

    Returns:
        The blocks saved, and for each group its programs, each with how many blocks it shares.
    """
    if len(members) < 2:
        return 0, []
    path = _path(members, depth)
    group = [(number, alike(ids, path)) for number, ids in members]
    together = sum(blocks for _, blocks in group) - max(blocks for _, blocks in group)
    if together == _repeated(members):
        return together, [group]
    while len(counts := Counter(ids[depth] for _, ids in members if len(ids) > depth)) < 2:
        depth += 1  # the programs part, since not all that they share is on one path
    several = (member for member in members if len(member[1]) > depth and counts[member[1][depth]] > 1)
    parts = grouped((ids[depth], (number, ids)) for number, ids in several)
    divided = [_grouped(part, depth + 1) for part in parts.values()]
    apart = sum(saved for saved, _ in divided)
    return (apart, [each for _, groups in divided for each in groups]) if apart > together else (together, [group])


def _path(members: Sequence[Member], depth: int) -> list[Hashable]:
    """Return the ids of the path that most programs take, as long as at least two take it."""
    path, rest = list(members[0][1][:depth]), members
    while following := Counter(ids[len(path)] for _, ids in rest if len(ids) > len(path)).most_common(1):
        if following[0][1] < 2:
            break
        path.append(following[0][0])
        rest = [(number, ids) for number, ids in rest if len(ids) >= len(path) and ids[len(path) - 1] == path[-1]]
    return path
