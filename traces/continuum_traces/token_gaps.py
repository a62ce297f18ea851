"""Record the gaps between a turn's output tokens in little space. Standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise


def gaps_ms(instants_s: Sequence[float]) -> dict[str, int]:
    """Return the gaps between neighbouring instants, in milliseconds to three significant digits, and how often each
    gap occurs. Tokens that came in one chunk share one instant.

    >>> gaps_ms([1.0, 1.01, 1.02, 1.14])
    {'10': 2, '120': 1}
    """
    return dict(Counter(f"{1e3 * (after - before):.3g}" for before, after in pairwise(instants_s)))
