"""KV blocks counted once, however many programs share them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence


class DistinctBlocks:
    """How many holders each block has. O(1) per block of a call."""

    def __init__(self) -> None:
        self._holders: dict[Hashable, int] = {}
        self.repeats = 0
        """Blocks of all holders together, less the distinct ones."""

    def __len__(self) -> int:
        """Distinct blocks."""
        return len(self._holders)

    def __contains__(self, block: Hashable) -> bool:
        return block in self._holders

    def shared(self, block: Hashable) -> bool:
        """Whether two holders or more have it."""
        return self._holders.get(block, 0) > 1

    def new(self, blocks: Iterable[Hashable]) -> int:
        """Of these, how many nobody has."""
        held = self._holders
        return sum(block not in held for block in blocks)

    def add(self, blocks: Iterable[Hashable]) -> None:
        """One more holder of each."""
        held = self._holders
        for block in blocks:
            count = held.get(block, 0)
            held[block] = count + 1
            if count:
                self.repeats += 1

    def remove(self, blocks: Iterable[Hashable]) -> None:
        """One holder less of each; they must have been added."""
        held = self._holders
        for block in blocks:
            count = held[block] - 1
            if count:
                held[block] = count
                self.repeats -= 1
            else:
                del held[block]


class Contexts:
    """Contexts of several programs as chains of block hashes, where equal prefixes have equal hashes.

    A chain's hash stands for all of the prefix before it. So what two chains share is a prefix of both, and its end is
    found by bisection.
    """

    def __init__(self) -> None:
        self._blocks = DistinctBlocks()
        self._chains: dict[str, list[Hashable]] = {}

    @property
    def repeats(self) -> int:
        """Blocks that would be counted too often if whole contexts were added up."""
        return self._blocks.repeats

    def put(self, name: str, blocks: Sequence[Hashable]) -> None:
        """The program's context now; O(blocks that are new since the last call) where it only grew."""
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
        """Leading blocks that some program here has."""
        return bisect_left(blocks, True, key=lambda block: block not in self._blocks)

    def shared(self, name: str) -> int:
        """Leading blocks of that program's context that another one has too."""
        return bisect_left(self._chains.get(name, []), True, key=lambda block: not self._blocks.shared(block))
