"""Turns from the token counts that a server reports per request. Shared by the importers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from continuum_traces.jsonl import TraceError
from continuum_traces.schema import ToolCall, Turn

CHARS_PER_TOKEN = 4
UNKNOWN = "unknown"
"""The name of a tool that the source does not name."""
ESTIMATED = "lengths estimated at 4 characters a token"

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """The token counts of one request, as its server reported them."""

    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    """Tokens of the output that the next prompt does not repeat."""
    new_tokens_hint: int | None = None
    """New prompt tokens that the source reports; used if the history was rewritten."""
    tool_calls: tuple[ToolCall, ...] = ()
    gap_overhead_s: float = 0.0
    cached_tokens: int | None = None
    llm_s: float | None = None


def turns_from_usage(requests: Iterable[RequestUsage]) -> Iterator[Turn]:
    """Turns with the exact length of every prompt. Requests without a prompt count are left out.

    If a prompt is shorter than the context before it, the agent rewrote its history. The new part is then what the
    source says (at least 1), and the rest is taken as the part that was kept.
    """
    context = 0
    for request in requests:
        if request.prompt_tokens < 1:
            continue
        new, kept = request.prompt_tokens - context, None
        if new < 1 and context:
            new = min(max(1, request.new_tokens_hint or 1), request.prompt_tokens)
            kept = request.prompt_tokens - new
        output = max(1, request.output_tokens)
        reasoning = min(request.reasoning_tokens, output)
        yield Turn(
            new_input_tokens=new,
            output_tokens=output,
            carried_tokens=output - reasoning if reasoning else None,
            kept_tokens=kept,
            tool_calls=request.tool_calls,
            gap_overhead_s=request.gap_overhead_s,
            cached_tokens=request.cached_tokens,
            llm_s=request.llm_s,
        )
        context = request.prompt_tokens + output - reasoning


def calls_sharing_a_time(
    names: Iterable[str], seconds: float | None, digests: Iterable[str] = ()
) -> tuple[ToolCall, ...]:
    """Calls of which only the common duration is known: the first call gets it, the others get 0.

    An empty name becomes ``UNKNOWN``.
    """
    marks = list(digests)
    return tuple(
        ToolCall(
            name.strip() or UNKNOWN,
            seconds if i == 0 or seconds is None else 0.0,
            digest=marks[i] if i < len(marks) else None,
        )
        for i, name in enumerate(names)
    )


def digest(text: str) -> str:
    """A digest of the arguments: equal arguments have equal digests."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def estimate_tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def number(where: str, data: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A non-negative number of a record.

    Raises:
        TraceError: naming the place and the field.
    """
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise TraceError(f"{where}: {name}: expected a number of at least 0, found {value!r}")
    return value


def record(path: Path, line: int, data: Any, *required: str) -> dict[str, Any]:
    """A JSON object with these fields.

    Raises:
        TraceError: naming file, line and field.
    """
    if not isinstance(data, dict):
        raise TraceError(f"{path}:{line}: expected an object")
    for name in required:
        if name not in data:
            raise TraceError(f"{path}:{line}: {name}: missing")
    return data
