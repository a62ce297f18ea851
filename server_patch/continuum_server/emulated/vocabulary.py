"""The emulated model's tokens: scripted text, filler text, and tokens that a grammar allows."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from vllm.config import ModelConfig
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.outputs import LogprobsLists, LogprobsTensors

ANSWER = "<|im_start|>assistant"
"""What the bundled chat template writes before an answer."""


class Vocabulary:
    """The tokens of the served model's tokenizer, for answers."""

    def __init__(self, model_config: ModelConfig) -> None:
        tokenizer: Any = cached_tokenizer_from_config(model_config)
        self._tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        self._words = [ids[0] for ids in map(self.encode, _WORDS) if len(ids) == 1]
        self.closing = (self.end, *(self.encode(text)[0] for text in ('"', "}", "]", "0", ":", ",")))
        """Under a grammar these tokens are tried in this order, because they soon end a JSON value."""
        self._answer = tuple(self.encode(ANSWER))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def answers_in(self, prompt: Sequence[int]) -> int:
        """Return how many answers of the model a chat's prompt holds. It ends with the beginning of the next one."""
        first, length = self._answer[0], len(self._answer)
        starts = (at for at, token in enumerate(prompt) if token == first)
        return max(0, sum(tuple(prompt[at : at + length]) == self._answer for at in starts) - 1)

    def filler(self, key: str, length: int) -> list[int]:
        """Return random common words as tokens. They are the same for the same key."""
        return random.Random(key).choices(self._words, k=length)


def bits_of(bitmask: np.ndarray) -> np.ndarray:
    """Return a number for each token: 1 if the grammar allows it. Bit i of word w of the bitmask is token 32*w + i."""
    return np.unpackbits(np.asarray(bitmask, dtype="<i4").view(np.uint8), bitorder="little")


def first_allowed(bits: np.ndarray, preferred: Iterable[int]) -> int:
    """Return the first of ``preferred`` that the grammar allows, else the lowest allowed token."""
    return next((token for token in preferred if bits[token]), int(bits.argmax()))


def certain(sampled: Sequence[Sequence[int]], alternatives: int) -> LogprobsLists | None:
    """Return log probabilities of a model that is certain: 0 for the sampled token, -100 for each alternative.

    Args:
        sampled: the tokens of each request in the step: none, one, or with speculative decoding several.
        alternatives: number of alternatives; -1: no request wants log probabilities.
    """
    if alternatives < 0:
        return None
    rows = [ids or (0,) for ids in sampled]
    tokens = [token for row in rows for token in row]
    shape = (len(tokens), alternatives + 1)
    columns = np.broadcast_to(np.arange(-1, alternatives, dtype=np.int32), shape).copy()
    columns[:, 0] = tokens
    values = np.full(shape, -100.0, dtype=np.float32)
    values[:, 0] = 0.0
    starts = [0, *accumulate(map(len, rows))] if len(tokens) > len(rows) else None
    return LogprobsLists(columns, values, np.ones(len(tokens), dtype=np.int32), starts)


def certain_of_prompt(prompt: Sequence[int], alternatives: int | None) -> LogprobsTensors | None:
    """Return the same for the tokens of a prompt but the first; None: the request does not want them."""
    if alternatives is None:
        return None
    made = certain([[token] for token in prompt[1:]], max(0, alternatives))  # -1 stands for all tokens
    assert made is not None
    ids, values, ranks, *_ = made
    return LogprobsTensors(torch.from_numpy(ids), torch.from_numpy(values), torch.from_numpy(ranks))


_TEXT = """
the of and to in is that it for was on are as with at be this have from or one had by not but what all were when we
there can an your which their if do will each how them then many some so these would other into has more two time could
no make than first been its who now people my made over did down only way find use may water long
"""
_WORDS = tuple(f" {word}" for word in _TEXT.split())
