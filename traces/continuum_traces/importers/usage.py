"""From what servers report (prompt and completion tokens per request) to turns: shared by the importers."""

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
"""A tool whose source does not name it."""
ESTIMATED = "lengths estimated at 4 characters a token"

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """One request as its server counted it."""

    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    """Part of the output that the next prompt does not repeat."""
    new_tokens_hint: int | None = None
    """New prompt tokens as the source says, used where the history was rewritten."""
    tool_calls: tuple[ToolCall, ...] = ()
    gap_overhead_s: float = 0.0
    cached_tokens: int | None = None
    llm_s: float | None = None


def turns_from_usage(requests: Iterable[RequestUsage]) -> Iterator[Turn]:
    """Turns that reproduce every prompt to the token; requests without a prompt count are left out.

    A prompt shorter than the context before it means that the agent rewrote its history: its new part is what the
    source says (at least 1), the rest is taken as the surviving head.
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
    """Calls of which one duration is known for all together: the first has it, the others 0.

    An empty name is ``UNKNOWN``.
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
    """Tells equal arguments from different ones without their text."""
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
