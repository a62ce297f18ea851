"""How much of an earlier prompt another prompt repeats: from its start, as the prefix cache does, or anywhere.

An agent may change the head of its prompt in each turn (a line with the date, or with the tokens that are left). Then
no KV can be used again, but the rest of the history shows that it is the same conversation.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

EVERY = 128
"""The hashes of so many blocks from the start are kept, then those of every second one, and so on: a place is known to
1/64 of its distance from the start."""
WINDOW = 8
"""Number of tokens of a sample."""
EVEN, TAIL = 24, 8
"""Number of samples that are spread over a prompt, and of those that cover its end."""
TAIL_REPEATED = 6
"""Number of the samples of the end that a prompt of the same conversation has."""
LOOSE_END = 8
"""Number of tokens at the end of a prompt that may open the answer otherwise than the next prompt repeats it."""
TAIL_TOKENS = TAIL * WINDOW + LOOSE_END
ENDS = 24
"""Number of tokens that are sought to find where the earlier prompt ends in another one."""
OCCURRENCES = 32
"""Number of places in a prompt at which such tokens are looked at."""
SHORTEST = 256
"""Number of tokens of the shortest prompt of which samples are kept."""
ITEM = array("q").itemsize
PLACES = (*range(EVERY), *(at for n in range(23) for at in range(EVERY << n, EVERY << n + 1, 2 << n)))
"""Indices of the blocks of a prompt whose hashes are kept. They cover prompts of up to 2^30 blocks."""


@dataclass(frozen=True, slots=True)
class Left:
    """A turn whose prompt left that of the turn before, so that the KV behind that place was of no use."""

    turn: int
    """Its number, from 0."""
    token: int
    """Number of leading tokens that it certainly repeats."""
    of: int
    """Number of tokens of the prompt before."""
    times: int
    """Number of such turns of this program, this one included."""


@dataclass(frozen=True, slots=True)
class History:
    """What is kept of a prompt to compare later ones with it. Takes about 5 KB."""

    tokens: int
    hashes: array[int]
    """Hashes of blocks at ``PLACES``. Each covers the whole prefix up to its block."""
    samples: bytes = b""
    """Tokens at ``_positions``; empty: the prompt is shorter than ``SHORTEST``, or its tokens are unknown."""
    tail: bytes = b""
    """The last ``TAIL_TOKENS`` tokens: samples one after the other, then ``LOOSE_END`` tokens."""

    def repeated(self, blocks: Sequence[Hashable], block_size: int) -> int:
        """Return how many leading tokens a prompt with these blocks certainly repeats. Less by at most 1/64."""
        hashes = self.hashes
        known = range(min(len(hashes), bisect_left(PLACES, len(blocks))))
        first = bisect_left(known, True, key=lambda at: hash(blocks[PLACES[at]]) != hashes[at])
        return (PLACES[first - 1] + 1) * block_size if first else 0

    def moved(self, ids: Sequence[int], head: int) -> float:
        """Return the share of this prompt that another prompt repeats: its head, and the rest at another place.

        0.0 if the other prompt does not have its end.

        Args:
            head: number of leading tokens that the other prompt certainly repeats.
        """
        if not self.samples:
            return 0.0
        other, tail = array("q", ids).tobytes(), range(self.tokens - TAIL_TOKENS, self.tokens - LOOSE_END, WINDOW)
        windows = _windows(self.samples + self.tail)  # the last one, the loose end, is no sample
        samples = list(zip((*_positions(self.tokens), *tail), windows, strict=False))
        best = 0
        for shift in self._shifts(other):
            same = [at + WINDOW <= head or sample == _window(other, at + shift) for at, sample in samples]
            if sum(same[-TAIL:]) >= TAIL_REPEATED:
                best = max(best, sum(same))
        return best / (EVEN + TAIL)

    def _shifts(self, other: bytes) -> set[int]:
        """Return by how many tokens this prompt may have moved in another one."""
        shifts: set[int] = set()
        for stop in range(TAIL_TOKENS, TAIL_TOKENS - LOOSE_END, -2):
            end, before = self.tail[(stop - ENDS) * ITEM : stop * ITEM], self.tokens - TAIL_TOKENS + stop - ENDS
            shifts.update(at - before for at in islice(_occurrences(other, end), OCCURRENCES))
        return shifts


@dataclass(slots=True, eq=False)
class LastPrompt:
    """What ``identity.Identity`` keeps of a program's last prompt, to recognise the next one."""

    tokens: int = 0
    marks: Sequence[tuple[int, Hashable]] = ()
    """Indices and hashes of some of its blocks, the last block first (``programs.marks_of``)."""
    head: Hashable = None
    """Hash of its first block."""
    shared_blocks: int | None = None
    """Number of leading blocks of the program's first prompt that were already cached, so that other programs have them
    too. None: no turn was scheduled yet."""
    history: History | None = None
    """What is kept to find it in a later prompt; None: nothing."""
    left_at: int | None = None
    """Where it left the prompt before: the number of leading tokens that it repeats. None: it repeats most of it, or
    nothing is known of the one before."""
    left: Left | None = None
    """The latest turn whose prompt left the one before; None: none did."""

    @property
    def common_blocks(self) -> int:
        """``shared_blocks``, as far as they are known."""
        return self.shared_blocks or 0


def history_of(ids: Sequence[int] | None, blocks: Sequence[Hashable] | None, tokens: int) -> History | None:
    """Return what is kept of a prompt; None: nothing is known of it."""
    if blocks is None:
        return None
    places = PLACES[: bisect_left(PLACES, len(blocks))]
    hashes = array("q", map(hash, map(blocks.__getitem__, places)))
    if ids is None or tokens < SHORTEST:
        return History(tokens, hashes)
    samples = array("q", chain.from_iterable([ids[at : at + WINDOW] for at in _positions(tokens)]))
    return History(tokens, hashes, samples.tobytes(), array("q", ids[tokens - TAIL_TOKENS : tokens]).tobytes())


def _positions(tokens: int) -> list[int]:
    """Return where the samples begin that are spread over a prompt."""
    return [(tokens - TAIL_TOKENS) * part // EVEN for part in range(EVEN)]


def _windows(samples: bytes) -> Iterator[bytes]:
    size = WINDOW * ITEM
    return (samples[at : at + size] for at in range(0, len(samples), size))


def _window(tokens: bytes, at: int) -> bytes:
    return tokens[at * ITEM : (at + WINDOW) * ITEM] if at >= 0 else b""


def _occurrences(where: bytes, what: bytes) -> Iterator[int]:
    """Yield the places of tokens among others, in tokens, the last one first."""
    stop = len(where)
    while (at := where.rfind(what, 0, stop)) >= 0:
        if at % ITEM == 0:
            yield at // ITEM
        stop = at + len(what) - 1
