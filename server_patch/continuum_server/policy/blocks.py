"""Counts of distinct KV blocks, of which programs may share some."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence


class DistinctBlocks:
    """The number of holders of each block. A call takes O(1) per block."""

    def __init__(self) -> None:
        self._held: set[Hashable] = set()
        self._further: Counter[Hashable] = Counter()
        """Number of holders minus one, of the blocks that have at least two holders."""
        self.repeats = 0
        """Sum of the blocks of all holders, minus the number of distinct blocks."""

    def __len__(self) -> int:
        """Number of distinct blocks."""
        return len(self._held)

    def __contains__(self, block: Hashable) -> bool:
        return block in self._held

    def shared(self, block: Hashable) -> bool:
        """Whether at least two holders have the block."""
        return block in self._further

    def new(self, blocks: Sequence[Hashable]) -> int:
        """Return the number of these blocks that have no holder."""
        return len(blocks) - len(self._held.intersection(blocks))

    def add(self, blocks: Sequence[Hashable]) -> None:
        """Add a holder to each block. The blocks must be distinct."""
        again = self._held.intersection(blocks)
        self._held.update(blocks)
        if again:
            self._further.update(again)
            self.repeats += len(again)

    def remove(self, blocks: Sequence[Hashable]) -> None:
        """Remove a holder from each block. The blocks must have been added."""
        self._held.difference_update(blocks)
        if not self.repeats:
            return
        again = self._further.keys() & blocks
        self._held.update(again)
        self.repeats -= len(again)
        for block in again:
            self._further[block] -= 1
            if not self._further[block]:
                del self._further[block]


class Contexts:
    """The contexts of several programs as lists of block hashes.

    A block's hash identifies the whole prefix up to that block. So two lists with a common element are equal up to this
    element, and bisection finds the end of the common prefix.
    """

    def __init__(self) -> None:
        self._blocks = DistinctBlocks()
        self._chains: dict[str, list[Hashable]] = {}

    @property
    def repeats(self) -> int:
        """Sum of the blocks of all contexts, minus the number of distinct blocks."""
        return self._blocks.repeats

    def put(self, name: str, blocks: Sequence[Hashable]) -> None:
        """Set the program's context. This takes O(blocks that it does not share with the context before)."""
        chain = self._chains.setdefault(name, [])
        most = min(len(chain), len(blocks))
        if most < len(chain) or (most and chain[-1] != blocks[most - 1]):
            kept = bisect_left(range(most), True, key=lambda index: chain[index] != blocks[index])
            self._blocks.remove(chain[kept:])
            del chain[kept:]
        grown = blocks[len(chain) :]
        self._blocks.add(grown)
        chain.extend(grown)

    def drop(self, name: str) -> None:
        self._blocks.remove(self._chains.pop(name, ()))

    def common(self, blocks: Sequence[Hashable]) -> int:
        """Return the number of leading blocks that a program has already."""
        return bisect_left(blocks, True, key=lambda block: block not in self._blocks)

    def shared(self, name: str) -> int:
        """Return the number of leading blocks of the program's context that another program has too."""
        if not self.repeats:
            return 0
        return bisect_left(self._chains.get(name, []), True, key=lambda block: not self._blocks.shared(block))
