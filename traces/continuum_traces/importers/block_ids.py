"""Prompts whose source names their blocks by ids (``hash_ids``): equal ids mean equal blocks behind equal prompts."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from continuum_traces.importers.described import Imported, RequestUsage, turns_from_usage
from continuum_traces.programs.assumptions import Assumptions
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
        tree = _Tree(firsts)
        saved, groups = tree.groups(0, len(firsts))
        assumptions.assume("block", BRANCHES, tree.repeated() - saved)
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


def alike(ids: Ids, other_ids: Ids) -> int:
    """Return the number of leading ids that are equal."""
    for number, (mine, other) in enumerate(zip(ids, other_ids, strict=False)):
        if mine != other:
            return number
    return min(len(ids), len(other_ids))


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


class _Tree:
    """Programs in the order of their ids, so that those that share a prefix are neighbours."""

    def __init__(self, firsts: Sequence[Member]) -> None:
        ordered = sorted(firsts, key=_ids)
        self._numbers = [number for number, _ in ordered]
        self._lengths = [len(ids) for _, ids in ordered]
        self._common = [0, *(alike(before, after) for (_, before), (_, after) in pairwise(ordered))]
        """How many leading ids each shares with the one before."""

    def repeated(self) -> int:
        """Return how many of the blocks stand in an earlier program too."""
        return sum(self._common)

    def groups(self, low: int, high: int) -> tuple[int, list[list[tuple[int, int]]]]:
        """Divide the programs from ``low`` to ``high`` into groups that share a prefix, so that most blocks are saved.

        Returns:
            The blocks saved, and for each group its programs, each with how many blocks it shares.
        """
        if high - low < 2:
            return 0, []
        group = self._on_one_path(low, high)
        together = sum(blocks for _, blocks in group) - max(blocks for _, blocks in group)
        if together == sum(self._common[low + 1 : high]):
            return together, [group]
        divided = [self.groups(*part) for part in self._parts(low, high) if part[1] - part[0] > 1]
        apart = sum(saved for saved, _ in divided)
        return (apart, [each for _, groups in divided for each in groups]) if apart > together else (together, [group])

    def _on_one_path(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return the programs, each with how many ids it shares with the path that most take, at least two of them."""
        group: list[tuple[int, int]] = []
        while True:
            depth, parts = self._branches(low, high)
            first, last = max(parts, key=lambda part: part[1] - part[0], default=(low, low))
            if last - first < 2:
                return [*group, *((number, depth) for number in self._numbers[low:high])]
            group += [(number, depth) for number in self._numbers[low:first] + self._numbers[last:high]]
            low, high = first, last

    def _parts(self, low: int, high: int) -> list[tuple[int, int]]:
        """Return where the programs part first: those that go on with the same id stand together."""
        _, parts = self._branches(low, high)
        while len(parts) == 1 and parts[0][1] - parts[0][0] > 1:
            _, parts = self._branches(*parts[0])
        return parts

    def _branches(self, low: int, high: int) -> tuple[int, list[tuple[int, int]]]:
        """Return how many ids all share, and who goes on with the same id, in the order of the file."""
        depth = min(self._common[low + 1 : high])
        starts = [low, *(n for n in range(low + 1, high) if self._common[n] == depth), high]
        parts = [part for part in pairwise(starts) if self._lengths[part[0]] > depth]
        return depth, sorted(parts, key=lambda part: min(self._numbers[part[0] : part[1]]))


def _ids(member: Member) -> Any:
    return member[1]
