"""What all importers use: programs as a source describes them, turns made of token counts, fields that are checked."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, TypeVar

from continuum_traces.grouped import grouped
from continuum_traces.programs.assumptions import Assumption, Assumptions
from continuum_traces.programs.jsonl import TraceError
from continuum_traces.schema import Program, ToolCall, Turn
from continuum_traces.typed import LARGEST
from continuum_traces.wire.usage import Usage, read_usage

CHARS_PER_TOKEN = 4
Row = tuple[str, dict[str, Any]]
"""A row, behind its place."""
Each = TypeVar("Each", int, str, dict[str, Any], list[Any])
_PLURALS: dict[type, str] = {int: "whole numbers", str: "names", dict: "objects", list: "lists"}
GREW = "prompt grown by less than the answer before it: keeps the prompt before, nothing of the answer"
SHRANK = "history rewritten, how much is kept is unknown: the first prompt if this one is longer, or else nothing"
CACHED = "history rewritten: keeps what was cached of it"
TOTAL_DIFFERS = "a total that is not the sum of prompt and output: the latter are read"
UNKNOWN = "unknown"
"""The name of a tool that the source does not name."""
CHARACTERS = "4 characters a token"
"""How a length is estimated if the source does not count it."""
ESTIMATED = f"lengths estimated at {CHARACTERS}"


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
    estimated: Mapping[str, str] = field(default_factory=dict)
    """The numbers that the source does not count (``prompt``, ``output``, ``tools``), and how each is estimated."""
    response_id: str = ""
    """The server's name of the answer, if the source has it: equal in every record of the same answer."""
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
    ids: Sequence[Sequence[Hashable]] | None = None
    """The ids of the blocks of each request's prompt; None if the source has none."""
    block_tokens: int | None = None
    """The size of these blocks; None: the source does not say."""
    empty: str = "no answer has token counts"
    """Why the program is left out if there are no requests."""


def usage_of(where: str, usage: Mapping[str, Any], tool_calls: Iterable[ToolCall] = ()) -> RequestUsage:
    """Read the token counts of one request, in any form that ``continuum_traces.wire.usage`` knows.

    Raises:
        TraceError: a count is no number. The message begins with ``where``.
    """
    return request_of(counts_of(where, usage), tool_calls)


def counts_of(where: str, usage: Mapping[str, Any], beside: bool | None = None) -> Usage:
    """Read token counts as ``read_usage``, and check them.

    Raises:
        TraceError: a count is no number. The message begins with ``where``.
    """
    return read_usage(
        usage, lambda fields, name: None if fields[name] == "" else count_of(where, fields, name, 0), beside
    )


def request_of(counts: Usage, tool_calls: Iterable[ToolCall] = ()) -> RequestUsage:
    return RequestUsage(
        prompt_tokens=counts.prompt_tokens or 0,
        output_tokens=counts.output_tokens or 0,
        reasoning_tokens=counts.reasoning_tokens,
        tool_calls=tuple(tool_calls),
        cached_tokens=counts.cached_tokens,
    )


def first_of(where: str, data: Mapping[str, Any], *names: str) -> int | None:
    """Return the first of these counts that is there; None: there is none.

    Raises:
        TraceError: a count is no number. The message begins with ``where``.
    """
    return next((count_of(where, data, name) for name in names if data.get(name) is not None), None)


def in_order(rows: Sequence[Row], name: str) -> list[Row]:
    """Return rows by the number in a field, if each has one, else as they are.

    Raises:
        TraceError: the field is no number in a row.
    """
    if any(row.get(name) is None for _, row in rows):
        return list(rows)
    return sorted(rows, key=lambda each: number(each[0], each[1], name))


