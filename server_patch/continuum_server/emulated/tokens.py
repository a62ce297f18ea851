"""The emulated model's vocabulary: encode scripted text, make filler, obey a grammar's bitmask."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from vllm.config import ModelConfig
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.outputs import LogprobsLists


class Vocabulary:
    """Between the answers' text and their tokens."""

    def __init__(self, model_config: ModelConfig) -> None:
        tokenizer: Any = cached_tokenizer_from_config(model_config)
        self._tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        special = set(tokenizer.all_special_ids)
        words = [ids[0] for ids in map(self.encode, _WORDS) if len(ids) == 1]
        self._words = words or [token for token in range(min(1000, len(tokenizer))) if token not in special]
        self.closing = (self.end, *(self.encode(text)[0] for text in ('"', "}", "]", "0")))
        """Tokens that bring a structure to its end soonest, tried in this order under a grammar."""

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def filler(self, key: str, length: int) -> list[int]:
        """Filler text: words without meaning, the same for the same key."""
        return random.Random(key).choices(self._words, k=length)


def first_allowed(bitmask: Any, preferred: Iterable[int]) -> int:
    """The first of ``preferred`` that the grammar allows, else the lowest allowed token.

    Args:
        bitmask: int32 words, bit i of word w set where token 32*w + i is allowed.
    """
    for token in preferred:
        if int(bitmask[token // 32]) >> (token % 32) & 1:
            return token
    for number, word in enumerate(bitmask):
        value = int(word) & 0xFFFFFFFF
        if value:
            return number * 32 + (value & -value).bit_length() - 1
    return 0


def certain(sampled: Sequence[Sequence[int]], alternatives: int) -> LogprobsLists | None:
    """Log probabilities of a model without doubt: 0 for the token given, -100 for the alternatives.

    Args:
        sampled: tokens of each request of the step, none or one.
        alternatives: columns beside the token's own; -1: nobody asked.
    """
    if alternatives < 0:
        return None
    tokens = [ids[0] if ids else 0 for ids in sampled]
    shape = (len(tokens), alternatives + 1)
    columns = np.broadcast_to(np.arange(-1, alternatives, dtype=np.int32), shape).copy()
    columns[:, 0] = tokens
    values = np.full(shape, -100.0, dtype=np.float32)
    values[:, 0] = 0.0
    return LogprobsLists(columns, values, np.ones(len(tokens), dtype=np.int32))


_TEXT = """
the of and to in is that it for was on are as with at be this have from or one had by not but what all were when we
there can an your which their if do will each how them then many some so these would other into has more two time could
no make than first been its who now people my made over did down only way find use may water long
"""
_WORDS = tuple(f" {word}" for word in _TEXT.split())
