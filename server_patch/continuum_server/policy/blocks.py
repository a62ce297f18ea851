"""Counts of distinct KV blocks, of which programs may share some."""

from __future__ import annotations

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
