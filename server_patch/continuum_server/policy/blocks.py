"""KV blocks counted once, however many programs share them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence


class DistinctBlocks:
    """Counts the holders of each block. A call takes O(1) per block."""

    def __init__(self) -> None:
        self._holders: dict[Hashable, int] = {}
        self.repeats = 0
        """Blocks of all holders added up, minus the number of distinct blocks."""

    def __len__(self) -> int:
        """Number of distinct blocks."""
        return len(self._holders)

    def __contains__(self, block: Hashable) -> bool:
        return block in self._holders

    def shared(self, block: Hashable) -> bool:
        """Whether at least two holders have the block."""
        return self._holders.get(block, 0) > 1

    def new(self, blocks: Sequence[Hashable]) -> int:
        """How many of these blocks have no holder yet."""
        held = self._holders
        return len(blocks) if held.keys().isdisjoint(blocks) else len(blocks) - sum(map(held.__contains__, blocks))

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
        """Remove a holder from each block; the blocks must have been added."""
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
    """Contexts of several programs as chains of block hashes, where equal prefixes have equal hashes.

    A block's hash stands for the whole prefix up to that block. So two chains share a prefix, and bisection finds its
    end.
    """

    def __init__(self) -> None:
        self._blocks = DistinctBlocks()
        self._chains: dict[str, list[Hashable]] = {}

    @property
    def repeats(self) -> int:
        """Blocks that are counted too often if all contexts are added up."""
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
        """Number of leading blocks that some program here has."""
        return bisect_left(blocks, True, key=lambda block: block not in self._blocks)

    def shared(self, name: str) -> int:
        """Number of leading blocks of that program's context that another program has too."""
        return bisect_left(self._chains.get(name, []), True, key=lambda block: not self._blocks.shared(block))
