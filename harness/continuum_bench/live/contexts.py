"""A program's context for a real server: token ids with exact lengths, or text whose length is steered.

The new tokens of each program are its own. Prefixes therefore match exactly where those of a real agent would.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from continuum_traces.schema import Program, Turn

from continuum_bench.live.http import StreamedAnswer

LOWEST_ID, HIGHEST_ID = 1000, 8000
"""Range of ids that are ordinary tokens in all common vocabularies. Every id has four digits."""

_ID_TEXTS = np.array([b"%d," % token for token in range(LOWEST_ID, HIGHEST_ID)])


class SentTokens:
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

    def add_output(self, index: int, turn: Turn, answer: StreamedAnswer) -> None:
        """Append the generated tokens, or as many other ids if the server returned none."""
        if len(answer.token_ids) == turn.output_tokens and all(type(token) is int for token in answer.token_ids):
            carried = answer.token_ids[turn.output_tokens - turn.carried :]
            self._prompt += b"".join(b"%d," % token for token in carried)
        else:
            self._prompt += _ids(f"{self._key}/{index}/answer", turn.carried)

    def body(self, turn: Turn) -> dict[str, Any]:
        """Return the part of the request that depends on the turn."""
        lengths = {"max_tokens": turn.output_tokens, "min_tokens": turn.output_tokens, "ignore_eos": True}
        return {"prompt": msgspec.Raw(b"[" + self._prompt[:-1] + b"]"), "return_token_ids": True, **lengths}


@dataclass(slots=True)
class TokenRates:
    """How a server counts the tokens of text: a number for each word of ours, and one for each message. The load
    generator learns both from the prompt lengths that the server reports (recursive least squares)."""

    per_word: float = 1.0
    per_message: float = 4.0
    _of_word: float = 0.05
    _of_both: float = 0.0
    _of_message: float = 16.0

    def learn(self, words: int, messages: int, tokens: float) -> None:
        """Learn from so many new words and messages, which the server counted as so many tokens."""
        gain_word = self._of_word * words + self._of_both * messages
        gain_message = self._of_both * words + self._of_message * messages
        noise = 1.0 + (0.01 * words) ** 2
        scale = noise + gain_word * words + gain_message * messages
        error = (tokens - self.per_word * words - self.per_message * messages) / scale
        self.per_word = min(4.0, max(0.25, self.per_word + gain_word * error))
        self.per_message = min(64.0, max(0.0, self.per_message + gain_message * error))
        self._of_word -= gain_word * gain_word / scale
        self._of_both -= gain_word * gain_message / scale
        self._of_message -= gain_message * gain_message / scale


@dataclass(slots=True)
class _Message:
    role: str
    text: str
    tokens: float
    """By the server's count, as far as it is known, with those around the text."""

    def cut(self, tokens: float, around: float, from_end: bool = False) -> None:
        """Keep so many tokens of the message, of which ``around`` are not of the text."""
        chars = round(len(self.text) * max(0.0, tokens - around) / max(1.0, self.tokens - around))
        self.text = self.text[len(self.text) - chars :] if from_end else self.text[:chars]
        self.tokens = tokens


class SentTexts:
    """Prompts as text, for ``/v1/chat/completions``, which takes no token ids.

    Words are drawn from a list of common words, most of which are one token in every vocabulary. After each turn the
    server says how many tokens the prompt had. The next message is as long as the trace's next prompt then needs, so
    that errors do not add up.

    Args:
        rates: what is known of the server's tokens; programs share it.
    """

    path = "/chat/completions"
    exact_lengths = False

    def __init__(self, program: Program, key: str, shared_key: str, rates: TokenRates) -> None:
        self._key = key
        self._rates = rates
        self._messages: list[_Message] = []
        self._target = 0
        """The tokens that the trace's prompt has."""
        self._new_words, self._new_messages, self._counted = 0, 0, 0.0
        """Our words and the messages since the latest count, and the tokens that are known without a count."""
        if program.shared_prefix_id is not None:
            self._target = program.shared_prefix_tokens
            self._add("system", f"{shared_key}/{program.shared_prefix_id}", self._target)

    @property
    def tokens(self) -> float:
        return sum(message.tokens for message in self._messages)

    def keep(self, tokens: int) -> None:
        self._target = min(self._target, tokens)
        self._shorten(self._target)

    def add_input(self, index: int, turn: Turn, tokens: int) -> None:
        self._target += tokens
        self._shorten(self._target - 1 - self._rates.per_message)
        self._add("user", f"{self._key}/{index}", self._target - self.tokens)

    def add_output(self, index: int, turn: Turn, answer: StreamedAnswer) -> None:
        """Correct the lengths by the reported length of the prompt, and append the last ``turn.carried`` tokens of the
        answer; words of ours if the answer has no text."""
        if answer.prompt_tokens and 0.25 <= answer.prompt_tokens / max(1.0, self.tokens) <= 4.0:
            self._correct(answer.prompt_tokens)
        self._target += turn.carried
        visible = (answer.output_tokens or turn.output_tokens) - answer.reasoning_tokens
        if turn.carried <= 0:
            return
        if not answer.text.strip() or visible <= 0:
            return self._add("assistant", f"{self._key}/{index}/answer", turn.carried + self._rates.per_message)
        message = _Message("assistant", answer.text, visible)
        message.cut(min(turn.carried, visible), 0.0, from_end=True)
        self._counted += message.tokens
        message.tokens += self._rates.per_message
        self._new_messages += 1
        self._messages.append(message)

    def body(self, turn: Turn) -> dict[str, Any]:
        """Return the part of the request that depends on the turn."""
        messages = [{"role": message.role, "content": message.text} for message in self._messages]
        return {"messages": messages, "max_tokens": turn.output_tokens}

    def _add(self, role: str, key: str, tokens: float) -> None:
        """Append so many tokens. Two messages of one role in a row become one, as chat templates want."""
        again = bool(self._messages) and self._messages[-1].role == role
        words = max(1, round((tokens - (0.0 if again else self._rates.per_message)) / self._rates.per_word))
        text = " ".join(random.Random(key).choices(_WORDS, k=words))
        self._new_words += words
        if again:
            self._messages[-1].text += f" {text}"
            self._messages[-1].tokens += words * self._rates.per_word
            return
        self._new_messages += 1
        self._messages.append(_Message(role, text, words * self._rates.per_word + self._rates.per_message))

    def _shorten(self, tokens: float) -> None:
        """Cut the end of the context, so that it has at most so many tokens."""
        while self._messages and (over := self.tokens - tokens) > 0.5:
            last = self._messages[-1]
            rest = last.tokens - over
            if rest > self._rates.per_message + 1:
                last.cut(rest, self._rates.per_message)
            else:
                self._messages.pop()
            self._new_words = self._new_messages = 0  # what is cut is not known exactly, so nothing is learned from it

    def _correct(self, counted: int) -> None:
        """Learn from the prompt's length, and give the difference to the newest messages."""
        over = counted - self.tokens
        if self._new_words:
            before = self.tokens - self._counted - self._new_words * self._rates.per_word
            before -= self._new_messages * self._rates.per_message
            self._rates.learn(self._new_words, self._new_messages, counted - before - self._counted)
        self._messages[-1].tokens = max(1.0, self._messages[-1].tokens + over)
        self._new_words, self._new_messages, self._counted = 0, 0, 0.0


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
