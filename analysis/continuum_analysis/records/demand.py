"""The KV that the contexts of all live programs need over time, for comparison with the size of the KV pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from continuum_analysis.records.timeline import ProgramTimes


@dataclass(frozen=True, slots=True)
class Demand:
    """Tokens in the contexts of live programs. ``tokens[i]`` is valid from ``times_s[i]`` to ``times_s[i + 1]``."""

    times_s: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def mean_tokens(self) -> float:
        """The mean over time."""
        return self._over_time(np.asarray(self.tokens))

    @property
    def peak_tokens(self) -> int:
        return max(self.tokens, default=0)

    def share_of_time_above(self, tokens: float) -> float:
        return self._over_time(np.asarray(self.tokens) > tokens)

    def _over_time(self, values: np.ndarray) -> float:
        spans = np.diff(self.times_s)
        return float(np.dot(values[:-1], spans) / spans.sum()) if spans.sum() > 0 else 0.0


def demand(programs: Sequence[ProgramTimes]) -> Demand:
    """Return the sum of the contexts of all live programs over time.

    A program is live from its first arrival to its last finish, tool times included. Its context is the prompt from
    each turn's arrival on, and the prompt and the output from the turn's finish on.
    """
    changes: list[tuple[float, int]] = []
    for program in programs:
        held = 0
        for turn in program.turns:
            changes.append((turn.arrive_s, turn.prompt_tokens - held))
            held = turn.prompt_tokens
            if turn.finish_s is not None:
                changes.append((turn.finish_s, turn.output_tokens))
                held += turn.output_tokens
        changes.append((program.finish_s, -held))
    changes.sort(key=lambda change: change[0])
    totals = list(accumulate(tokens for _, tokens in changes))
    last = [i for i, (t, _) in enumerate(changes) if i + 1 == len(changes) or changes[i + 1][0] > t]
    return Demand(tuple(changes[i][0] for i in last), tuple(totals[i] for i in last))
