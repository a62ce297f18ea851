"""How long agents ask to keep the KV of a request, in the words of several APIs. Pure functions.

``HINTS`` is the whole list, from which the table in docs/client/dialects.md is written. The longest readable time of a
request counts. A value that cannot be read changes nothing, and its name is reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from continuum_traces.wire import MAX_HINT_S

EPHEMERAL_S = 300.0
"""Anthropic's time of a ``cache_control`` without ``ttl``, and the least that OpenAI keeps a prompt ``in_memory``."""
MOST_PARTS = 256
"""Number of parts of a prompt, from its end, in which ``cache_control`` is sought."""
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class Hint:
    """A field with which some clients ask to keep KV."""

    name: str
    sent_by: str
    does: str
    find: Callable[[Mapping[str, Any]], Iterator[Any]]
    """Yields the field's values in a request's body."""
    read: Callable[[Any], float | None]
    """Returns seconds; None: the value cannot be read, or asks for something else."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a request asks to keep its KV."""

    seconds: float | None = None
    """At most a day; None: it does not ask."""
    ignored: tuple[str, ...] = ()
    """Names of the hints that it has and that do nothing."""


def seconds_of(raw: Any) -> float | None:
    """Return a duration in seconds: a number, or text such as ``5m``, ``1h`` or ``1500ms``. At most a day.

    None: it is negative, not finite, or something else.
    """
    if isinstance(raw, str):
        found = _DURATION.fullmatch(raw.strip().lower()) if len(raw) <= 32 else None
        return None if found is None else min(MAX_HINT_S, float(found[1]) * _SECONDS[found[2]])
    if isinstance(raw, bool) or not isinstance(raw, int | float) or (isinstance(raw, float) and not math.isfinite(raw)):
        return None
    return float(min(raw, MAX_HINT_S)) if raw >= 0 else None  # some integers are too large for a float


def _cache_control(raw: Any) -> float | None:
    if not isinstance(raw, Mapping) or raw.get("type") != "ephemeral":
        return None
    return EPHEMERAL_S if raw.get("ttl") is None else seconds_of(raw["ttl"])


def _retention(raw: Any) -> float | None:
    return EPHEMERAL_S if raw in ("in_memory", "in-memory") else seconds_of(raw)


def _retain(raw: Any) -> float | None:
    """Return the duration of an action of ``kv_hints``; None: it is not ``kv.retain``, or says no duration."""
    if not isinstance(raw, Mapping) or raw.get("type") != "kv.retain":
        return None
    parameters = raw.get("parameters")
    values = {**raw, **(parameters if isinstance(parameters, Mapping) else {})}
    names = ("duration", "duration_s", "duration_seconds", "ttl", "ttl_seconds")
    return next((seconds_of(values[name]) for name in names if name in values), None)


def _ignored(raw: Any) -> float | None:
    return None


def _field(path: str) -> Callable[[Mapping[str, Any]], Iterator[Any]]:
    def find(body: Mapping[str, Any]) -> Iterator[Any]:
        value: Any = body
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            yield value

    return find


def _actions(body: Mapping[str, Any]) -> Iterator[Any]:
    for hints in _field("kv_hints")(body):
        actions = hints.get("actions") if isinstance(hints, Mapping) else hints
        yield from actions[:MOST_PARTS] if isinstance(actions, list) else (hints,)


def _breakpoints(body: Mapping[str, Any]) -> Iterator[Any]:
    """Yield every ``cache_control``: the request's own, and those of the latest parts of the prompt and of tools."""
    for part in chain([body], *map(_last_parts, (body.get(name) for name in ("system", "tools", "messages", "input")))):
        if isinstance(part, Mapping):
            if part.get("cache_control") is not None:
                yield part["cache_control"]
            for inner in _last_parts(part.get("content")):
                if isinstance(inner, Mapping) and inner.get("cache_control") is not None:
                    yield inner["cache_control"]


def _last_parts(value: Any) -> Sequence[Any]:
    return value[-MOST_PARTS:] if isinstance(value, list) else ()


SOFT = "asks for a soft hold"
HINTS = (
    Hint("cache_control", "Claude Code, users of Anthropic's API", SOFT, _breakpoints, _cache_control),
    Hint("prompt_cache_retention", "users of OpenAI's API", SOFT, _field("prompt_cache_retention"), _retention),
    Hint("prompt_cache_options.ttl", "users of OpenAI's API", SOFT, _field("prompt_cache_options.ttl"), seconds_of),
    Hint("kv_hints", "vLLM's and SGLang's proposals", f"`kv.retain` {SOFT}", _actions, _retain),
    Hint("retention_seconds", "SGLang's clients", SOFT, _field("retention_seconds"), seconds_of),
    Hint("kv_cache_ttl_seconds", "TensorRT-LLM's clients", SOFT, _field("kv_cache_ttl_seconds"), seconds_of),
    Hint("nvext.cache_control", "Dynamo's clients", SOFT, _field("nvext.cache_control"), _cache_control),
    Hint("nvext.agent_hints", "Dynamo's clients", "nothing; it is counted", _field("nvext.agent_hints"), _ignored),
)
NAMES = frozenset(hint.name for hint in HINTS)


def read_retention(body: Mapping[str, Any]) -> Retention:
    """Read the hints in a request's body."""
    longest: float | None = None
    ignored: list[str] = []
    for hint in HINTS:
        values = [hint.read(raw) for raw in hint.find(body)]
        known = [value for value in values if value is not None]
        longest = max([*known, *([] if longest is None else [longest])], default=None)
        if len(known) < len(values):
            ignored.append(hint.name)
    return Retention(longest, tuple(ignored))