def turns_from_usage(requests: Iterable[RequestUsage], assumptions: Assumptions) -> Iterator[Turn]:
    """Yield turns whose prompts have exactly the reported lengths. Requests without a prompt count are left out.

    Args:
        requests: of one program, in their order.
        assumptions: gets what had to be guessed of histories.

    A prompt that is longer than the one before, but not by the whole answer, keeps the prompt before and nothing of the
    answer. A shorter prompt is a rewritten history. It keeps as many tokens as the source says, or what was cached of
    it. If the source says nothing of its cache, what it keeps is unknown: see ``SHRANK``.
    """
    before, context, first = 0, 0, 0
    requests = list(requests)
    says_cached = any(request.cached_tokens is not None for request in requests)
    for request in requests:
        prompt = request.prompt_tokens
        if prompt < 1:
            assumptions.assume("request", "no prompt length: left out")
            continue
        for contradiction in _contradictions(request):
            assumptions.assume("request", contradiction)
        kept = request.kept_tokens if context else None
        if kept is None and context and prompt <= context:
            cached = (request.cached_tokens or 0) if says_cached else None
            kept = _kept(request, before, first, cached, assumptions)
        output = max(1, request.output_tokens)
        reasoning = min(request.reasoning_tokens, output)
        yield Turn(
            new_input_tokens=prompt - (context if kept is None else kept),
            output_tokens=output,
            carried_tokens=output - reasoning if reasoning else None,
            kept_tokens=kept,
            tool_calls=request.tool_calls,
            gap_overhead_s=request.gap_overhead_s,
            cached_tokens=request.cached_tokens,
            llm_s=request.llm_s,
        )
        before, context, first = prompt, prompt + output - reasoning, first or prompt


def _contradictions(request: RequestUsage) -> Iterator[str]:
    """Yield what cannot be in the counts of a request, and what is taken in its place."""
    if request.output_tokens < 1:
        yield "answer without tokens, taken as 1 token"
    if (request.cached_tokens or 0) > request.prompt_tokens:
        yield "more tokens cached than in its prompt: the prompt's count is taken, and may be too small"
    if request.reasoning_tokens > max(1, request.output_tokens):
        yield "more tokens of reasoning than in its answer: the answer's count is taken, and may be too small"


def _kept(request: RequestUsage, before: int, first: int, cached: int | None, assumptions: Assumptions) -> int:
    """Return how much of the prompt before is kept by one that does not continue prompt and answer.

    Args:
        request: the request.
        before: length of the prompt before.
        first: length of the program's first prompt.
        cached: how much of the prompt was cached; None: the source does not say.
        assumptions: gets what was guessed.
    """
    prompt = request.prompt_tokens
    if request.new_tokens_hint is not None:
        return min(before, prompt - min(max(1, request.new_tokens_hint), prompt))
    if prompt > before:
        assumptions.assume("turn", GREW)
        return before
    assumptions.assume("turn", SHRANK if cached is None else CACHED)
    if cached is None:
        return first if first < prompt else 0
    return min(cached, prompt - 1)


def differing_totals(
    program_id: str, totals: Mapping[str, Any], requests: Sequence[RequestUsage]
) -> Iterator[Assumption]:
    """Yield a line for each total of the source that differs from what was read of a program.

    Args:
        program_id: named as an example.
        totals: what the source says: ``requests``, ``prompt_tokens``, ``output_tokens``, ``cached_tokens``,
            ``reasoning_tokens``. None and other values that are no numbers are passed over.
        requests: what was read, sub-agents with it if the totals count them.
    """
    for name, total in totals.items():
        if isinstance(total, int | float) and not isinstance(total, bool):
            read = len(requests) if name == "requests" else sum(getattr(each, name) or 0 for each in requests)
            if read != total:
                example = f"{program_id}: {read:,} read, {total:,} in the source"
                yield Assumption("program", f"total of {name} differs from the source's own", 1, "", example)


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
    value = data.get(name)
    value = default if value is None else value
    if type(value) is int and 0 <= value < LARGEST:
        return value
    with suppress(ValueError):
        value = float(value) if isinstance(value, str) else value  # a cell of a table
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LARGEST:
        raise TraceError(f"{where}: {name}: expected a number of at least 0, found {repr(value)[:60]}")
    return value


def count_of(where: str, data: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return a field that must be a whole number of at least 0, such as a count of tokens.

    Raises:
        TraceError: the field is something else. The message begins with ``where``.
    """
    value = number(where, data, name, default)
    if value != int(value):
        raise TraceError(f"{where}: {name}: expected a whole number, found {value!r}")
    return int(value)


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
    values: Any = data.get(name) or []
    if not isinstance(values, list) or not {*map(type, values)} <= {kind}:
        raise TraceError(f"{where}: {name}: expected a list of {_PLURALS[kind]}")
    return values


def rows_by(key: str, rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return rows by the value of their field ``key``; one without it is a group of its own."""
    return grouped(
        (str(row.get(key) if row.get(key) is not None else f"request-{number}"), (where, row))
        for number, (where, row) in enumerate(rows, 1)
    )
