"""The programs that ``working-set`` has admitted to memory, and how much room their contexts will need."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from continuum_server.policy.blocks import Contexts
from continuum_server.policy.estimate import Footprints

FOOTPRINTS = 256
"""Number of most recently finished programs from whose final contexts growth is forecast."""
SMALL = 4
"""A program is small beside another one if it is expected to be at most one part in so many of its size."""


class Inside:
    """The contexts of the programs inside, and how they are expected to grow.

    Args:
        limit_tokens: tokens that the contexts may fill together.
        block_size: tokens of a KV block.
    """

    def __init__(self, limit_tokens: float, block_size: int) -> None:
        self.tokens: dict[str, int] = {}
        """Each program's context in tokens, by its id."""
        self.footprints = Footprints(FOOTPRINTS)
        self._contexts = Contexts()
        self._limit_tokens = limit_tokens
        self._block_size = block_size

    def put(self, program_id: str, tokens: int, blocks: Sequence[Hashable] | None) -> None:
        """Add a program, or note its new context. ``blocks``: hashes of the context's blocks; None: as before."""
        self.tokens[program_id] = tokens
        if blocks is not None:
            self._contexts.put(program_id, blocks)

    def drop(self, program_id: str) -> bool:
        """Remove a program. Return False if it was not inside."""
        if self.tokens.pop(program_id, None) is None:
            return False
        self._contexts.drop(program_id)
        return True

    def shared_tokens(self, program_id: str) -> int:
        """Return the number of leading tokens of a program's context that another program inside has too."""
        return self._contexts.shared(program_id) * self._block_size

    def common_tokens(self, blocks: Sequence[Hashable] | None) -> int:
        """Return the number of leading tokens of a prompt that a program inside has."""
        return self._contexts.common(blocks or ()) * self._block_size

    def fit_now(self, tokens: int, common_tokens: int) -> bool:
        """Whether all contexts and a prompt of this size fit at present. Shared tokens count once."""
        return self._together([*self.tokens.values(), tokens], common_tokens) <= self._limit_tokens

    def overflow_share(self, tokens: int, common_tokens: int) -> float:
        """Return during which share of a newcomer's growth the contexts of all programs will not fit."""
        contexts = [*self.tokens.values(), tokens]
        own = [size - self.shared_tokens(name) for name, size in self.tokens.items()]
        together = self._together(contexts, common_tokens)
        return self.footprints.overflow_share(contexts, self._limit_tokens, [*own, tokens - common_tokens], together)

    def largest_tokens(self) -> int:
        """Return the largest context inside."""
        return max(self.tokens.values(), default=0)

    def small_beside(self, tokens: int, other_tokens: int) -> bool:
        """Whether a program with a prompt of ``tokens`` will be small beside one that has ``other_tokens``. It is not
        if no program is known that grew larger than its prompt."""
        final = self.footprints.final_tokens(tokens)
        return tokens < final and SMALL * final <= self.footprints.final_tokens(other_tokens)

    def delays(self, tokens: int, first_tokens: int) -> bool:
        """Whether a newcomer is expected to be in the way when the first program outside, with a prompt of
        ``first_tokens``, would fit without it.

        All contexts are assumed to grow at the same pace to their final size, and then to leave memory. A newcomer is
        not in the way if it has left by then, or if its final size fits beside the first program.
        """
        final, names = self.footprints.final_tokens, self.tokens.items()
        leaving = sorted((final(size) - size, size - self.shared_tokens(name)) for name, size in names)
        room, grown = self._limit_tokens - first_tokens - self._together([*self.tokens.values()], 0), 0.0
        for left, (growth, own) in zip(range(len(leaving), 0, -1), leaving, strict=True):
            if room >= 0.0:
                break
            room += own + growth - left * (growth - grown)
            grown = growth
        return final(tokens) - tokens > grown and final(tokens) > room

    def _together(self, contexts: Sequence[int], common_tokens: int) -> int:
        return sum(contexts) - self._contexts.repeats * self._block_size - common_tokens
