"""Prompts as token ids, and block hashes that are computed once per token, not once per turn.

Ids are unique per (program, turn, kind) instead of drawn from a vocabulary: the scheduler only compares prefixes, and
two prompts here share a prefix exactly where the trace says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from continuum_traces.schema import Program

INPUT, REASONING, ANSWER = 0, 1, 2
_TURNS = 1 << 14

BlockHasher = Callable[[Any], list[bytes]]


class Conversation:
    """One program's growing context.

    Args:
        program: the trace.
        number: distinguishes this play of the program from every other in the run.
        shared_prefixes: ids of shared prefixes, common to all conversations of the run.
    """

    def __init__(self, program: Program, number: int, shared_prefixes: dict[str, int], block_size: int) -> None:
        self.program = program
        self.turn = 0
        self.prompt: list[int] = []
        self.output: list[int] = []
        self._number = number
        self._block_size = block_size
        self._hashes: list[bytes] = []
        """Block hashes of the leading part of ``prompt`` known from the turn before."""
        if program.shared_prefix_id is not None:
            shared = shared_prefixes.setdefault(program.shared_prefix_id, -1 - len(shared_prefixes))
            self.prompt = [shared] * program.shared_prefix_tokens

    def _id(self, kind: int) -> int:
        return 1 + ((self._number * _TURNS + self.turn) << 2 | kind)

    def next_prompt(self) -> None:
        """Make ``prompt`` and ``output`` those of the current turn."""
        turn = self.program.turns[self.turn]
        if turn.kept_tokens is not None:
            del self.prompt[turn.kept_tokens :]
            del self._hashes[turn.kept_tokens // self._block_size :]
        new = turn.new_input_tokens - (len(self.prompt) if self.turn == 0 else 0)
        self.prompt = [*self.prompt, *([self._id(INPUT)] * max(0, new))]
        reasoning = turn.output_tokens - turn.carried
        self.output = [self._id(REASONING)] * reasoning + [self._id(ANSWER)] * turn.carried

    def hasher(self) -> BlockHasher:
        """The block hasher for the current turn's request; starts from what is known."""
        return partial(_hash_blocks, self._hashes, self._block_size)

    def finished(self, block_hashes: list[bytes]) -> None:
        """The current turn's request ended with these hashes: move on."""
        turn = self.program.turns[self.turn]
        common = len(self.prompt) + (turn.carried if turn.carried == turn.output_tokens else 0)
        self._hashes = block_hashes[: common // self._block_size]
        self.prompt = self.prompt + self.output[turn.output_tokens - turn.carried :]
        self.turn += 1


def _hash_blocks(known: list[bytes], block_size: int, request: Any) -> list[bytes]:
    """Hashes of the request's full blocks that have none yet; each covers its whole prefix."""
    done = len(request.block_hashes)
    tokens: list[int] = request._all_token_ids
    if (done + 1) * block_size > len(tokens):
        return []
    new = list(known) if done == 0 else []
    previous = new[-1] if new else (request.block_hashes[-1] if done else b"")
    for start in range((done + len(new)) * block_size, len(tokens) - block_size + 1, block_size):
        # Python's hash of a tuple of ints and bytes-free values is the same in every process.
        value = hash((int.from_bytes(previous, "little"), *tokens[start : start + block_size]))
        previous = (value & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
        new.append(previous)
    return new
