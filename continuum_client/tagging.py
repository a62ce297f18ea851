"""Convert tags to headers and body fields, and merge them into a request. Pure functions; load generators use them too.

A header or field that the caller has set is never overwritten.
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
"""Headers with the parent's program id; llm-d and Dynamo read them."""


def tag_headers(tags: Tags) -> dict[str, str]:
    """Return the headers for one request; they are the same in every dialect.

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
    """Return the body fields for one request in a server's dialect.

    Args:
        tags: the tags of the request; tags that are None are left out.
        dialect: the dialect of the server.
        path: the path of the request, after the base URL.
        output_tokens: expected length of the answer; sent by the dialect ``dynamo``.
    """
    return {name: value for name, value in dialect.body(tags, path, output_tokens).items() if value != {}}


# ------------------------------------------------------------------------------------- into a request


def merged_headers(callers: Mapping[str, Any], added: Mapping[str, str]) -> dict[str, Any]:
    """Add headers to the caller's.

    A header that the caller has set or removed stays as the caller wants it. Upper and lower case are the same.
    """
    taken = {name.lower() for name in callers}
    return {**{name: value for name, value in added.items() if name.lower() not in taken}, **callers}


def merged_body(callers: Mapping[str, Any] | None, added: Mapping[str, Any], written: Iterable[str]) -> dict[str, Any]:
    """Add fields to the caller's ``extra_body``.

    Args:
        callers: the caller's ``extra_body``. Its values are kept, also inside ``vllm_xargs`` and ``nvext``.
        added: the fields to add.
        written: names of fields that are in the request's body already; they are not added.
    """
    body = dict(callers or {})
    names = set(written)
    for name, value in added.items():
        if name in body:
            body[name] = _inside(body[name], value)
        elif name not in names:
            body[name] = value
    return body


def _inside(callers: Any, added: Any) -> Any:
    if not (isinstance(callers, Mapping) and isinstance(added, Mapping)):
        return callers
    merged = {name: _inside(value, added[name]) if name in added else value for name, value in callers.items()}
    return {**added, **merged}


# --------------------------------------------------------------------------------------------- checks


def check_id(program_id: str, what: str = "program id") -> str:
    """Return the id if it can be sent in a header and in a body.

    Raises:
        InvalidTag: the id is not text, is empty or longer than 256 characters, contains a character that is not
            printable ASCII, or begins or ends with a space.
    """
    if not isinstance(program_id, str):
        raise InvalidTag(f"{what} {program_id!r}: must be a str, not {type(program_id).__name__}")
    if not 0 < len(program_id) <= MAX_PROGRAM_ID_CHARS:
        raise InvalidTag(f"{what}: has {len(program_id)} characters; 1 to {MAX_PROGRAM_ID_CHARS} are allowed")
    if not (program_id.isascii() and program_id.isprintable() and program_id == program_id.strip()):
        raise InvalidTag(
            f"{what} {program_id!r}: only printable ASCII without spaces at the ends can be sent in a header"
        )
    return program_id


def check_tool(tool: str) -> str:
    """Return the name of a tool without spaces at the ends.

    Raises:
        InvalidTag: the name does not have 1 to 128 printable characters.
    """
    if not isinstance(tool, str) or not tool.strip() or not tool.isprintable() or len(tool) > MAX_TOOL_CHARS:
        raise InvalidTag(f"tool {tool!r}: a name has 1 to {MAX_TOOL_CHARS} printable characters")
    return tool.strip()


def check_seconds(seconds: float, what: str) -> float:
    """Return a number of seconds, limited to a day.

    Raises:
        InvalidTag: the value is not a number, is negative or is not finite.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidTag(f"{what} {seconds!r}: must be a number of seconds")
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidTag(f"{what} {seconds!r}: must be a finite number of seconds, 0 or more")
    return min(float(seconds), MAX_HINT_S)
