"""Prompts whose source names their blocks by ids (``hash_ids``): equal ids mean equal blocks behind equal prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from continuum_traces.assumptions import Assumptions
from continuum_traces.grouped import grouped
from continuum_traces.importers.usage import Imported, RequestUsage, turns_from_usage
from continuum_traces.schema import Program

BRANCHES = "shared by prompts of several programs, not kept: prompts branch more than once"
Ids = Sequence[Hashable]
Member = tuple[int, Ids]
"""The index of a program, and the ids of its first prompt."""


def programs_of(found: Sequence[Imported], assumptions: Assumptions) -> Iterator[Program]:
    """Yield the programs with their turns, the tokens that each prompt keeps of the one before, and shared prefixes.

    A program has one shared prefix, so where prompts branch more than once a part of what they share is lost;
    ``assumptions`` get how much.
    """
    inferred = _block_tokens(found)
    firsts = [(number, each.ids[0]) for number, each in enumerate(found) if each.ids and each.ids[0]]
    saved, groups = _grouped(firsts)
    assumptions.assume("block", BRANCHES, _repeated(firsts) - saved)
    shared = {n: (f"blocks-{g}", blocks) for g, group in enumerate(groups) for n, blocks in group if blocks}
    for number, each in enumerate(found):
        block_tokens = each.block_tokens or inferred
        program = replace(each.program, turns=tuple(turns_from_usage(_with_kept(each, block_tokens), assumptions)))
        if number in shared and program.turns:
            name, blocks = shared[number]
            tokens = min(blocks * block_tokens, program.turns[0].new_input_tokens)
            program = replace(program, shared_prefix_id=name, shared_prefix_tokens=tokens)
        yield program


def alike(ours: Ids, theirs: Ids) -> int:
    """Return the number of leading ids that are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))


def _block_tokens(found: Iterable[Imported]) -> int:
    """Return the smallest power of two with which the ids cover every prompt. Most formats do not name it."""
    sizes = (-(-request.prompt_tokens // len(ids)) for each in found for request, ids in _pairs(each) if ids)
    return int(1 << (max(1, max(sizes, default=1)) - 1).bit_length())


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
    """Return how many of the blocks stand in an earlier program too."""
    nodes: dict[tuple[int, Hashable], int] = {}
    total = 0
    for _, ids in members:
        node = 0
        for block in ids:
            node = nodes.setdefault((node, block), len(nodes) + 1)
        total += len(ids)
    return total - len(nodes)


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
    parts: dict[Hashable, list[Member]] = {}
    while len(parts) < 2:  # the programs part, since not all that they share is on one path
        parts = grouped((ids[depth], (number, ids)) for number, ids in members if len(ids) > depth)
        depth += 1
    divided = [_grouped(part, depth) for part in parts.values()]
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
