"""A program's context for a real server: token ids with exact lengths, or text with approximate lengths.

The new tokens of each program are its own. Prefixes therefore match exactly where those of a real agent would.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import msgspec
import numpy as np
from continuum_traces.schema import Program, Turn

from continuum_bench.live.http import Reply

LOWEST_ID, HIGHEST_ID = 1000, 8000
"""Range of ids that are ordinary tokens in all common vocabularies. Every id has four digits."""

_ID_TEXTS = np.array([b"%d," % token for token in range(LOWEST_ID, HIGHEST_ID)])


class TokenContext:
    """Prompts as token ids, with exact lengths, for ``/v1/completions``.

    The prompt is stored as it is sent (``"1234,5678,"``), so that a turn encodes only its new tokens.

    Args:
        program: the program to play.
        key: seed of the new tokens. Equal keys give equal prompts; different keys give prompts without a common prefix.
        shared_key: seed of the prefix that programs with the same ``shared_prefix_id`` have in common.
    """

    path = "/completions"
    exact_lengths = True

    def __init__(self, program: Program, key: str, shared_key: str) -> None:
        self._key = key
        self._prompt = bytearray()
        if program.shared_prefix_id is not None:
            self._prompt += _ids(f"{shared_key}/{program.shared_prefix_id}", program.shared_prefix_tokens)

    def keep(self, tokens: int) -> None:
        commas = np.flatnonzero(np.frombuffer(bytes(self._prompt), np.uint8) == ord(","))
        if tokens < len(commas):
            del self._prompt[commas[tokens - 1] + 1 if tokens > 0 else 0 :]

    def add_input(self, index: int, turn: Turn, tokens: int) -> None:
        self._prompt += _ids(f"{self._key}/{index}", tokens)

    def add_output(self, index: int, turn: Turn, answer: Reply) -> None:
        """Append the generated tokens, or as many other ids if the server returned none."""
        if len(answer.token_ids) == turn.output_tokens:
            carried = answer.token_ids[turn.output_tokens - turn.carried :]
            self._prompt += b"".join(b"%d," % token for token in carried)
        else:
            self._prompt += _ids(f"{self._key}/{index}/answer", turn.carried)

    def body(self, turn: Turn) -> dict[str, Any]:
        """Return the part of the request that depends on the turn."""
        lengths = {"max_tokens": turn.output_tokens, "min_tokens": turn.output_tokens, "ignore_eos": True}
        return {"prompt": msgspec.Raw(b"[" + self._prompt[:-1] + b"]"), "return_token_ids": True, **lengths}


class TextContext:
    """Prompts as text, for ``/v1/chat/completions``, which takes no token ids. Lengths are correct to a few per cent.

    Words are drawn from a list of common words, most of which are one token in every vocabulary. The number of tokens
    per word is corrected after each turn by the prompt length that the server reports.
    """

    path = "/chat/completions"
    exact_lengths = False

    def __init__(self, program: Program, key: str, shared_key: str) -> None:
        self._key = key
        self._messages: list[dict[str, str]] = []
        self.tokens_per_word = 1.0
        if program.shared_prefix_id is not None:
            text = self._words(f"{shared_key}/{program.shared_prefix_id}", program.shared_prefix_tokens)
            self._messages.append({"role": "system", "content": text})

    def keep(self, tokens: int) -> None:
        """Keep everything: text is never cut, because the number of tokens of its words is not known exactly."""

    def add_input(self, index: int, turn: Turn, tokens: int) -> None:
        self._messages.append({"role": "user", "content": self._words(f"{self._key}/{index}", max(1, tokens))})

    def add_output(self, index: int, turn: Turn, answer: Reply) -> None:
        """Append the whole answer, and correct the number of tokens per word by the reported prompt length."""
        self._messages.append({"role": "assistant", "content": answer.text or "(no text)"})
        if answer.prompt_tokens:
            words = sum(len(message["content"].split()) for message in self._messages)
            self.tokens_per_word = min(4.0, max(0.25, answer.prompt_tokens / max(1, words)))

    def body(self, turn: Turn) -> dict[str, Any]:
        """Return the part of the request that depends on the turn."""
        return {"messages": self._messages, "max_tokens": turn.output_tokens}

    def _words(self, key: str, tokens: int) -> str:
        return " ".join(random.Random(key).choices(_WORDS, k=max(1, round(tokens / self.tokens_per_word))))


def _ids(key: str, count: int) -> bytes:
    """Return ``count`` random ids as JSON text (four digits and a comma each). ``key`` is the seed."""
    drawn = np.frombuffer(hashlib.shake_128(key.encode()).digest(2 * count), np.uint16)
    return _ID_TEXTS[drawn % len(_ID_TEXTS)].tobytes()


_TEXT = """
the of and to in is that it for was on are as with at be this have from or one had by not but what all were when we
there can an your which their if do will each how them then many some so these would other into has more two time could
no make than first been its who now people my made over did down only way find use may water long very after words
called just where most know
"""
_WORDS = tuple(_TEXT.split())
