"""From tags to headers and body fields, and into a request that has some of its own. Pure; a load generator uses it
too.

What the caller wrote always wins over what we would add.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from continuum_traces.schema import MAX_PROGRAM_ID_CHARS, Tags
from continuum_traces.wire import MAX_HINT_S, MAX_TOOL_CHARS, tags_to_headers

from continuum_client.dialects import Dialect
from continuum_client.errors import InvalidTag

PARENT_HEADERS = ("X-Parent-Session-ID", "X-Dynamo-Parent-Session-ID")
"""Read by llm-d and Dynamo."""


def tag_headers(tags: Tags) -> dict[str, str]:
    """Headers for one request; the same in every dialect.

    >>> tag_headers(Tags(program_id="task-7"))
    {'X-Session-ID': 'task-7', 'X-Dynamo-Session-ID': 'task-7'}
    """
    headers = tags_to_headers(tags)
    if tags.parent_id is not None:
        headers.update(dict.fromkeys(PARENT_HEADERS, tags.parent_id))
    return headers


def tag_body(
    tags: Tags, dialect: Dialect, path: str = "/chat/completions", output_tokens: int | None = None
) -> dict[str, Any]:
    """Body fields for one request; empty fields are left out.

    Args:
        tags: what is known; unknown facts stay out.
        dialect: of the server.
        path: of the request, after the base URL.
        output_tokens: expected length of the answer, for dialects that have a place for it.
    """
    return {name: value for name, value in dialect.body(tags, path, output_tokens).items() if value != {}}


# ------------------------------------------------------------------------------------- into a request


def merged_headers(theirs: Mapping[str, Any], ours: Mapping[str, str]) -> dict[str, Any]:
    """Both; where the caller has a header of the same name, in any case, or removed it, the caller's counts."""
    taken = {name.lower() for name in theirs}
    return {**{name: value for name, value in ours.items() if name.lower() not in taken}, **theirs}


def merged_body(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any], written: Iterable[str]) -> dict[str, Any]:
    """The caller's ``extra_body`` and our fields.

    Args:
        theirs: ``extra_body`` as given; wins, inside ``vllm_xargs`` and ``nvext`` too.
        ours: fields to add.
        written: names in the request's body proper, which must not be overridden.
    """
    body = dict(theirs or {})
    names = set(written)
    for name, value in ours.items():
        if name in body:
            body[name] = _inside(body[name], value)
        elif name not in names:
            body[name] = value
    return body


def _inside(theirs: Any, ours: Any) -> Any:
    if not (isinstance(theirs, Mapping) and isinstance(ours, Mapping)):
        return theirs
    return {
        **ours,
        **{name: _inside(value, ours[name]) if name in ours else value for name, value in theirs.items()},
    }


# --------------------------------------------------------------------------------------------- checks


def check_id(program_id: str, what: str = "program id") -> str:
    """The id, if it can travel in a header and a body alike.

    Raises:
        InvalidTag: not text, empty, longer than 256 characters, or with anything but printable ASCII; spaces at the
            ends.
    """
    if not isinstance(program_id, str):
        raise InvalidTag(f"{what} {program_id!r}: expected text, not {type(program_id).__name__}")
    if not 0 < len(program_id) <= MAX_PROGRAM_ID_CHARS:
        raise InvalidTag(f"{what}: {len(program_id)} characters; 1 to {MAX_PROGRAM_ID_CHARS} are allowed")
    if not (program_id.isascii() and program_id.isprintable() and program_id == program_id.strip()):
        raise InvalidTag(
            f"{what} {program_id!r}: printable ASCII without spaces at the ends, since it travels in a header"
        )
    return program_id


def check_tool(tool: str) -> str:
    """A tool's name: printable, 1 to 128 characters.

    Raises:
        InvalidTag: anything else.
    """
    if not isinstance(tool, str) or not tool.strip() or not tool.isprintable() or len(tool) > MAX_TOOL_CHARS:
        raise InvalidTag(f"tool {tool!r}: 1 to {MAX_TOOL_CHARS} printable characters")
    return tool.strip()


def check_seconds(seconds: float, what: str) -> float:
    """A finite number of seconds, 0 or more; above a day it counts as a day.

    Raises:
        InvalidTag: negative, not finite, not a number.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidTag(f"{what} {seconds!r}: expected a number of seconds")
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidTag(f"{what} {seconds!r}: must be 0 seconds or more")
    return min(float(seconds), MAX_HINT_S)
