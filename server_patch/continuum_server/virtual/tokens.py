"""Prompts as token ids, and block hashes that are computed only once for a prefix that the next turn repeats.

Token ids are not drawn from a vocabulary: each (program, turn, kind) has an id of its own. The scheduler only compares
prefixes, and two prompts have a common prefix exactly where the trace says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any

from continuum_traces.schema import Turn

INPUT, REASONING, ANSWER = 0, 1, 2
_TURNS = 1 << 14

BlockHasher = Callable[[Any], list[bytes]]


class TokenContext:
    """The context of a play as token ids, with block hashes of its leading part (a ``conversation.Context``).

    Args:
        number: the number of the play, unique in the run.
        block_size: number of tokens in a KV block.
        shared: the id of every token of the shared prefix.
        shared_tokens: the length of the shared prefix.
    """

    def __init__(self, number: int, block_size: int, shared: int = 0, shared_tokens: int = 0) -> None:
        self.prompt = [shared] * shared_tokens
        self.output: list[int] = []
        """The tokens that the model generates in the current turn."""
        self._number = number
        self._block_size = block_size
        self._hashes: list[bytes] = []
        """Block hashes of the leading part of ``prompt``, from the turn before."""

    def keep(self, tokens: int) -> None:
        del self.prompt[tokens:]
        del self._hashes[tokens // self._block_size :]

    def add_input(self, index: int, turn: Turn, tokens: int) -> None:
        """Add the turn's input to ``prompt``, and set ``output``."""
        self.prompt += [self._id(index, INPUT)] * tokens
        reasoning = turn.output_tokens - turn.carried
        self.output = [self._id(index, REASONING)] * reasoning + [self._id(index, ANSWER)] * turn.carried

    def add_output(self, index: int, turn: Turn, answer: list[bytes]) -> None:
        """Add the turn's output to ``prompt``.

        Args:
            answer: the block hashes of the turn's request at its end.
        """
        common = len(self.prompt) + (turn.carried if turn.carried == turn.output_tokens else 0)
        self._hashes = answer[: common // self._block_size]
        self.prompt += self.output[turn.output_tokens - turn.carried :]

    def hasher(self) -> BlockHasher:
        """Return the block hasher of the current turn's request, which continues from the known hashes."""
        return partial(_hash_blocks, self._hashes, self._block_size)

    def _id(self, index: int, kind: int) -> int:
        return 1 + ((self._number * _TURNS + index) << 2 | kind)


def shared_token(prefix_id: str) -> int:
    """Return the id of every token of a shared prefix. It is negative, and the same in every run."""
    return -1 - int.from_bytes(blake2b(prefix_id.encode(), digest_size=6).digest(), "big")


def _hash_blocks(leading: list[bytes], block_size: int, request: Any) -> list[bytes]:
    """Return the hashes of the request's full blocks that have none. Each hash covers the whole prefix."""
    done = len(request.block_hashes)
    if (done + 1) * block_size > request.num_tokens:
        return []
    new = list(leading) if done == 0 else []
    last = new[-1] if new else (request.block_hashes[-1] if done else b"")
    previous = int.from_bytes(last, "little")
    tokens = iter(request.all_token_ids[(done + len(new)) * block_size :])
    for block in zip(*[tokens] * block_size, strict=False):
        # Python's hash of a tuple of ints is the same in every process.
        previous = hash((previous, *block)) & 0xFFFFFFFFFFFFFFFF
        new.append(previous.to_bytes(8, "little"))
    return new
