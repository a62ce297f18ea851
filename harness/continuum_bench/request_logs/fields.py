"""The fields of requests in logs: their types, and what they must satisfy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from continuum_traces.typed import LARGEST

from continuum_bench.errors import BenchError
from continuum_bench.request_logs.served import Served

Number = Annotated[float, msgspec.Meta(gt=-LARGEST, lt=LARGEST)]


def served(
    where: str,
    instants: Sequence[float],
    prompt_tokens: float,
    output_tokens: float,
    program_id: str | None = None,
) -> Served:
    """Return a request after checking that its instants are in order and its token counts are whole and positive.

    Args:
        where: the beginning of error messages.
        instants: the seconds of arrival, first token and end.
        prompt_tokens: length of the prompt.
        output_tokens: length of the answer.
        program_id: as ``Served.program_id``.
    """
    arrival_s, first_token_s, finish_s = instants
    if first_token_s < arrival_s:
        raise BenchError(f"{where}: the first token comes {arrival_s - first_token_s:.3f} s before arrival")
    if finish_s < first_token_s:
        raise BenchError(f"{where}: the end comes {first_token_s - finish_s:.3f} s before the first token")
    for name, tokens in (("prompt", prompt_tokens), ("output", output_tokens)):
        if tokens < 1 or tokens != int(tokens):
            raise BenchError(f"{where}: {name} tokens: {tokens:g}; expected a whole number of at least 1")
    return Served(arrival_s, first_token_s, finish_s, int(prompt_tokens), int(output_tokens), program_id)


def load_of(arrival_s: float | None, prompt_tokens: float | None, output_tokens: float | None = 0) -> Served | None:
    """Return a request that is played but not compared; None: its size or its arrival is not known."""
    if arrival_s is None or not prompt_tokens or prompt_tokens < 1:
        return None
    return Served(arrival_s, arrival_s, arrival_s, int(prompt_tokens), max(int(output_tokens or 0), 1))


def within(row: Any, *names: str) -> Any:
    """Return the value at a path of names; None: there is none."""
    for name in names:
        row = row.get(name) if isinstance(row, dict) else None
    return row
