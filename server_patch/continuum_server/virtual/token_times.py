"""When each output token of the running turns left the engine (``--token-times``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

from continuum_traces.token_gaps import gaps_ms


class TokenTimes:
    """The instants of the tokens of turns that run, by request."""

    def __init__(self) -> None:
        self._instants_s: defaultdict[str, list[float]] = defaultdict(list)

    def step(
        self, start_s: float, steps_s: Sequence[float], requests: Iterable[str], new: Iterable[Sequence[int]]
    ) -> None:
        """A scheduler call began at ``start_s`` and took these steps. ``new`` has the tokens of each request: one of
        each step, or, for a prompt that was computed to its end, the last step's."""
        ends_s = list(accumulate(steps_s, initial=start_s))
        for request_id, tokens in zip(requests, new, strict=True):
            if tokens:
                self._instants_s[request_id] += ends_s[-len(tokens) :]

    def gaps_ms(self, request_id: str) -> dict[str, int]:
        """The gaps of a turn that ended. Its instants are forgotten."""
        return gaps_ms(self._instants_s.pop(request_id, []))
