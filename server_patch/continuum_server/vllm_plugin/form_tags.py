"""Tags of requests whose body is a form, as for vLLM's audio routes. The part ``vllm_xargs`` is JSON text.

Starlette parses the form, as it does for vLLM, and this module writes it again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from continuum_server.vllm_plugin.loose_json import Raw
from continuum_server.vllm_plugin.request_tags import Caller, gather

XARGS = "vllm_xargs"


async def tag_form(
    scope: MutableMapping[str, Any],
    receive: Callable[[], Awaitable[Any]],
    headers: Mapping[str, str],
    caller: Caller | None,
) -> tuple[bytes, str, tuple[str, ...]] | None:
    """Return the form with all tags in ``vllm_xargs``, its content type, and the names of malformed tags.

    None: the body is not a form, and vLLM refuses it.
    """
    try:
        form = await Request(scope, receive).form()
    except HTTPException:
        return None
    parts = [(name, value) for name, value in form.multi_items() if name != XARGS]
    data = {XARGS: _parsed(form[XARGS])} if XARGS in form else {}
    rejected = gather(data, headers, caller)
    if XARGS in data:
        parts.append((XARGS, json.dumps(data[XARGS])))
    written = [(name, value, await value.read() if isinstance(value, UploadFile) else b"") for name, value in parts]
    await form.close()
    body, content_type = _multipart(written)
    return body, content_type, rejected


def _parsed(value: UploadFile | str) -> Any:
    return Raw(value).parsed() if isinstance(value, str) else value


def _multipart(parts: Iterable[tuple[str, UploadFile | str, bytes]]) -> tuple[bytes, str]:
    sections = [_section(*part) for part in parts]
    boundary = hashlib.sha256(b"".join(sections)).hexdigest().encode()  # no part can contain it
    body = b"".join(b"--" + boundary + b"\r\n" + section + b"\r\n" for section in sections)
    return body + b"--" + boundary + b"--\r\n", f"multipart/form-data; boundary={boundary.decode()}"


def _section(name: str, value: UploadFile | str, content: bytes) -> bytes:
    head = f'Content-Disposition: form-data; name="{_quoted(name)}"'
    if isinstance(value, str):
        return f"{head}\r\n\r\n{value}".encode()
    kind = value.content_type or "application/octet-stream"
    return f'{head}; filename="{_quoted(value.filename or "")}"\r\nContent-Type: {kind}\r\n\r\n'.encode() + content


def _quoted(text: str) -> str:
    """Escape a name so that it ends neither its quotes nor the line."""
    for sign, written in (("\\", "\\\\"), ('"', '\\"'), ("\r", " "), ("\n", " ")):
        text = text.replace(sign, written)
    return text
