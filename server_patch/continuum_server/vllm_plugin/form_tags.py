"""Tags of requests whose body is a form, as for vLLM's audio routes. The part ``vllm_xargs`` is JSON text.

Starlette parses the form, as it does for vLLM, and httpx writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import httpx
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from continuum_server.foreign_ids import ForeignId
from continuum_server.vllm_plugin.request_tags import Caller, gather

XARGS = "vllm_xargs"


async def tag_form(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Any]],
    headers: Mapping[str, str],
    caller: Caller | None,
    ours_only: bool = False,
    operators: tuple[ForeignId, ...] = (),
) -> tuple[bytes, str, tuple[str, ...]] | None:
    """Return the form with all tags in ``vllm_xargs``, its content type, and the names of malformed tags.

    None: the body is not a form, and vLLM refuses it.
    """
    try:
        form = await Request(scope, receive).form()
    except HTTPException:
        return None
    parts = [(name, await _part(value)) for name, value in form.multi_items() if name != XARGS]
    sent = _parsed(form.get(XARGS))
    await form.close()
    changed, rejected = gather({XARGS: sent}, headers, caller, ours_only=ours_only, operators=operators)
    xargs = changed.get(XARGS, sent)
    if xargs:
        parts.append((XARGS, (None, json.dumps(xargs).encode(), None)))
    written = httpx.Request("POST", "http://form", files=parts)
    return written.read(), written.headers["content-type"], rejected


def _parsed(value: UploadFile | str | None) -> Any:
    """Return the parsed text, or the value itself if it cannot be parsed."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (RecursionError, ValueError):
        return value


async def _part(value: UploadFile | str) -> tuple[str | None, bytes, str | None]:
    """Return a part's file name, content and type."""
    if isinstance(value, str):
        return None, value.encode(), None
    return value.filename or "file", await value.read(), value.content_type
