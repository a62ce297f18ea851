"""Write and read tags as ``vllm_xargs`` and as headers. Beside this module: answers, counts of tokens, URLs.

vLLM accepts only str, int and float in ``vllm_xargs``: booleans are written as 0 or 1, unknown values are left out.
Reading never fails: a field that cannot be read is left out and named in ``rejected``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from continuum_traces.schema import MAX_PROGRAM_ID_CHARS, MAX_TURN_ID_CHARS, Tags

Scalar = str | int | float

MAX_TOOL_CHARS = 128
MAX_CHARS = 4096
"""Longest text that is read as the value of a tag."""
MAX_HINT_S = 86_400.0

PROGRAM_ID_ALIASES = ("program_id", "job_id", "session_id")
"""The xargs that may contain the program id; the first that is present counts. The papers' preview sends ``job_id``."""

SESSION_HEADERS = ("X-Session-ID", "X-Dynamo-Session-ID")
FINAL_HEADER = "X-Dynamo-Session-Final"
TURN_HEADER = "X-Turn-ID"


@dataclass(frozen=True, slots=True)
class ReadTags:
    """The tags of a request."""

    tags: Tags
    rejected: tuple[str, ...] = ()
    """Names of the fields that were present and could not be read."""


def tags_to_xargs(tags: Tags) -> dict[str, Scalar]:
    """Return the body field ``vllm_xargs`` for these tags, without unknown values."""
    values = ((name, getattr(tags, name)) for name in _TAG_FIELDS)
    return {name: int(value) if isinstance(value, bool) else value for name, value in values if value is not None}


def tags_to_headers(tags: Tags) -> dict[str, str]:
    """Return the headers for these tags. Every OpenAI-compatible server accepts them."""
    headers: dict[str, str] = {}
    if tags.program_id is not None:
        headers.update(dict.fromkeys(SESSION_HEADERS, tags.program_id))
    if tags.is_last_step:
        headers[FINAL_HEADER] = "true"
    if tags.turn_id is not None:
        headers[TURN_HEADER] = tags.turn_id
    return headers


def tags_from_headers(headers: Mapping[str, str]) -> ReadTags:
    """Read the tags in a request's headers, but the program id (``foreign_ids``).

    Args:
        headers: the headers by lower-case name.
    """
    final, turn = headers.get(FINAL_HEADER.lower()), headers.get(TURN_HEADER.lower())
    last = None if final is None else final.strip().lower() in ("true", "1")
    turn_id = read_turn_id(turn)
    rejected = (TURN_HEADER,) if turn is not None and turn_id is None else ()
    return ReadTags(Tags(is_last_step=last, turn_id=turn_id), rejected)


def tags_from_xargs(xargs: Mapping[str, Any], session_id: str | None = None) -> ReadTags:
    """Read the tags in a request's ``vllm_xargs``.

    Args:
        xargs: the mapping as the server received it. Keys that are no tags are ignored.
        session_id: the engine's own session id (body field ``session_id`` or header ``X-Session-ID``), used if the
            xargs contain no program id.
    """
    values: dict[str, Any] = {}
    rejected: list[str] = []
    for name, read in _READERS.items():
        if name in xargs:
            raw = xargs[name]
            values[name] = None if isinstance(raw, str) and len(raw) > MAX_CHARS else read(raw)
            if values[name] is None:
                rejected.append(name)
    candidates = [(name, xargs[name]) for name in PROGRAM_ID_ALIASES if name in xargs]
    candidates.append(("session_id", session_id))
    for name, raw in candidates:
        if raw is None:
            continue
        values["program_id"] = read_program_id(raw)
        if values["program_id"] is not None:
            break
        rejected.append(name)
    return ReadTags(Tags(**values), tuple(rejected))


def read_program_id(raw: Any) -> str | None:
    """Return the program id if it is valid (text or integer, printable, not empty, up to 256 characters), else None."""
    return _read_id(raw, MAX_PROGRAM_ID_CHARS)


def read_turn_id(raw: Any) -> str | None:
    """Return the turn id if it is valid (like a program id, but up to 64 characters), else None."""
    return _read_id(raw, MAX_TURN_ID_CHARS)


def _read_id(raw: Any, most_chars: int) -> str | None:
    if isinstance(raw, int) and not isinstance(raw, bool) and abs(raw) < 2**64:  # Python refuses to print huge integers
        raw = str(raw)
    if not isinstance(raw, str) or not 0 < len(raw) <= most_chars or not raw.isprintable():
        return None
    return raw


def _read_flag(raw: Any) -> bool | None:
    if isinstance(raw, str):
        return {"1": True, "true": True, "0": False, "false": False}.get(raw.strip().lower())
    return bool(raw) if isinstance(raw, int | float) and raw in (0, 1) else None


def _read_seconds(raw: Any) -> float | None:
    """Return a number of at least 0, limited to a day, else None."""
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        return None
    try:
        value = float(raw)
    except (ValueError, OverflowError):
        return None
    return min(value, MAX_HINT_S) if math.isfinite(value) and value >= 0 else None


def _read_tool(raw: Any) -> str | None:
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        return None
    return raw.strip()[:MAX_TOOL_CHARS]


_READERS: dict[str, Callable[[Any], Any]] = {
    "is_last_step": _read_flag,
    "pred_tool": _read_tool,
    "pred_tool_s": _read_seconds,
    "pred_tool_p90_s": _read_seconds,
    "last_func_call": _read_tool,
    "last_tool_duration_s": _read_seconds,
    "this_func_call": _read_tool,
    "kv_ttl_s": _read_seconds,
    "parent_id": read_program_id,
    "turn_id": read_turn_id,
}

TAG_NAMES = tuple(_READERS)
"""The xargs that are tags, without those that contain the program id."""
_TAG_FIELDS = tuple(field.name for field in fields(Tags))
