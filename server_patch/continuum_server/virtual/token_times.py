"""When each output token of the running turns left the engine (``--token-times``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

from continuum_traces.records.token_gaps import gaps_ms


class TokenTimes:
    """For each running request, the time at which each of its output tokens was produced."""

    def __init__(self) -> None:
        self._instants_s: defaultdict[str, list[float]] = defaultdict(list)

    def step(
        self, start_s: float, steps_s: Sequence[float], requests: Iterable[str], new: Iterable[Sequence[int]]
    ) -> None:
        """Record the tokens that one scheduler call produced.

        The call began at ``start_s`` and ran steps that took ``steps_s`` seconds each. ``new`` holds each request's new
        tokens: one per step, or a single one of the last step if the request's prefill was completed in this call. With
        speculative decoding a step has several tokens.
        """
        ends_s = list(accumulate(steps_s, initial=start_s))
        for request_id, tokens in zip(requests, new, strict=True):
            if tokens:
                at_once = max(0, len(tokens) - len(steps_s))
                self._instants_s[request_id] += ends_s[at_once - len(tokens) :] + at_once * ends_s[-1:]

    def gaps_ms(self, request_id: str) -> dict[str, int]:
        """Return the gaps between the tokens of a request that has finished, and forget the request."""
        return gaps_ms([(instant_s, 1) for instant_s in self._instants_s.pop(request_id, [])])
