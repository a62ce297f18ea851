"""What all importers use: programs as a source describes them, turns made of token counts, fields that are checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from continuum_traces.grouped import grouped
from continuum_traces.jsonl import TraceError, json_object, text_lines
from continuum_traces.schema import Program, ToolCall, Turn
from continuum_traces.typed import LARGEST

CHARS_PER_TOKEN = 4
Row = tuple[str, dict[str, Any]]
"""A row, behind its place."""
Each = TypeVar("Each", int, str, dict[str, Any])
_PLURALS: dict[type, str] = {int: "whole numbers", str: "names", dict: "objects"}
UNKNOWN = "unknown"
"""The name of a tool that the source does not name."""
ESTIMATED = "lengths estimated at 4 characters a token"


@dataclass(frozen=True, slots=True)
class RequestUsage:
    """The token counts of one request, as its server reported them."""

    prompt_tokens: int
    output_tokens: int
    reasoning_tokens: int = 0
    """Tokens of the output that the next prompt does not repeat."""
    new_tokens_hint: int | None = None
    """New prompt tokens that the source reports; used if the history was rewritten."""
    kept_tokens: int | None = None
    """Leading tokens of the prompt before with which this one begins, if the source says that it keeps no more."""
    tool_calls: tuple[ToolCall, ...] = ()
    gap_overhead_s: float = 0.0
    cached_tokens: int | None = None
    llm_s: float | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """A program as a source describes it. The registry makes its turns and finds the prefixes that programs share."""

    program: Program
    """Without turns and shared prefix."""
    requests: Sequence[RequestUsage]
    messages: Sequence[str] = ()
    """The texts of the messages in the first prompt, if the source has them."""
    ids: Sequence[Sequence[int]] | None = None
    """The ids of the blocks of each request's prompt; None if the source has none."""
    block_tokens: int | None = None
    """The size of these blocks; None: the source does not say."""


def usage_of(where: str, usage: Mapping[str, Any], tool_calls: Iterable[ToolCall] = ()) -> RequestUsage:
    """Read the token counts of one request in OpenAI's form, or with all counts in one object.

    Raises:
        TraceError: a count is no number. The message begins with ``where``.
    """
    details = {
        **usage,
        **inner(where, usage, "prompt_tokens_details"),
        **inner(where, usage, "completion_tokens_details"),
    }
    return RequestUsage(
        prompt_tokens=int(number(where, usage, "prompt_tokens", 0)),
        output_tokens=int(number(where, usage, "completion_tokens", 0)),
        reasoning_tokens=int(number(where, details, "reasoning_tokens", 0)),
        tool_calls=tuple(tool_calls),
        cached_tokens=details.get("cached_tokens", details.get("cache_read_tokens")),
    )


def turns_from_usage(requests: Iterable[RequestUsage]) -> Iterator[Turn]:
    """Yield turns whose prompts have exactly the reported lengths. Requests without a prompt count are left out.

    If a prompt is shorter than the context before it, the agent rewrote its history. The new tokens are then the number
    that the source reports (at least 1), and all other tokens of the prompt are taken as kept.
    """
    context = 0
    for request in requests:
        if request.prompt_tokens < 1:
            continue
        kept = request.kept_tokens if context else None
        new = request.prompt_tokens - (context if kept is None else kept)
        if kept is None and new < 1 and context:
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
    """Return calls that took ``seconds`` together: the first call gets all seconds, the others get 0.

    An empty name becomes ``UNKNOWN``.
    """
    times = chain([seconds], repeat(None if seconds is None else 0.0))
    calls = zip(names, times, chain(digests, repeat(None)), strict=False)
    return tuple(ToolCall(name.strip() or UNKNOWN, time, digest=mark) for name, time, mark in calls)


def estimate_tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


def number(where: str, data: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Return a field that must be a number of at least 0; ``default`` if it is missing or null.

    Raises:
        TraceError: the field is something else. The message begins with ``where``.
    """
    value = default if data.get(name) is None else data[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
        raise TraceError(f"{where}: {name}: expected a number of at least 0, found {repr(value)[:60]}")
    return value


def inner(where: str, data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that must be an object; an empty one if it is missing or null.

    Raises:
        TraceError: the field is something else. The message begins with ``where``.
    """
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise TraceError(f"{where}: {name}: expected an object, found {repr(value)[:60]}")
    return value or {}


def listed(where: str, data: Mapping[str, Any], name: str, kind: type[Each]) -> list[Each]:
    """Return a field that must be a list of ``kind``; an empty one if it is missing or null.

    Raises:
        TraceError: the field is something else. The message begins with ``where``.
    """
    values = data.get(name) or []
    if not isinstance(values, list) or not all(isinstance(each, kind) for each in values):
        raise TraceError(f"{where}: {name}: expected a list of {_PLURALS[kind]}")
    return values


def json_lines(path: Path, *required: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the numbered lines of a file, each as an object. Blank lines are skipped.

    Raises:
        TraceError: a line is not a JSON object with the ``required`` fields.
    """
    for line_number, line in text_lines(path):
        if line.strip():
            yield line_number, json_object(f"{path}:{line_number}", line, *required)


def rows_by(path: Path, key: str, *required: str) -> dict[str, list[Row]]:
    """Return the objects of a file of lines by the value of their field ``key``; one without it is a group of its own.

    Raises:
        TraceError: as ``json_lines``.
    """
    lines = json_lines(path, *required)
    return grouped((str(row.get(key, f"request-{number}")), (f"{path}:{number}", row)) for number, row in lines)
