"""Counts of distinct KV blocks, of which programs may share some."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence


class DistinctBlocks:
    """The number of holders of each block. A call takes O(1) per block."""

    def __init__(self) -> None:
        self._holders: dict[Hashable, int] = {}
        self.repeats = 0
        """Sum of the blocks of all holders, minus the number of distinct blocks."""

    def __len__(self) -> int:
        """Number of distinct blocks."""
        return len(self._holders)

    def __contains__(self, block: Hashable) -> bool:
        return block in self._holders

    def shared(self, block: Hashable) -> bool:
        """Whether at least two holders have the block."""
        return self._holders.get(block, 0) > 1

    def new(self, blocks: Sequence[Hashable]) -> int:
        """Return the number of these blocks that have no holder."""
        return len(blocks) - sum(map(self._holders.__contains__, blocks))

    def add(self, blocks: Sequence[Hashable]) -> None:
        """Add a holder to each block. The blocks must be distinct."""
        held = self._holders
        if held.keys().isdisjoint(blocks):
            held.update(dict.fromkeys(blocks, 1))
            return
        for block in blocks:
            count = held.get(block, 0)
            held[block] = count + 1
            if count:
                self.repeats += 1

    def remove(self, blocks: Sequence[Hashable]) -> None:
        """Remove a holder from each block. The blocks must have been added."""
        held = self._holders
        if not self.repeats:
            for block in blocks:
                del held[block]
            return
        for block in blocks:
            count = held[block] - 1
            if count:
                held[block] = count
                self.repeats -= 1
            else:
                del held[block]


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
        """Set the program's context. This takes O(new blocks) if the context only grew."""
        chain = self._chains.setdefault(name, [])
        length = len(chain)
        if length > len(blocks) or (length and chain[-1] != blocks[length - 1]):
            self._blocks.remove(chain)
            chain.clear()
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
        return bisect_left(self._chains.get(name, []), True, key=lambda block: not self._blocks.shared(block))
