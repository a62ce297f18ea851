"""The KV cache groups of a model, by vLLM's rules (``vllm/v1/core/kv_cache_utils.py``, 0.32). Needs no vLLM.

vLLM divides a model's layers by kind into groups with equal numbers of layers. A block of the pool stores the KV of one
group's layers, so a context takes blocks of the one pool in every group. A test (``test_cache_groups.py``) compares
this module with vLLM's own functions.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

from continuum_server.step_times.specs import Model

Kind = Literal["full", "window", "state"]
STATES_HELD = 2
"""The blocks that a running request keeps in a group of states: the state that it reads, and the one that it writes."""
MLA_ALIGNMENT = 128
"""vLLM makes the blocks of models with MLA and states a multiple of so many tokens."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How a model's KV is divided into blocks."""

    kinds: tuple[Kind, ...]
    """The kind of each group: full attention, a sliding window, or the state of a recurrent layer."""
    block_size: int
    """Tokens of a block of full attention or of a window; tokens between two states that can be hit."""
    block_bytes: int
    """Bytes of a block of the pool on all GPUs together: one group's layers. The last group of a kind may have fewer
    layers, and wastes the rest."""
    window_tokens: int = 0
    states_held: int = STATES_HELD

    def blocks(self, tokens: int, step_tokens: int = 1) -> int:
        """Return the largest number of blocks that one running request with so many tokens takes, in all groups.

        Args:
            step_tokens: largest number of tokens that a step computes. A window's blocks are freed after the step.
        """
        size = self.block_size
        every = -(-tokens // size)
        in_window = min(every, -(-min(self.window_tokens - 1 + step_tokens, tokens) // size) + 1)
        held = {"full": every, "window": in_window, "state": min(every, STATES_HELD) + self.states_held - STATES_HELD}
        return sum(held[kind] for kind in self.kinds)

    def tokens(self, blocks: int, longest: int, step_tokens: int = 1) -> int:
        """Return the tokens of contexts of the longest length that fit into so many blocks."""
        if len(self.kinds) == 1:
            return blocks * self.block_size
        return blocks * longest // self.blocks(longest, step_tokens)

    def longest(self, blocks: int, most: int, step_tokens: int = 1) -> int:
        """Return the tokens of the longest request, of at most ``most`` tokens, that fits into so many blocks."""
        if len(self.kinds) == 1:
            return blocks * self.block_size
        return bisect_right(range(1, most + 1), blocks, key=lambda tokens: self.blocks(tokens, step_tokens))

    def pool(self, tokens: int, longest: int, step_tokens: int = 1) -> int:
        """Return the blocks of a pool of which ``tokens`` says so many tokens."""
        if len(self.kinds) == 1:
            return tokens // self.block_size
        return -(-tokens * self.blocks(longest, step_tokens) // longest)


def layout_of(model: Model, tensor_parallel: int = 1, block_size: int = 16, drafts: int = 0) -> CacheLayout:
    """Return the groups of a model on so many GPUs, for vLLM's ``--block-size``.

    Args:
        drafts: number of tokens that speculative decoding drafts. A request keeps a state for each of them.
    """
    others: Kind = "state" if model.state_layers else "window"
    full, other = model.full_layers, model.window_layers + model.state_layers
    size = _block_size(model, tensor_parallel, block_size, drafts)
    copies = model.kv_copies(tensor_parallel)
    if not other:
        return CacheLayout(("full",), size, size * model.kv_bytes_per_token * copies)
    fewer, more = sorted((full, other))
    layers = more if more < fewer * 1.5 else fewer
    counts: tuple[tuple[Kind, int], ...] = (("full", full), (others, other))
    kinds = tuple(kind for kind, count in counts for _ in range(-(-count // layers)))
    return CacheLayout(
        kinds, size, layers * size * model.kv_bytes_per_layer_token * copies, model.window_tokens, STATES_HELD + drafts
    )


def _block_size(model: Model, tensor_parallel: int, block_size: int, drafts: int) -> int:
    """Return the tokens of a block. Where layers have states, a block of attention is at least as large as a state."""
    if model.delta is None:
        return block_size
    alignment = max(block_size, MLA_ALIGNMENT) if model.kv_lora_rank else block_size
    token_bytes = model.kv_bytes_per_layer_token * model.kv_copies(tensor_parallel) // tensor_parallel
    state_bytes = (model.delta.state_bytes + 2 * model.delta.conv_width * drafts) // tensor_parallel
    return alignment * -(-state_bytes // (alignment * token_bytes))
