"""Record the gaps between a turn's output tokens in little space. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise


def gaps_ms(chunks: Sequence[tuple[float, int]]) -> dict[str, int]:
    """Return the gaps between output tokens, in milliseconds to three significant digits, and how often each occurs.

    Args:
        chunks: the instant in seconds at which each chunk came, and the number of its tokens. The time since the chunk
            before is divided among them; the tokens of the first chunk have no gaps.

    >>> gaps_ms([(1.0, 1), (1.01, 1), (1.02, 1), (1.14, 4)])
    {'10': 2, '30': 4}
    """
    gaps: Counter[str] = Counter()
    for (before_s, _), (after_s, tokens) in pairwise(chunks):
        gaps[f"{1e3 * (after_s - before_s) / tokens:.3g}"] += tokens
    return dict(gaps)
