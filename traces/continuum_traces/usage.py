"""The one reader of a server's token counts: answers and imported files are read with it.

A count is what a field says, or a sum of what fields say. The total only decides between sums: whether the prompt's
count contains what a cache held, and the output's count the reasoning. What the total has beyond all fields is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Count = Callable[[Mapping[str, Any], str], int | None]
"""Reads a field as a whole number of at least 0; None: it is missing, or no such number."""
_OUTPUT = ("completion_tokens", "output_tokens")
_CACHED = ("cached_tokens", "cache_read_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
_REASONING = ("reasoning_tokens", "reasoning_output_tokens")
_PARTS = ("cache_creation_input_tokens", "cache_read_input_tokens")
"""Anthropic's counts of what was written to a cache and read from it, which its ``input_tokens`` do not contain."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The token counts of one request; None: no field says."""

    prompt_tokens: int | None
    """With what was cached."""
    output_tokens: int | None
    """With reasoning."""
    cached_tokens: int | None = None
    reasoning_tokens: int = 0
    unnamed_tokens: int = 0
    """The part of ``total_tokens`` that no field names, such as hidden thoughts."""


def count_in(fields: Mapping[str, Any], name: str) -> int | None:
    """Read a count in whatever form: ``5``, ``5.0``, ``"5"``."""
    value = fields.get(name)
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == value // 1:
        return int(value)
    return None


def fields_of(item: Any) -> Mapping[str, Any]:
    """Return the fields of a JSON object or of a pydantic object; empty if it is neither.

    ``getattr`` for a missing attribute of a pydantic object takes ten times as long as this.
    """
    if isinstance(item, dict):
        return item
    fields: Mapping[str, Any] = getattr(item, "__dict__", None) or {}
    extra = getattr(item, "__pydantic_extra__", None)
    return {**fields, **extra} if extra else fields


def read_usage(usage: Mapping[str, Any], count: Count = count_in) -> Usage:
    """Read the token counts of OpenAI's chat completions or responses, of Anthropic's messages, or of an object with
    all counts side by side.

    Args:
        usage: the object ``usage``, or a part of it: streams of Anthropic's API send it in two.
        count: how a field is read.
    """
    details: dict[str, Any] = dict(usage)
    for name in usage:
        if name.endswith("_details"):
            details |= fields_of(usage[name])
    cached, reasoning = first_count(details, *_CACHED, count=count), first_count(details, *_REASONING, count=count) or 0
    output, total = first_count(usage, *_OUTPUT, count=count), count(usage, "total_tokens")
    prompts = _prompts(usage, cached or 0, count)
    if output is None or total is None or not prompts:
        return Usage(prompts[0] if prompts else None, output, cached, reasoning)
    for answer in (output, output + reasoning):
        for prompt in prompts:
            if prompt + answer == total:
                return Usage(prompt, answer, cached, reasoning)
    return Usage(prompts[0], output, cached, reasoning, max(0, total - prompts[0] - output))


def _prompts(usage: Mapping[str, Any], cached: int, count: Count) -> tuple[int, ...]:
    """Return the sums that the prompt's length may be, the usual one first; none if no field says."""
    beside = sum(count(usage, name) or 0 for name in _PARTS)
    prompt, own = count(usage, "prompt_tokens"), count(usage, "input_tokens")
    if prompt is not None:
        return prompt, prompt + beside, prompt + cached
    if own is not None:
        return own + beside, own, own + cached
    return (beside,) if beside else ()


def first_count(fields: Mapping[str, Any], *names: str, count: Count = count_in) -> int | None:
    """Return the first of these fields that says a count; None: none does."""
    return next((value for name in names if (value := count(fields, name)) is not None), None)
